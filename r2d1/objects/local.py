"""A directory as a bucket: readable files, atomic and durable writes, conditions that hold between processes."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, MutableSequence, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, TypeVarTuple

import anyio

from r2d1.errors import Closed, FormatError, ObjectNotFound, PreconditionFailed, RangeRefused, RemoteError
from r2d1.objects import (
    PAGE,
    PLAIN,
    Attributes,
    BodyCheck,
    ByteRange,
    ObjectInfo,
    OpenUpload,
    Part,
    Sink,
    SmallGet,
    SmallPut,
    Source,
)
from r2d1.objects.local_bodies import Intake, Joining, Outlet
from r2d1.objects.local_ledger import Record, disk_errors
from r2d1.objects.local_names import checked
from r2d1.objects.local_tree import Found, Tree
from r2d1.objects.local_uploads import Uploads
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: How often a write makes room for itself that others take away again.
_TRIES = 100

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class LocalStore:
    """A bucket in a directory, which is made at the first call if the folder around it exists.

    ETags are as R2's: the MD5 of an object sent whole, the MD5 of the parts' MD5s and ``-N`` of a joined one.
    Parts of an upload may be of any size, but all except the last of one.
    """

    def __init__(self, root: Path, *, threads: int = 8) -> None:
        self._tree = Tree(root.absolute())
        self._uploads = Uploads(self._tree.ledger)
        self._threads = anyio.CapacityLimiter(threads)
        self._preparing = anyio.Lock()
        self._is_ready = False
        self._is_closed = False

    @property
    def where(self) -> str:
        return f"file://{self._tree.root}"

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
        call = _Call("PutObject", checked(key))
        intake = Intake(*call, self._tree.ledger.new_temp(), source)
        async with self._taken_in(call, intake, check, signed_sha256) as (temp, etag):
            condition = _Condition(if_none_match, if_match)
            await self._run(call, self._commit, call, temp, _record(etag, attributes), condition)
        return etag

    async def put_several(self, puts: Sequence[SmallPut]) -> Sequence[str]:
        return ()  # nothing is far away here

    async def get_several(self, gets: Sequence[SmallGet]) -> int:
        return 0

    async def get(self, key: str, *, limit: int) -> tuple[bytes, ObjectInfo]:
        call = _Call("GetObject", checked(key))
        async with self._opened(call) as found:
            if found.info.size > limit:
                raise FormatError(f"{key}: {found.info.size} bytes, at most {limit} are read")
            return await self._run(call, os.pread, found.fd, found.info.size, 0), found.info

    async def get_range(self, key: str, span: ByteRange, sink: Sink, *, if_match: str | None = None) -> ObjectInfo:
        call = _Call("GetObject", checked(key))
        async with self._opened(call) as found:
            info = found.info
            if if_match is not None and if_match != info.etag:
                raise _failed(call, f"its ETag is {info.etag}, and {if_match} was expected")
            if not span.start < span.stop <= info.size:
                reason = f"bytes {span.start} to {span.stop} were asked for, the object has {info.size}"
                raise RangeRefused(*call, status=416, code="InvalidRange", reason=reason)
            outlet = Outlet(found.fd, span, sink)
            while await in_thread(outlet.step, limiter=self._threads):
                pass
        return info

    async def head(self, key: str) -> ObjectInfo:
        call = _Call("HeadObject", checked(key))
        info = await self._run(call, self._tree.look, call.key)
        if info is None:
            raise _absent(call)
        return info

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        walk = self._tree.walk(prefix, start_after)
        while page := await self._run(_Call("ListObjectsV2", prefix), _next_page, walk):
            for info in page:
                yield info

    async def list_folders(self, prefix: str) -> Sequence[str]:
        return await self._run(_Call("ListObjectsV2", prefix), self._tree.folders, prefix)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            call = _Call("DeleteObjects", checked(key))
            await self._run(call, self._delete, call.key)

    async def create_upload(self, key: str, *, attributes: Attributes = PLAIN, check: str | None = None) -> str:
        call = _Call("CreateMultipartUpload", checked(key))
        return await self._run(call, self._uploads.create, call.key, attributes)

    async def put_part(
        self, key: str, upload_id: str, number: int, source: Source, *, check: BodyCheck | None = None
    ) -> Part:
        call = _Call("UploadPart", checked(key))
        await self._run(call, self._uploads.folder, *call, upload_id)
        intake = Intake(*call, self._tree.ledger.new_temp(), source)
        async with self._taken_in(call, intake, check) as (temp, etag):
            await self._run(call, self._uploads.put_part, call.key, upload_id, number, temp, etag)
        return Part(number, etag, source.size, check)

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, if_none_match: bool = False
    ) -> str:
        call = _Call("CompleteMultipartUpload", checked(key))
        files, etag = await self._run(call, self._uploads.files_to_join, call.key, upload_id, parts)
        attributes = await self._run(call, self._uploads.attributes, call.key, upload_id)
        joining = await self._run(call, Joining, files)
        intake = Intake(*call, self._tree.ledger.new_temp(), joining, etag=etag)
        try:
            async with self._taken_in(call, intake) as (temp, _):
                condition = _Condition(if_none_match, None)
                await self._run(call, self._commit, call, temp, _record(etag, attributes), condition)
        except PreconditionFailed:
            await self.abort_upload(key, upload_id)  # as R2 does
            raise
        await self.abort_upload(key, upload_id)
        return etag

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self._run(_Call("AbortMultipartUpload", key), self._uploads.remove, upload_id)

    async def list_parts(self, key: str, upload_id: str) -> Sequence[Part]:
        call = _Call("ListParts", checked(key))
        return await self._run(call, self._uploads.parts, *call, upload_id)

    async def list_uploads(self, prefix: str) -> Sequence[OpenUpload]:
        return await self._run(_Call("ListMultipartUploads", prefix), self._uploads.open_below, prefix)

    async def aclose(self) -> None:
        self._is_closed = True

    async def _run(self, call: _Call, func: Callable[[*Ts], R], *args: *Ts) -> R:
        """Do blocking work on the bucket's own files on a thread of this store."""
        await self._make_ready(call)
        with disk_errors(*call):
            return await in_thread(func, *args, limiter=self._threads)

    async def _make_ready(self, call: _Call) -> None:
        """Make the store's folders, once."""
        if self._is_closed:
            raise Closed(f"{self.where}: the store was closed")
        if self._is_ready:
            return
        async with self._preparing:
            with disk_errors(*call):
                await in_thread(self._tree.ledger.prepare, limiter=self._threads)
            self._is_ready = True

    @asynccontextmanager
    async def _taken_in(
        self, call: _Call, intake: Intake, check: BodyCheck | None = None, sha256: str | None = None
    ) -> AsyncIterator[tuple[Path, str]]:
        """A body in a durable temporary file, and its ETag; what is not committed is removed."""
        await self._make_ready(call)
        try:
            while await in_thread(intake.step, check, sha256, limiter=self._threads):
                pass
            yield intake.temp, await in_thread(intake.finish, check, sha256, limiter=self._threads)
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(intake.discard)

    @asynccontextmanager
    async def _opened(self, call: _Call) -> AsyncIterator[Found]:
        opened: list[Found] = []  # filled on the thread, so that nothing is lost when this task is cancelled
        try:
            await self._run(call, self._open_into, opened, call.key)
            if not opened:
                raise _absent(call)
            yield opened[0]
        finally:
            for found in opened:
                os.close(found.fd)

    def _open_into(self, opened: MutableSequence[Found], key: str) -> None:
        if (found := self._tree.open(key)) is not None:
            opened.append(found)

    def _commit(self, call: _Call, temp: Path, record: Record, condition: _Condition) -> None:
        for _ in range(_TRIES):
            self._tree.make_room(call.key)
            with self._tree.ledger.locked(call.key):
                condition.require(call, self._tree.look(call.key))
                if self._tree.commit(call.key, temp, record):
                    return
        raise RemoteError(*call, reason="other writers of this folder were always quicker", hint="Try again")

    def _delete(self, key: str) -> None:
        with self._tree.ledger.locked(key):
            self._tree.delete(key)


