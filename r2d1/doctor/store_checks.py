"""What a bucket must do for r2d1: write, tell, give, refuse by condition, join parts, forget. On temporary objects."""

from __future__ import annotations

import hashlib
import math
import secrets
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

import anyio

from r2d1.doctor.finding import Finding, Status, failed
from r2d1.errors import (
    NotSupported,
    ObjectNotFound,
    PreconditionFailed,
    R2D1Error,
    RemoteError,
    RemoteUnavailable,
    UploadNotFound,
)
from r2d1.events import Teller
from r2d1.objects import Attributes, ByteRange, BytesSource, ObjectStore
from r2d1.setting_rules import MIN_PART_SIZE
from r2d1.settings import Settings

#: Where the doctor's temporary objects lie, so that no rule of the bucket need touch anything else.
PREFIX = "_doctor"
#: Servers refuse requests whose date is off by more than 15 minutes; well before that a clock wants setting.
_SKEW_NOTED_S, _SKEW_FAILED_S = 60.0, 300.0
_CLEANUP_WITHIN_S = 30.0
#: R2 takes one write a second for a key, and answers 429 to what comes sooner.
WRITE_INTERVAL_S = 1.1
_LATENCY_SAMPLES = 5
_UNSAFE = "Two couriers on one job are not safe on this store"


@dataclass(slots=True)
class Patient:
    """The bucket under examination and the temporary objects in it."""

    store: ObjectStore
    settings: Settings
    tell: Teller
    write_interval_s: float = WRITE_INTERVAL_S
    folder: str = field(default_factory=lambda: f"{PREFIX}/{secrets.token_hex(8)}")
    body: bytes = field(default_factory=lambda: secrets.token_bytes(64 << 10))
    is_dirty: bool = False
    skew_s: float = 0.0
    uploads: list[tuple[str, str]] = field(default_factory=list)
    up_bytes_per_s: float = 0.0
    down_bytes_per_s: float = 0.0
    written_at: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def writing(self, key: str) -> AsyncIterator[None]:
        """Around each write of a key: it begins a full interval after the one before has ended, however that did."""
        await anyio.sleep_until(self.written_at.get(key, -math.inf) + self.write_interval_s)
        try:
            yield
        finally:
            self.written_at[key] = anyio.current_time()

    @property
    def key(self) -> str:
        return f"{self.folder}/object"

    @property
    def joined_key(self) -> str:
        return f"{self.folder}/joined"

    @property
    def aborted_key(self) -> str:
        return f"{self.folder}/aborted"


Check = Callable[[Patient], Awaitable[Finding]]


class _Wrong(R2D1Error):
    """The store answered, and what it said is not right."""


async def check_store(patient: Patient, public: Callable[[], Awaitable[Sequence[Finding]]]) -> list[Finding]:
    """All checks of a bucket; ``public`` is called while the temporary object is there. Cleans up whatever happens."""
    findings: list[Finding] = []
    try:
        findings.append(await _run("put", _put, patient))
        is_written = findings[0].status is not Status.FAILED
        for name, check in _CHECKS if is_written else ():
            findings.append(await _run(name, check, patient))
        if is_written:
            findings[3:3] = await public()
            findings += [await _run(name, check, patient) for name, check in _AFTERWARDS]
        else:
            findings.append(Finding("bucket", Status.SKIPPED, "all other checks, as nothing can be written"))
    finally:
        left = await _clean_up(patient)
    return [*findings, left] if left else findings


async def _run(name: str, check: Check, patient: Patient) -> Finding:
    try:
        return await check(patient)
    except RemoteError as error:
        return failed(name, str(error), error.hint)
    except R2D1Error as error:
        return failed(name, str(error))


async def _put(patient: Patient) -> Finding:
    sha256 = hashlib.sha256(patient.body).hexdigest()
    attributes = Attributes("application/octet-stream", "no-cache", {"sha256": sha256})
    source = BytesSource(patient.body)
    patient.is_dirty = True
    began = time.time()
    try:
        async with patient.writing(patient.key):
            await patient.store.put(
                patient.key, source, attributes=attributes, if_none_match=True, signed_sha256=sha256
            )
    except NotSupported as error:
        async with patient.writing(patient.key):
            await patient.store.put(patient.key, source, attributes=attributes, signed_sha256=sha256)
        return Finding("put", Status.NOTE, f"works, but not with If-None-Match: {error}")
    except RemoteError as error:
        patient.is_dirty = error.ambiguous
        raise
    took = time.time() - began
    info = await patient.store.head(patient.key)
    # A Last-Modified header has whole seconds: half of one is its mean error.
    patient.skew_s = info.modified + (0.5 if info.modified.is_integer() else 0.0) - (began + took / 2)
    return Finding("put", Status.OK, f"{patient.store.where} took {patient.key} with If-None-Match: *")


async def _head(patient: Patient) -> Finding:
    info = await patient.store.head(patient.key)
    if info.size != len(patient.body):
        raise _Wrong(f"the size is {info.size}, not {len(patient.body)}")
    if info.metadata.get("sha256") != hashlib.sha256(patient.body).hexdigest():
        raise _Wrong("x-amz-meta-sha256 did not come back as it was sent")
    return Finding("head", Status.OK, "size and sha256 metadata are right")


