"""An R2 bucket (or any S3 bucket) as an object store, through aioboto3: one request a call, bodies streamed.

Settings that R2 wants, and why: https://developers.cloudflare.com/r2/api/s3/api/ and ``r2_client.py``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from r2d1.errors import (
    Closed,
    FormatError,
    ObjectNotFound,
    RemoteError,
    RemoteUnavailable,
    UploadNotFound,
)
from r2d1.events import Teller
from r2d1.objects import (
    PAGE,
    PLAIN,
    Attributes,
    BodyCheck,
    ByteRange,
    BytesSource,
    ObjectInfo,
    OpenUpload,
    Part,
    Sink,
    SmallGet,
    SmallPut,
    Source,
)
from r2d1.objects import r2_shapes as shapes
from r2d1.objects.pace import Pace
from r2d1.objects.r2_bodies import UploadBody, deliver, md5_of, read_whole
from r2d1.objects.r2_call import Call, reading
from r2d1.objects.r2_checks import CheckSupport
from r2d1.objects.r2_refusals import require_deleted
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    from r2d1.objects.wire import Wire
    from r2d1.objects.wire_several import Several
    from r2d1.settings import Settings

#: Seconds without a byte in either direction after which a request is given up.
IDLE_S = 60.0

#: The same for Complete: joining thousands of parts takes a store minutes, in silence.
COMPLETE_IDLE_S = 300.0

#: Connections beside those of the transfers (listings, heads, aborts).
_BESIDE = 4

#: Bodies up to this size are sent from memory, and signed.
_SMALL = 64 << 10

#: What a page says of the next one, and how that is asked for.
_TOKEN = {"NextContinuationToken": "ContinuationToken"}


class R2Store:
    """A bucket behind an S3 endpoint. Connections and threads are bounded by ``settings.most_in_flight``.

    Nothing is opened before the first call; ``ConfigError`` when credentials are missing.
    """

    def __init__(self, settings: Settings, *, tell: Teller, idle_s: float = IDLE_S) -> None:
        settings.require_r2()
        assert settings.bucket is not None
        self._settings = settings
        self._bucket = settings.bucket
        self._idle_s = idle_s
        self._checks = CheckSupport(tell)
        self._pace = Pace(settings.bandwidth_limit) if settings.bandwidth_limit else None
        connections = settings.most_in_flight + _BESIDE
        # Not left to the connection pool: waiting there would count as silence of the server.
        self._slots = anyio.Semaphore(connections)
        self._threads = anyio.CapacityLimiter(connections)
        self._opening = anyio.Lock()
        self._exits = AsyncExitStack()
        self._client: Any = None
        self._wire: Wire | None = None
        self._several: Several | None = None
        self._translated: Any = None
        self._closed = False

    @property
    def where(self) -> str:
        return f"{self._settings.r2_endpoint}/{self._bucket}"

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
        conditions = shapes.condition_params(if_none_match=if_none_match, if_match=if_match)
        params = {"Key": key, **shapes.attribute_params(attributes), **conditions}
        answer, _ = await self._send_body(
            "PutObject", params, source, check=check, is_conditional=bool(conditions), sha256=signed_sha256
        )
        return shapes.etag(answer)

    async def put_several(self, puts: Sequence[SmallPut]) -> Sequence[str]:
        await self._connected()
        if self._several is None or not puts:
            return ()
        etags: list[str] = []
        with suppress(RemoteError):  # the caller sends the rest by itself
            if not self._checks.is_proven("PutObject"):
                first = puts[0]
                etags.append(await self.put(first.key, first.source, check=await in_thread(first.check)))
            async with self._slots:
                await self._several.put(puts[len(etags) :], etags, self._checks, self._threads)
        return etags

    async def get_several(self, gets: Sequence[SmallGet]) -> int:
        await self._connected()
        if self._several is None:
            return 0
        async with self._slots:
            return await self._several.get(gets, self._threads)

    async def get(self, key: str, *, limit: int) -> tuple[bytes, ObjectInfo]:
        async with self._call("GetObject", key) as call:
            answer = await call.send(Key=key)
            async with reading(answer) as body:
                size = shapes.length(call.operation, key, answer)
                if size > limit:
                    raise FormatError(f"{key}: {size} bytes, at most {limit} are read")
                data = bytearray()
                async for chunk in body.content.iter_any():
                    call.moved()
                    data += chunk
                shapes.require_all(key, len(data), size)
        return bytes(data), shapes.info(key, size, answer)

    async def get_range(self, key: str, span: ByteRange, sink: Sink, *, if_match: str | None = None) -> ObjectInfo:
        params = {"Key": key, "Range": f"bytes={span.start}-{span.stop - 1}"}
        params |= {"IfMatch": f'"{if_match}"'} if if_match is not None else {}
        landing = shapes.Landing(key, span, if_match)
        sink = self._pace.of_sink(sink) if self._pace else sink
        await self._connected()
        try:
            if self._wire is not None:
                async with self._slots:
                    came = await self._wire.fetch(params, sink, landing.place, self._threads)
            else:
                came = await self._fetch(params, sink, landing)
            shapes.require_all(key, came, span.size)
        except RemoteUnavailable as error:
            error.etag = landing.info.etag if landing.info else None
            raise
        assert landing.info is not None
        return landing.info

    async def _fetch(self, params: Mapping[str, Any], sink: Sink, landing: shapes.Landing) -> int:
        async with self._call("GetObject", landing.key) as call:
            answer = await call.send(**params)
            async with reading(answer) as body:
                skip, size = landing.place(answer)
                return await deliver(body.content, sink, skip=skip, size=size, threads=self._threads, moved=call.moved)

    async def head(self, key: str) -> ObjectInfo:
        async with self._call("HeadObject", key) as call:
            answer = await call.send(Key=key)
            return shapes.info(key, shapes.length(call.operation, key, answer), answer)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        first = {"Prefix": prefix, **({"StartAfter": start_after} if start_after else {})}
        async with aclosing(self._pages("ListObjectsV2", prefix, first, _TOKEN)) as pages:
            async for page in pages:
                for entry in page.get("Contents", []):
                    yield shapes.info(entry["Key"], int(entry["Size"]), entry)

    async def list_folders(self, prefix: str) -> Sequence[str]:
        first = {"Prefix": prefix, "Delimiter": "/"}
        pages = self._pages("ListObjectsV2", prefix, first, _TOKEN)
        folders = [entry["Prefix"] async for page in pages for entry in page.get("CommonPrefixes", [])]
        return sorted(set(folders), key=str.encode)

    async def delete(self, keys: Sequence[str]) -> None:
        if len(keys) == 1:
            return await self._delete_one(keys[0])
        for at in range(0, len(keys), PAGE):
            await self._delete_page(keys[at : at + PAGE])
        return None

    async def _delete_one(self, key: str) -> None:
        try:
            async with self._call("DeleteObject", key) as call:
                await call.send(Key=key)
        except ObjectNotFound:
            return

    async def _delete_page(self, keys: Sequence[str]) -> None:
        async with self._call("DeleteObjects", keys[0]) as call:
            answer = await call.send(Delete={"Objects": [{"Key": key} for key in keys]})
        require_deleted(answer)

    async def create_upload(self, key: str, *, attributes: Attributes = PLAIN, check: str | None = None) -> str:
        params = {"Key": key, **shapes.attribute_params(attributes)}
        named = {"ChecksumAlgorithm": "CRC64NVME", "ChecksumType": "FULL_OBJECT"} if check == "crc64nvme" else {}

        async def send(check_params: Mapping[str, str]) -> dict[str, Any]:
            async with self._call("CreateMultipartUpload", key) as call:
                return await call.send(**params, **check_params)

        async def nothing() -> dict[str, str]:
            return {}

        if not named:
            return str((await send({}))["UploadId"])
        answer, _ = await self._checks.tried("CreateMultipartUpload", named, nothing, send)
        return str(answer["UploadId"])

    async def put_part(
        self, key: str, upload_id: str, number: int, source: Source, *, check: BodyCheck | None = None
    ) -> Part:
        params = {"Key": key, "UploadId": upload_id, "PartNumber": number}
        answer, sent = await self._send_body("UploadPart", params, source, check=check)
        is_sent = check is not None and shapes.check_params(check) == sent
        verified = is_sent and answer.get("ChecksumCRC64NVME") == sent.get("ChecksumCRC64NVME", "")
        return Part(number, shapes.etag(answer), source.size, check if is_sent else None, verified)

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, if_none_match: bool = False
    ) -> str:
        listed = [shapes.part_params(part) for part in sorted(parts, key=lambda part: part.number)]
        async with self._call("CompleteMultipartUpload", key, idle_s=max(self._idle_s, COMPLETE_IDLE_S)) as call:
            answer = await call.send(
                Key=key,
                UploadId=upload_id,
                MultipartUpload={"Parts": listed},
                **shapes.condition_params(if_none_match=if_none_match),
            )
        return shapes.etag(answer)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        try:
            async with self._call("AbortMultipartUpload", key) as call:
                await call.send(Key=key, UploadId=upload_id)
        except UploadNotFound:
            return

    async def list_parts(self, key: str, upload_id: str) -> Sequence[Part]:
        first = {"Key": key, "UploadId": upload_id}
        pages = self._pages("ListParts", key, first, {"NextPartNumberMarker": "PartNumberMarker"})
        return [shapes.listed_part(entry) async for page in pages for entry in page.get("Parts", [])]

    async def list_uploads(self, prefix: str) -> Sequence[OpenUpload]:
        names = {"NextKeyMarker": "KeyMarker", "NextUploadIdMarker": "UploadIdMarker"}
        pages = self._pages("ListMultipartUploads", prefix, {"Prefix": prefix}, names)
        return [
            OpenUpload(entry["Key"], entry["UploadId"]) async for page in pages for entry in page.get("Uploads", [])
        ]

    async def aclose(self) -> None:
        self._closed = True
        async with self._opening:
            self._client = None
            if self._wire is not None:
                self._wire.close()
            await self._exits.aclose()

    async def _send_body(
        self,
        operation: str,
        params: Mapping[str, Any],
        source: Source,
        *,
        check: BodyCheck | None,
        is_conditional: bool = False,
        sha256: str | None = None,
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        """Send a body with its check, or with the one the store takes; returns the answer and the check's headers."""

        async def send(check_params: Mapping[str, str]) -> dict[str, Any]:
            if self._wire is not None and not isinstance(source, BytesSource):
                async with self._slots:
                    return await self._wire.send(operation, {**params, **check_params}, source, sha256, self._threads)
            if sha256 is None and source.size <= _SMALL:
                data = await in_thread(read_whole, source, limiter=self._threads)
                async with self._call(operation, params["Key"]) as call:
                    return await call.send(Body=data, **params, **check_params)
            return await self._stream(operation, {**params, **check_params}, source, sha256)

        async def send_md5() -> dict[str, str]:
            digest = await in_thread(md5_of, source, limiter=self._threads)
            return {"ContentMD5": b64encode(digest).decode()}

        await self._connected()
        if self._pace is not None and not isinstance(source, BytesSource):
            source = self._pace.of_source(source)
        wanted = shapes.check_params(check)
        if "ChecksumCRC64NVME" not in wanted:
            return await send(wanted), wanted
        return await self._checks.tried(operation, wanted, send_md5, send, is_conditional=is_conditional)

    async def _stream(
        self, operation: str, params: Mapping[str, Any], source: Source, sha256: str | None
    ) -> dict[str, Any]:
        async with self._call(operation, params["Key"]) as call:
            body = UploadBody(source, threads=self._threads, moved=call.moved, sha256=sha256)
            try:
                return await call.send(Body=body, ContentLength=source.size, **params)
            except Exception:
                if body.failure is not None:
                    raise body.failure from None
                raise
            finally:
                await body.aclose()

    async def _pages(
        self, operation: str, subject: str, first: Mapping[str, Any], markers: Mapping[str, str]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Every page of a listing; ``markers`` maps what an answer says of the next page to how it is asked for."""
        params = dict(first)
        while True:
            async with self._call(operation, subject or self._bucket) as call:
                page = await call.send(**params)
            yield page
            if not page.get("IsTruncated"):
                return
            following = {asked: page[said] for said, asked in markers.items() if page.get(said)}
            if not following or following.items() <= params.items():
                raise shapes.unreadable(operation, subject, "a listing says there is more but not where")
            params |= following

    @asynccontextmanager
    async def _call(self, operation: str, subject: str, *, idle_s: float | None = None) -> AsyncIterator[Call]:
        """One request: its errors translated, and given up when nothing moves for ``idle_s`` seconds."""
        idle_s = self._idle_s if idle_s is None else idle_s
        async with self._slots:
            client = await self._connected()
            scope = anyio.CancelScope(deadline=anyio.current_time() + idle_s)
            call = Call(operation, subject, client, self._bucket, scope, idle_s)
            with self._translated(operation, subject, idle_s=idle_s):
                with scope:
                    yield call
                if scope.cancelled_caught:
                    raise TimeoutError

    async def _connected(self) -> Any:
        if self._client is None:
            async with self._opening:
                if self._closed:
                    raise Closed(f"{self.where}: the store was closed")
                if self._client is None:
                    await self._connect()
        return self._client

    async def _connect(self) -> None:
        make_client, self._wire, self._several, self._translated = await in_thread(
            _prepare, self._settings, self._threads.total_tokens, self._idle_s, self._pace
        )
        self._client = await self._exits.enter_async_context(make_client())


def _prepare(
    settings: Settings, connections: float, idle_s: float, pace: Pace | None
) -> tuple[Callable[[], AbstractAsyncContextManager[Any]], Wire | None, Several | None, Any]:
    """What makes the client, the data plane, the translation of errors. Imports aioboto3: blocks for half a second."""
    from r2d1.objects.r2_client import client_maker
    from r2d1.objects.r2_errors import redactor, translated
    from r2d1.objects.wire import Wire
    from r2d1.objects.wire_several import Several

    secrets = (settings.secret_key, settings.session_token)
    redact = redactor(settings.access_key, *(secret.reveal() for secret in secrets if secret))
    wire = Wire(settings, idle_s=idle_s, redact=redact) if settings.transport == "wire" else None
    several = Several(wire, pace) if wire is not None else None
    return client_maker(settings, connections=int(connections)), wire, several, partial(translated, redact=redact)