class _Call(NamedTuple):
    """What is being asked, for error texts: S3's name of the operation, and the key (or prefix)."""

    operation: str
    key: str


@dataclass(frozen=True, slots=True)
class _Condition:
    """What must be true of the object that a write replaces."""

    if_none_match: bool
    if_match: str | None

    def require(self, call: _Call, there: ObjectInfo | None) -> None:
        if self.if_none_match and there is not None:
            raise _failed(call, f"there is an object already, with the ETag {there.etag}")
        if self.if_match is not None and (there is None or there.etag != self.if_match):
            now = f"its ETag is {there.etag}" if there else "there is no object"
            raise _failed(call, f"{now}, and {self.if_match} was expected")


def _failed(call: _Call, reason: str) -> RemoteError:
    return PreconditionFailed(*call, status=412, code="PreconditionFailed", reason=reason)


def _absent(call: _Call) -> RemoteError:
    return ObjectNotFound(*call, status=404, code="NoSuchKey", reason="no object has this key")


def _record(etag: str, attributes: Attributes) -> Record:
    return Record(etag, attributes.content_type, attributes.cache_control, dict(attributes.metadata))


def _next_page(walk: Iterator[ObjectInfo]) -> Sequence[ObjectInfo]:
    return tuple(islice(walk, PAGE))