async def _range(patient: Patient) -> Finding:
    data = await _bytes_of(patient, patient.key, ByteRange(1000, 3000))
    if data != patient.body[1000:3000]:
        raise _Wrong("a signed range came with other bytes than were written")
    return Finding("range", Status.OK, "a signed range has the right bytes")


async def _list(patient: Patient) -> Finding:
    async with aclosing(patient.store.list(f"{patient.folder}/")) as infos:
        found = [info.key async for info in infos]
    if patient.key not in found:
        raise _Wrong(f"a listing of {patient.folder}/ does not show what was just written")
    return Finding("list", Status.OK, "the keys below a prefix can be listed")


async def _refuse_existing(patient: Patient) -> Finding:
    """A second create must be refused. It is sent with the same bytes, so that a store that takes it loses nothing."""
    if await _is_refused(patient, if_none_match=True):
        return Finding("If-None-Match", Status.OK, "a key that exists is not written again")
    return failed("If-None-Match", f"{patient.store.where} ignores it: a key that exists was written again", _UNSAFE)


async def _refuse_other_etag(patient: Patient) -> Finding:
    if not await _is_refused(patient, if_match="0" * 32):
        return failed("If-Match", f"{patient.store.where} ignores it: an object of another ETag was written", _UNSAFE)
    info = await patient.store.head(patient.key)
    if await _is_refused(patient, if_match=info.etag):
        raise _Wrong("the store refuses If-Match with the object's own ETag")
    return Finding("If-Match", Status.OK, "refused for another ETag, taken for the object's own")


async def _is_refused(patient: Patient, *, if_none_match: bool = False, if_match: str | None = None) -> bool:
    """Whether a conditional PUT of the same bytes does not pass. ``_Wrong`` when conditions are not implemented."""
    sha256 = hashlib.sha256(patient.body).hexdigest()
    attributes = Attributes("application/octet-stream", "no-cache", {"sha256": sha256})
    source = BytesSource(patient.body)
    try:
        async with patient.writing(patient.key):
            await patient.store.put(
                patient.key, source, attributes=attributes, if_none_match=if_none_match, if_match=if_match
            )
    except PreconditionFailed:
        return True
    except NotSupported as error:
        raise _Wrong(f"conditional writes are not supported ({error.status}). {_UNSAFE}") from error
    except RemoteUnavailable:
        raise
    except RemoteError as error:
        if error.status in (304, 409):
            raise _Wrong(
                f"a condition that does not hold is answered with {error.status}, not 412: couriers will report it"
                " as a failure"
            ) from error
        raise
    return False


async def _multipart(patient: Patient) -> Finding:
    """Two parts, joined and read back; the first is of the smallest size that R2 takes."""
    first, second = secrets.token_bytes(MIN_PART_SIZE), secrets.token_bytes(1000)
    upload_id = await _begun(patient, patient.joined_key)
    began = time.monotonic()
    parts = [await patient.store.put_part(patient.joined_key, upload_id, 1, BytesSource(first))]
    patient.up_bytes_per_s = len(first) / max(time.monotonic() - began, 1e-6)
    parts.append(await patient.store.put_part(patient.joined_key, upload_id, 2, BytesSource(second)))
    async with patient.writing(patient.joined_key):
        await patient.store.complete_upload(patient.joined_key, upload_id, parts)
    patient.uploads.remove((patient.joined_key, upload_id))
    began = time.monotonic()
    data = await _bytes_of(patient, patient.joined_key, ByteRange(0, len(first) + len(second)))
    patient.down_bytes_per_s = len(data) / max(time.monotonic() - began, 1e-6)
    if data != first + second:
        raise _Wrong("an object joined from two parts came back with other bytes")
    return Finding("multipart", Status.OK, "two parts were joined and read back")


async def _conditional_complete(patient: Patient) -> Finding:
    """Whether Complete honours If-None-Match; r2d1 does not rely on it, others' tools may."""
    upload_id = await _begun(patient, patient.joined_key)
    part = await patient.store.put_part(patient.joined_key, upload_id, 1, BytesSource(b"other"))
    try:
        async with patient.writing(patient.joined_key):
            await patient.store.complete_upload(patient.joined_key, upload_id, [part], if_none_match=True)
    except PreconditionFailed:
        return Finding("multipart If-None-Match", Status.OK, "a key that exists is not replaced by joined parts")
    except RemoteError as error:
        if error.status in (304, 409, 501):
            return Finding("multipart If-None-Match", Status.NOTE, f"not supported ({error.status}); not needed here")
        raise
    patient.uploads.remove((patient.joined_key, upload_id))
    return Finding(
        "multipart If-None-Match", Status.NOTE, "not supported: it is ignored when parts are joined; not needed here"
    )


