"""An R2 bucket (or any S3 bucket) as an object store, through aioboto3: one request a call, bodies streamed.

Settings that R2 wants, and why: https://developers.cloudflare.com/r2/api/s3/api/ and ``r2_client.py``.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from r2d1.errors import (
    Closed,
    FormatError,
    ObjectNotFound,
    PreconditionFailed,
    RangeRefused,
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
    ObjectInfo,
    OpenUpload,
    Part,
    Sink,
    Source,
)
from r2d1.objects.r2_bodies import UploadBody, deliver, md5_of, read_whole
from r2d1.objects.r2_checks import CheckSupport
from r2d1.objects.r2_refusals import Refusal, error_for
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    from r2d1.settings import Settings

#: Seconds without a byte in either direction after which a request is given up.
IDLE_S = 60.0

#: The same for Complete: joining thousands of parts takes a store minutes, in silence.
COMPLETE_IDLE_S = 300.0

#: Bodies up to this size are sent from memory, and signed.
_SMALL = 64 << 10

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_CHECK_PARAMS = {"crc64nvme": "ChecksumCRC64NVME", "md5": "ContentMD5"}

#: What a page says of the next one, and how that is asked for.
_TOKEN = {"NextContinuationToken": "ContinuationToken"}

#: The status that belongs to the code of a key that DeleteObjects could not delete.
_DELETE_STATUS = {"AccessDenied": 403, "InternalError": 500, "SlowDown": 503, "ServiceUnavailable": 503}


class R2Store:
    """A bucket behind an S3 endpoint. Connections and threads are bounded by ``settings.concurrency``.

    Nothing is opened before the first call; ``ConfigError`` when credentials are missing.
    """

    def __init__(self, settings: Settings, *, tell: Teller, idle_s: float = IDLE_S) -> None:
        settings.require_r2()
        assert settings.bucket is not None
        self._settings = settings
        self._bucket = settings.bucket
        self._idle_s = idle_s
        self._checks = CheckSupport(tell)
        self._threads = anyio.CapacityLimiter(settings.concurrency + 4)
        self._opening = anyio.Lock()
        self._exits = AsyncExitStack()
        self._client: Any = None
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
        params = {"Key": key, **_attribute_params(attributes), **_condition_params(if_none_match, if_match)}
        is_conditional = if_none_match or if_match is not None
        answer, _ = await self._send_body(
            "PutObject", params, source, check=check, is_conditional=is_conditional, sha256=signed_sha256
        )
        return _etag(answer)

    async def get(self, key: str, *, limit: int) -> tuple[bytes, ObjectInfo]:
        async with self._call("GetObject", key) as call:
            answer = await call.send(Key=key)
            async with _reading(answer) as body:
                size = _length(call, key, answer)
                if size > limit:
                    raise FormatError(f"{key}: {size} bytes, at most {limit} are read")
                data = bytearray()
                async for chunk in body.content.iter_any():
                    call.moved()
                    data += chunk
                _require_all(call, key, len(data), size)
        return bytes(data), _info(key, size, answer)

    async def get_range(self, key: str, span: ByteRange, sink: Sink, *, if_match: str | None = None) -> ObjectInfo:
        async with self._call("GetObject", key) as call:
            params = {"IfMatch": f'"{if_match}"'} if if_match is not None else {}
            answer = await call.send(Key=key, Range=f"bytes={span.start}-{span.stop - 1}", **params)
            async with _reading(answer) as body:
                skip, total = _placed(call, key, answer, span)
                info = _info(key, total, answer)
                if if_match is not None and info.etag != if_match:
                    raise PreconditionFailed(call.operation, key, reason=f"the ETag is {info.etag}, not {if_match}")
                try:
                    came = await deliver(
                        body.content, sink, skip=skip, size=span.size, threads=self._threads, moved=call.moved
                    )
                    _require_all(call, key, came, span.size)
                except Exception:
                    call.etag = info.etag
                    raise
        return info

    async def head(self, key: str) -> ObjectInfo:
        async with self._call("HeadObject", key) as call:
            answer = await call.send(Key=key)
            return _info(key, _length(call, key, answer), answer)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        first = {"Prefix": prefix, **({"StartAfter": start_after} if start_after else {})}
        async with aclosing(self._pages("ListObjectsV2", prefix, first, _TOKEN)) as pages:
            async for page in pages:
                for entry in page.get("Contents", []):
                    yield _info(entry["Key"], int(entry["Size"]), entry)

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
        for failed in answer.get("Errors", []):
            kept = str(failed.get("Key"))
            code = str(failed.get("Code"))
            error = error_for(
                "DeleteObjects", kept, Refusal(_DELETE_STATUS.get(code, 400), code, str(failed.get("Message") or ""))
            )
            if not isinstance(error, ObjectNotFound):
                raise error

    async def create_upload(self, key: str, *, attributes: Attributes = PLAIN, check: str | None = None) -> str:
        params = {"Key": key, **_attribute_params(attributes)}
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
        is_sent = check is not None and _check_params(check) == sent
        return Part(number, _etag(answer), source.size, check if is_sent else None)

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, if_none_match: bool = False
    ) -> str:
        listed = [_part_params(part) for part in sorted(parts, key=lambda part: part.number)]
        async with self._call("CompleteMultipartUpload", key, idle_s=max(self._idle_s, COMPLETE_IDLE_S)) as call:
            answer = await call.send(
                Key=key,
                UploadId=upload_id,
                MultipartUpload={"Parts": listed},
                **_condition_params(if_none_match, None),
            )
        return _etag(answer)

    async def abort_upload(self, key: str, upload_id: str) -> None:
        try:
            async with self._call("AbortMultipartUpload", key) as call:
                await call.send(Key=key, UploadId=upload_id)
        except UploadNotFound:
            return

    async def list_parts(self, key: str, upload_id: str) -> Sequence[Part]:
        first = {"Key": key, "UploadId": upload_id}
        pages = self._pages("ListParts", key, first, {"NextPartNumberMarker": "PartNumberMarker"})
        return [_listed_part(entry) async for page in pages for entry in page.get("Parts", [])]

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
            if sha256 is None and source.size <= _SMALL:
                data = await in_thread(read_whole, source, limiter=self._threads)
                async with self._call(operation, params["Key"]) as call:
                    return await call.send(Body=data, **params, **check_params)
            return await self._stream(operation, {**params, **check_params}, source, sha256)

        async def send_md5() -> dict[str, str]:
            digest = await in_thread(md5_of, source, limiter=self._threads)
            return {"ContentMD5": b64encode(digest).decode()}

        wanted = _check_params(check)
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
                raise RemoteError(operation, subject, reason="a listing says there is more but not where")
            params |= following

    @asynccontextmanager
    async def _call(self, operation: str, subject: str, *, idle_s: float | None = None) -> AsyncIterator[_Call]:
        """One request: its errors translated, and given up when nothing moves for ``idle_s`` seconds."""
        client = await self._connected()
        idle_s = self._idle_s if idle_s is None else idle_s
        scope = anyio.CancelScope(deadline=anyio.current_time() + idle_s)
        call = _Call(operation, client, self._bucket, scope, idle_s)
        try:
            with self._translated(operation, subject, idle_s=idle_s):
                with scope:
                    yield call
                if scope.cancelled_caught:
                    raise TimeoutError
        except RemoteUnavailable as error:
            error.etag = call.etag
            raise

    async def _connected(self) -> Any:
        if self._client is None:
            async with self._opening:
                if self._closed:
                    raise Closed(f"{self.where}: the store was closed")
                if self._client is None:
                    await self._connect()
        return self._client

    async def _connect(self) -> None:
        context, self._translated = await in_thread(_prepare, self._settings)
        self._client = await self._exits.enter_async_context(context)


def _prepare(settings: Settings) -> tuple[Any, Any]:
    """The client to enter and the translation of its errors. Imports aioboto3: blocks for half a second."""
    from r2d1.objects.r2_client import open_client
    from r2d1.objects.r2_errors import redactor, translated

    secrets = (settings.secret_key, settings.session_token)
    redact = redactor(settings.access_key, *(secret.reveal() for secret in secrets if secret))
    return open_client(settings), partial(translated, redact=redact)


@dataclass(slots=True)
class _Call:
    """A request under way. ``etag`` is that of the object whose body is being read."""

    operation: str
    client: Any
    bucket: str
    scope: anyio.CancelScope
    idle_s: float
    etag: str | None = None

    async def send(self, **params: Any) -> dict[str, Any]:
        method = getattr(self.client, _CAPITAL.sub("_", self.operation).lower())
        return await method(Bucket=self.bucket, **params)  # type: ignore[no-any-return]

    def moved(self) -> None:
        """Bytes moved: the idle time begins anew."""
        self.scope.deadline = anyio.current_time() + self.idle_s

    def unreadable(self, key: str, reason: str) -> RemoteError:
        return RemoteError(
            self.operation, key, reason=reason, hint="The store, or a proxy before it, breaks S3's rules"
        )


@asynccontextmanager
async def _reading(answer: dict[str, Any]) -> AsyncIterator[Any]:
    """The body of an answer; its connection is kept for the next request only when all was read."""
    body = answer["Body"]
    try:
        yield body
    except BaseException:
        body.close()
        raise
    body.release()


def _placed(call: _Call, key: str, answer: dict[str, Any], span: ByteRange) -> tuple[int, int]:
    """``(bytes to pass over, size of the object)`` of the answer to a ranged GET.

    206 carries Content-Range. Some stores send 200 with the right bytes and Content-Range, some ignore the
    range and send 200 with everything.
    """
    match = _CONTENT_RANGE.fullmatch(answer.get("ContentRange") or "")
    if match is None and answer["ResponseMetadata"]["HTTPStatusCode"] == 206:
        raise call.unreadable(key, "a 206 answer without a readable Content-Range")
    start, stop, size = (0, 0, _length(call, key, answer)) if match is None else map(int, match.groups())
    if size < span.stop:
        raise RangeRefused(
            call.operation, key, reason=f"bytes {span.start} to {span.stop} were asked for, the object has {size}"
        )
    if match is not None and (start, stop + 1) != (span.start, span.stop):
        raise call.unreadable(key, f"bytes {span.start} to {span.stop} were asked for, {start} to {stop + 1} came")
    return (span.start if match is None else 0), size


def _require_all(call: _Call, key: str, came: int, expected: int) -> None:
    if came != expected:
        raise RemoteUnavailable(call.operation, key, reason=f"the answer ended after {came} of {expected} bytes")


def _length(call: _Call, key: str, answer: dict[str, Any]) -> int:
    if answer.get("ContentLength") is None:
        raise call.unreadable(key, "an answer without Content-Length")
    return int(answer["ContentLength"])


def _info(key: str, size: int, answer: Mapping[str, Any]) -> ObjectInfo:
    modified = answer.get("LastModified")
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return ObjectInfo(key, size, _etag(answer), modified.timestamp() if modified else 0.0, metadata)


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag") or "").removeprefix("W/").strip('"')


def _attribute_params(attributes: Attributes) -> dict[str, Any]:
    params = {
        "ContentType": attributes.content_type,
        "CacheControl": attributes.cache_control,
        "Metadata": dict(attributes.metadata),
    }
    return {name: value for name, value in params.items() if value}


def _condition_params(if_none_match: bool, if_match: str | None) -> dict[str, str]:
    params = {"IfNoneMatch": "*"} if if_none_match else {}
    return params if if_match is None else {**params, "IfMatch": f'"{if_match}"'}


def _check_params(check: BodyCheck | None) -> dict[str, str]:
    return {} if check is None else {_CHECK_PARAMS[check.algorithm]: check.value}


def _part_params(part: Part) -> dict[str, Any]:
    crc = _check_params(part.check) if part.check and part.check.algorithm == "crc64nvme" else {}
    return {"PartNumber": part.number, "ETag": f'"{part.etag}"', **crc}


def _listed_part(entry: Mapping[str, Any]) -> Part:
    crc = entry.get("ChecksumCRC64NVME")
    check = BodyCheck("crc64nvme", crc) if crc else None
    return Part(int(entry["PartNumber"]), _etag(entry), int(entry["Size"]), check)
