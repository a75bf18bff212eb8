"""A bucket in memory behind the object store seam, obeying R2's rules: for tests and for the simulation.

One thread, no randomness, and no clock but the bucket's: the same calls give the same log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TypeVar

import anyio

from r2d1.errors import FormatError, RemoteError, UploadNotFound
from r2d1.objects import (
    PAGE,
    PLAIN,
    Attributes,
    BodyCheck,
    ByteRange,
    BytesSink,
    ObjectInfo,
    OpenUpload,
    Part,
    Sink,
    SmallGet,
    SmallPut,
    Source,
)
from r2d1.objects.r2_refusals import Refusal, error_for
from r2d1.tasks import in_thread
from r2d1.testing.blob import BlobWriter
from r2d1.testing.bodies import CHECKSUM_HEADER, Announced, Body, BodyReader
from r2d1.testing.bucket import Bucket
from r2d1.testing.conditions import NONE, Conditions
from r2d1.testing.listing import Page
from r2d1.testing.refusals import Refused, refused
from r2d1.testing.requestlog import RequestLog, RequestRecord
from r2d1.testing.rules import Rules
from r2d1.testing.stored import Kept, PartNamed, StoredObject, StoredPart

T = TypeVar("T")
BLOCK = 256 << 10

#: Awaited with the S3 operation and the key (the prefix of a listing); it may raise what the caller is to see.
Hook = Callable[[str, str], Awaitable[None]]
#: Called with key, offset within the object and a block on its way; returns the bytes that arrive, or raises.
Wire = Callable[[str, int, bytes], bytes]


def logical_clock(start: float = 1_700_000_000.0) -> Callable[[], float]:
    """A clock that goes on by a millisecond whenever it is read."""
    ticks = count()
    return lambda: start + next(ticks) / 1000


class MemoryStore:
    """An ``ObjectStore`` over a bucket model. Several stores may share one ``bucket``.

    ``before`` is awaited when a request begins, ``after`` when it was done and its reply is about to arrive: an
    error raised there is a reply that was lost. ``wire_up`` and ``wire_down`` may damage or cut bodies.
    Every request has a checkpoint before and after it.
    """

    def __init__(
        self,
        bucket: Bucket | None = None,
        *,
        name: str = "memory",
        before: Hook | None = None,
        after: Hook | None = None,
        wire_up: Wire | None = None,
        wire_down: Wire | None = None,
    ) -> None:
        self.model = bucket or Bucket(Rules.lenient(), clock=logical_clock())
        self.before = before
        self.after = after
        self.wire_up = wire_up
        self.wire_down = wire_down
        self.log = RequestLog()
        self._name = name

    def __repr__(self) -> str:
        return f"<MemoryStore {self.where}>"

    @property
    def where(self) -> str:
        return f"memory://{self._name}"

    @property
    def requests(self) -> list[RequestRecord]:
        """The newest requests, in the order in which they were answered (a copy)."""
        return self.log.records()

    # -- whole objects ---------------------------------------------------------------------------------------

    async def put(
        self,
        key: str,
        source: Source,
        *,
        attributes: Attributes = PLAIN,
        if_none_match: bool = False,
        if_match: str | None = None,
        check: BodyCheck | None = None,
        signed_sha256: str | None = None,
    ) -> str:
        conditions = Conditions(
            if_none_match=("*",) if if_none_match else None, if_match=None if if_match is None else (if_match,)
        )
        stored = await self._send(
            "PutObject",
            key,
            source,
            _announced(check, signed_sha256),
            lambda body: self.model.put(key, body, kept=_kept(attributes), conditions=conditions),
        )
        return stored.etag

    async def put_several(self, puts: Sequence[SmallPut]) -> Sequence[str]:
        etags: list[str] = []
        with suppress(RemoteError):  # the caller sends the rest by itself
            for one in puts:
                check = await in_thread(one.check)
                etags.append(await self.put(one.key, one.source, check=check))
        return etags

    async def get_several(self, gets: Sequence[SmallGet]) -> int:
        for done, one in enumerate(gets):
            landed = BytesSink()
            try:
                await self.get_range(one.key, ByteRange(0, one.size), landed, if_match=one.if_match)
            except RemoteError:  # the caller asks for the rest by itself
                return done
            if not await in_thread(one.take, bytes(landed.data)):
                return done
        return len(gets)

    async def get(self, key: str, *, limit: int) -> tuple[bytes, ObjectInfo]:
        stored = await self._request("GetObject", key, lambda: self.model.get(key))
        if stored.size > limit:
            raise FormatError(f"{key} has {stored.size} bytes, more than the {limit} that are read of it")
        data = bytearray()
        for block in self._arriving(key, stored, 0, stored.size):
            data += block
        return bytes(data), _info(stored)

    async def get_range(self, key: str, span: ByteRange, sink: Sink, *, if_match: str | None = None) -> ObjectInfo:
        conditions = NONE if if_match is None else Conditions(if_match=(if_match,))

        def found() -> StoredObject:
            stored = self.model.get(key, conditions=conditions)
            if span.stop > stored.size:
                raise refused("InvalidRange")
            return stored

        stored = await self._request("GetObject", key, found)
        for block in self._arriving(key, stored, span.start, span.stop):
            await in_thread(sink.write, block)
        return _info(stored)

    async def head(self, key: str) -> ObjectInfo:
        return _info(await self._request("HeadObject", key, lambda: self.model.get(key, operation="HeadObject")))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        token: str | None = None
        while True:
            page, objects = await self._list_page(prefix, start_after=start_after, token=token)
            for stored in objects:
                yield ObjectInfo(stored.key, stored.size, stored.etag, stored.modified)
            if (token := page.token) is None:
                return

    async def list_folders(self, prefix: str) -> Sequence[str]:
        folders: tuple[str, ...] = ()
        token: str | None = None
        while True:
            page, _ = await self._list_page(prefix, delimiter="/", token=token)
            folders += tuple(folder.decode() for folder in page.folders)
            if (token := page.token) is None:
                return folders

    async def delete(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), PAGE):
            chunk = keys[at : at + PAGE]
            operation = "DeleteObject" if len(keys) == 1 else "DeleteObjects"
            await self._request(operation, chunk[0], partial(self.model.delete, chunk, operation=operation))

    # -- multipart uploads -----------------------------------------------------------------------------------

    async def create_upload(self, key: str, *, attributes: Attributes = PLAIN, check: str | None = None) -> str:
        algorithm = None if check == "md5" else check
        upload = await self._request(
            "CreateMultipartUpload",
            key,
            lambda: self.model.create_upload(key, kept=_kept(attributes), algorithm=algorithm),
        )
        return upload.upload_id

    async def put_part(
        self, key: str, upload_id: str, number: int, source: Source, *, check: BodyCheck | None = None
    ) -> Part:
        stored = await self._send(
            "UploadPart",
            key,
            source,
            _announced(check, None),
            lambda body: self.model.put_part(key, upload_id, number, body),
            part_number=number,
        )
        return Part(stored.number, stored.etag, stored.size, check)

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, if_none_match: bool = False
    ) -> str:
        named = [PartNamed(part.number, part.etag, _repeated(part.check)) for part in parts]
        conditions = Conditions(if_none_match=("*",)) if if_none_match else NONE
        stored = await self._request(
            "CompleteMultipartUpload",
            key,
            lambda: self.model.complete(key, upload_id, named, conditions=conditions),
        )
        return stored.etag

    async def abort_upload(self, key: str, upload_id: str) -> None:
        with suppress(UploadNotFound):
            await self._request("AbortMultipartUpload", key, lambda: self.model.abort(key, upload_id))

    async def list_parts(self, key: str, upload_id: str) -> Sequence[Part]:
        found: tuple[Part, ...] = ()
        truncated = True
        while truncated:
            after = found[-1].number if found else 0
            parts, truncated = await self._request(
                "ListParts", key, partial(self.model.list_parts, key, upload_id, after=after)
            )
            found += tuple(_part(part) for part in parts)
        return found

    async def list_uploads(self, prefix: str) -> Sequence[OpenUpload]:
        found: tuple[OpenUpload, ...] = ()
        truncated = True
        while truncated:
            after = (found[-1].key, found[-1].upload_id) if found else ("", "")
            uploads, truncated = await self._request(
                "ListMultipartUploads", prefix, partial(self.model.list_uploads, prefix, after=after)
            )
            found += tuple(OpenUpload(upload.key, upload.upload_id) for upload in uploads)
        return found

    async def aclose(self) -> None:
        """Nothing is held open."""

    # -- one request -----------------------------------------------------------------------------------------

    async def _list_page(
        self, prefix: str, *, delimiter: str = "", start_after: str = "", token: str | None = None
    ) -> tuple[Page, Sequence[StoredObject]]:
        return await self._request(
            "ListObjectsV2",
            prefix,
            partial(self.model.list_page, prefix, delimiter=delimiter, start_after=start_after, token=token),
        )

    async def _send(
        self,
        operation: str,
        key: str,
        source: Source,
        announced: Announced,
        act: Callable[[Body], T],
        *,
        part_number: int | None = None,
    ) -> T:
        """A request with a body: it is read whole before anything is done, as a server does."""
        await self._begin(operation, key)
        body = await in_thread(self._read, key, source, announced)

        def acted() -> T:
            if isinstance(body, Refused):
                raise body
            return act(body)

        received = 0 if isinstance(body, Refused) else body.blob.size
        return await self._finish(operation, key, acted, received=received, part_number=part_number)

    async def _request(self, operation: str, key: str, act: Callable[[], T]) -> T:
        await self._begin(operation, key)
        return await self._finish(operation, key, act)

    async def _begin(self, operation: str, key: str) -> None:
        await anyio.sleep(0)
        if self.before is not None:
            await self.before(operation, key)

    async def _finish(
        self, operation: str, key: str, act: Callable[[], T], *, received: int = 0, part_number: int | None = None
    ) -> T:
        outcome: T | Refused
        try:
            outcome = act()
        except Refused as error:
            outcome = error
        record = _record(self.log.next_number(), self.model.clock(), operation, key, outcome)
        self.log.add(replace(record, received=received, part_number=part_number))
        if self.after is not None:
            await self.after(operation, key)
        await anyio.sleep(0)
        if isinstance(outcome, Refused):
            raise error_for(operation, key, Refusal(outcome.status, outcome.code, outcome.message)) from outcome
        return outcome

    def _read(self, key: str, source: Source, announced: Announced) -> Body | Refused:
        reader = BodyReader(announced, BlobWriter(), verify=self.model.rules.verify_bodies)
        for block in source.blocks(BLOCK):
            reader.write(self.wire_up(key, reader.size, bytes(block)) if self.wire_up else block)
        try:
            if reader.size != source.size:
                raise refused("IncompleteBody")
            return reader.finish()
        except Refused as error:
            return error

    def _arriving(self, key: str, stored: StoredObject, start: int, stop: int) -> Iterator[bytes]:
        """The bytes of a reply as they come over the wire."""
        for block in stored.blob.blocks(start, stop, BLOCK):
            yield self.wire_down(key, start, bytes(block)) if self.wire_down else bytes(block)
            start += len(block)


_METHODS = {"Abort": "DELETE", "Complete": "POST", "Create": "POST", "DeleteObjects": "POST", "Head": "HEAD"}


def _record(number: int, at: float, operation: str, key: str, outcome: object) -> RequestRecord:
    starts = (method for start, method in _METHODS.items() if operation.startswith(start))
    method = next(starts, "PUT" if operation in ("PutObject", "UploadPart") else "GET")
    if isinstance(outcome, Refused):
        return RequestRecord(number, at, method, operation, key, status=outcome.status, code=outcome.code)
    return RequestRecord(number, at, method, operation, key, status=200)


def _announced(check: BodyCheck | None, sha256: str | None) -> Announced:
    """What the headers of the same request over a socket would say."""
    headers = {}
    if check is not None:
        headers["content-md5" if check.algorithm == "md5" else CHECKSUM_HEADER + check.algorithm] = check.value
    return Announced.parse(headers, sha256=None if sha256 is None else bytes.fromhex(sha256))


def _repeated(check: BodyCheck | None) -> dict[str, str]:
    """What Complete says again of a part's check; MD5 is no checksum that is kept."""
    return {} if check is None or check.algorithm == "md5" else {check.algorithm: check.value}


def _part(stored: StoredPart) -> Part:
    value = stored.body.checksums.get("crc64nvme")
    return Part(stored.number, stored.etag, stored.size, None if value is None else BodyCheck("crc64nvme", value))


def _kept(attributes: Attributes) -> Kept:
    headers = {"content-type": attributes.content_type}
    if attributes.cache_control is not None:
        headers["cache-control"] = attributes.cache_control
    return Kept(headers, {name.lower(): value for name, value in attributes.metadata.items()})


def _info(stored: StoredObject) -> ObjectInfo:
    """As GetObject and HeadObject tell it: with metadata, and a time in whole seconds."""
    modified = float(int(stored.modified))
    return ObjectInfo(stored.key, stored.size, stored.etag, modified, dict(stored.kept.metadata))