async def _abort(patient: Patient) -> Finding:
    key = patient.aborted_key
    upload_id = await _begun(patient, key)
    await patient.store.put_part(key, upload_id, 1, BytesSource(b"part"))
    await patient.store.abort_upload(key, upload_id)
    patient.uploads.remove((key, upload_id))
    try:
        left = await patient.store.list_parts(key, upload_id)
    except UploadNotFound:
        return Finding("abort", Status.OK, "an upload was given up, and nothing is left of it")
    except NotSupported:
        return Finding("abort", Status.OK, "an upload was given up (what is left of it cannot be listed here)")
    if left:
        raise _Wrong("an upload that was aborted still has its parts")
    return Finding("abort", Status.OK, "an upload was given up, and nothing is left of it")


async def _begun(patient: Patient, key: str) -> str:
    upload_id = await patient.store.create_upload(key)
    patient.uploads.append((key, upload_id))
    return upload_id


async def _token(patient: Patient) -> Finding:
    """Whether open uploads can be listed: a token for objects alone cannot, and it need not."""
    try:
        await patient.store.list_uploads(f"{patient.folder}/")
    except RemoteError as error:
        if error.status not in (401, 403, 501):
            raise
        text = "objects only: open uploads cannot be listed, so those of dead machines wait for the bucket's own rule"
        return Finding("token", Status.NOTE, text)
    return Finding("token", Status.OK, "may read and write objects, and list what is below a prefix")


async def _delete(patient: Patient) -> Finding:
    async with patient.writing(patient.key):
        await patient.store.delete([patient.key])
    try:
        await patient.store.head(patient.key)
    except ObjectNotFound:
        return Finding("delete", Status.OK, "the temporary object is gone")
    raise _Wrong(f"{patient.key} is still there after it was deleted")


async def _clock(patient: Patient) -> Finding:
    off = abs(patient.skew_s)
    way = "behind" if patient.skew_s > 0 else "ahead of"
    text = f"{off:.0f} s {way} the store's" if off >= 1.5 else "within a second or two of the store's"
    if off > _SKEW_FAILED_S:
        return failed("clock", text, "Set this machine's clock: at 15 minutes every request is refused")
    return Finding("clock", Status.NOTE if off > _SKEW_NOTED_S else Status.OK, text)


async def _speed(patient: Patient) -> Finding:
    """What a small request takes, and how fast one stream is: r2d1 runs several."""
    samples: list[float] = []
    for _ in range(_LATENCY_SAMPLES):
        began = time.monotonic()
        await patient.store.head(patient.key)
        samples.append(time.monotonic() - began)
    rates = f"one stream up {_rate(patient.up_bytes_per_s)}, down {_rate(patient.down_bytes_per_s)}"
    return Finding("speed", Status.NOTE, f"a small request takes {1000 * statistics.median(samples):.1f} ms; {rates}")


async def _place(patient: Patient) -> Finding:
    settings = patient.settings
    if settings.store_dir is not None:
        return Finding("place", Status.NOTE, f"a directory stands in for the bucket: {settings.store_dir}")
    where = f"jurisdiction {settings.jurisdiction}" if settings.jurisdiction else "no jurisdiction"
    text = f"{settings.r2_endpoint} ({where})"
    return Finding(
        "place", Status.NOTE, f"{text}; a bucket of the jurisdiction eu or fedramp is seen at its own endpoint only"
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 2**20:.1f} MiB/s" if bytes_per_s else "not measured"


class _Gathered:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self.data += block


async def _bytes_of(patient: Patient, key: str, span: ByteRange) -> bytes:
    sink = _Gathered()
    await patient.store.get_range(key, span, sink)
    return bytes(sink.data)


async def _clean_up(patient: Patient) -> Finding | None:
    """Remove everything, also while the diagnosis is being cancelled; a finding when something could not be."""
    if not patient.is_dirty:
        return None
    problems = [f"no end within {_CLEANUP_WITHIN_S:g} s"]
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLEANUP_WITHIN_S):
        problems = await _remove_all(patient)
    if not problems:
        return None
    text = f"what the doctor wrote below {patient.folder}/ could not be removed: {'; '.join(problems)}"
    return failed("cleanup", text, "Delete it by hand")


async def _remove_all(patient: Patient) -> list[str]:
    problems: list[str] = []
    for key, upload_id in list(patient.uploads):
        try:
            await patient.store.abort_upload(key, upload_id)
        except R2D1Error as error:
            problems.append(f"an upload to {key}: {error}")
    keys = [patient.key, patient.joined_key, patient.aborted_key]
    try:
        await patient.store.delete(keys)
    except R2D1Error as error:
        problems.append(str(error))
    return problems


_CHECKS: tuple[tuple[str, Check], ...] = (("head", _head), ("range", _range))
_AFTERWARDS: tuple[tuple[str, Check], ...] = (
    ("list", _list),
    ("If-None-Match", _refuse_existing),
    ("multipart", _multipart),  # between two writes of the other object, which have to wait anyhow
    ("If-Match", _refuse_other_etag),
    ("multipart If-None-Match", _conditional_complete),
    ("abort", _abort),
    ("token", _token),
    ("clock", _clock),
    ("speed", _speed),
    ("place", _place),
    ("delete", _delete),
)
