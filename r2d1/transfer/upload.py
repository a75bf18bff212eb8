"""Files on their way up: hashed slice by slice, sent as parts in parallel, joined, and never as a blend."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import anyio

from r2d1.checkpoint import Identity, LocalFile
from r2d1.errors import NotSupported, ObjectNotFound, RemoteError, RemoteUnavailable, UploadNotFound
from r2d1.manifest import FileEntry, plan_part_size
from r2d1.objects import BodyCheck, ByteRange, Part
from r2d1.tasks import acquired, in_thread
from r2d1.transfer.files import HELD, SliceHashes, SliceSource, open_unchanged, read_held
from r2d1.transfer.flow import Turn, spread
from r2d1.transfer.lane import Lane
from r2d1.transfer.plan import expected_etag, plan_ranges

Progress = Callable[[str, int], None]

#: How often a file is begun anew because its upload vanished or its Complete could not be settled.
_FRESH_STARTS = 3

#: How often an upload is completed whose Complete failed and left no object.
_COMPLETES = 4


@dataclass(frozen=True, slots=True)
class SentPart:
    """A part the store has, and the digest of the bytes it was made from."""

    part: Part
    digest: str


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A multipart upload under way, as the journal remembers it; its part size never changes."""

    key: str
    upload_id: str
    part_size: int
    parts: tuple[SentPart, ...] = ()


class UploadLog(Protocol):
    """What must outlive the process: which objects a ship has sent, and which uploads it has begun."""

    async def sent_file(self, file: LocalFile) -> FileEntry | None:
        """The entry of a file this ship has sent already, from bytes that are still there unchanged."""

    async def record_sent(self, sent: Sequence[tuple[LocalFile, FileEntry]]) -> None:
        """Remember files, and forget their uploads in the same stroke: a crash leaves one or the other."""

    async def open_file(self, file: LocalFile) -> OpenFile | None:
        """The upload begun for this file in this state, or None."""

    async def record_open(self, file: LocalFile, upload: OpenFile) -> None: ...

    async def record_part(self, key: str, sent: SentPart) -> None: ...

    async def forget_open(self, key: str) -> None: ...


async def upload_file(
    lane: Lane, log: UploadLog, *, folder: Path, prefix: str, file: LocalFile, progress: Progress
) -> FileEntry:
    """Send one file of a ship and return its manifest entry, whose digests are those of the bytes sent.

    Raises ``Superseded`` when the file changes meanwhile, ``RemoteError`` when the store refuses for good.
    """
    if (entry := await log.sent_file(file)) is not None:
        return entry
    part_size = plan_part_size(file.identity.size, lane.part_size)
    if file.identity.size > part_size:
        async with _opened(folder / file.path, file.identity, lane) as fd:
            entry = await _send_parts(_Sending(lane, log, fd, f"{prefix}/{file.key}", file, progress), part_size)
            await in_thread(_check_unchanged, fd, folder / file.path, file.identity, limiter=lane.disk)
    else:
        if (open_ := await log.open_file(file)) is not None:  # begun when parts were smaller
            await lane.store.abort_upload(open_.key, open_.upload_id)
            await log.forget_open(open_.key)
        send = _send_held if file.identity.size <= HELD else _send_whole
        entry = await send(lane, folder, prefix, file, part_size)
        progress(file.path, entry.size)
    await log.record_sent([(file, entry)])
    return entry


def _opened(path: Path, identity: Identity, lane: Lane) -> AbstractAsyncContextManager[int]:
    return acquired(open_unchanged, os.close, path, identity, limiter=lane.disk)


def _check_unchanged(fd: int, path: Path, expected: Identity) -> None:
    if not expected.is_like(Identity.of(os.fstat(fd))):
        os.close(open_unchanged(path, expected))


def entry_of(file: LocalFile, digest: str, etag: str, part_size: int, parts: tuple[str, ...] = ()) -> FileEntry:
    """A file's entry of the manifest; ``digest`` and ``parts`` are hex digests."""
    key = None if file.key == file.path else file.key
    return FileEntry(file.path, file.identity.size, f"blake3:{digest}", etag, part_size, parts, key)


async def _send_whole(lane: Lane, folder: Path, prefix: str, file: LocalFile, part_size: int) -> FileEntry:
    span = ByteRange(0, file.identity.size)
    async with _opened(folder / file.path, file.identity, lane) as fd:
        async with lane.flow.turn() as turn:
            hashes = SliceHashes(fd, file.path, lane.upload_check)
            digest, check = await in_thread(hashes.next_only, span, limiter=lane.disk)
            source = SliceSource(fd, span, digest, file.path, turn.moved, check is not None and lane.verifies_checks)
            etag = await lane.store.put(f"{prefix}/{file.key}", source, check=check)
        await in_thread(_check_unchanged, fd, folder / file.path, file.identity, limiter=lane.disk)
    return entry_of(file, digest, etag, part_size)


async def _send_held(lane: Lane, folder: Path, prefix: str, file: LocalFile, part_size: int) -> FileEntry:
    """A small file is read once, and sent from memory."""
    async with lane.flow.turn() as turn:
        held = await in_thread(read_held, folder / file.path, file, lane.upload_check, limiter=lane.disk)
        etag = await lane.store.put(f"{prefix}/{file.key}", held.source(turn.moved), check=held.check)
    return entry_of(file, held.digest, etag, part_size)


@dataclass(frozen=True, slots=True)
class _Sending:
    """One file being sent in parts."""

    lane: Lane
    log: UploadLog
    fd: int
    key: str
    file: LocalFile
    progress: Progress


@dataclass(frozen=True, slots=True)
class _Slice:
    """A part that is still to be sent."""

    number: int
    span: ByteRange
    digest: str
    check: BodyCheck | None


async def _send_parts(job: _Sending, part_size: int) -> FileEntry:
    for fresh in range(_FRESH_STARTS):
        upload = await _begin(job, part_size)
        try:
            sent, digest = await _send_missing(job, upload)
            etag = await _complete(job, upload, [one.part for one in sent])
        except UploadNotFound:
            await job.log.forget_open(job.key)
            if fresh == _FRESH_STARTS - 1:
                raise
        except RemoteError as error:
            if not error.transient:
                await _give_up(job, upload)
            raise
        else:
            return entry_of(job.file, digest, etag, upload.part_size, tuple(one.digest for one in sent))
    raise AssertionError("unreachable")


async def _begin(job: _Sending, part_size: int) -> OpenFile:
    """The upload to go on with: the one the journal knows, reduced to the parts the store still has, or a new one."""
    known = await job.log.open_file(job.file)
    if known is not None and (there := await _still_there(job, known)) is not None:
        return there
    check = job.lane.upload_check if job.lane.upload_check != "none" else None
    upload_id = await job.lane.store.create_upload(job.key, check=check)
    upload = OpenFile(job.key, upload_id, part_size)
    await job.log.record_open(job.file, upload)
    return upload


async def _still_there(job: _Sending, known: OpenFile) -> OpenFile | None:
    try:
        listed = {part.number: part for part in await job.lane.store.list_parts(known.key, known.upload_id)}
    except NotSupported:
        return known
    except UploadNotFound:
        if known.parts and await _completed_all_the_same(job, [one.part for one in known.parts]) is not None:
            return known  # the process died between Complete and its record
        await job.log.forget_open(known.key)
        return None
    kept = tuple(one for one in known.parts if _is_same(listed.get(one.part.number), one.part))
    return replace(known, parts=kept)


def _is_same(listed: Part | None, mine: Part) -> bool:
    return listed is not None and (listed.etag, listed.size) == (mine.etag, mine.size)


async def _send_missing(job: _Sending, upload: OpenFile) -> tuple[list[SentPart], str]:
    """Send the parts the store lacks, several at once; slices are hashed in the order of the file."""
    have = {one.part.number: one for one in upload.parts}
    sent: dict[int, SentPart] = {}
    hashes = SliceHashes(job.fd, job.file.path, job.lane.upload_check)
    spans = enumerate(plan_ranges(job.file.identity.size, upload.part_size), start=1)

    async def next_missing() -> _Slice | None:
        for number, span in spans:
            digest, check = await in_thread(hashes.next_part, span, limiter=job.lane.disk)
            known = have.get(number)
            if known is None or known.digest != digest:
                return _Slice(number, span, digest, check)
            sent[number] = known
        return None

    async def send(turn: Turn, piece: _Slice) -> None:
        is_verified = piece.check is not None and job.lane.verifies_checks
        source = SliceSource(job.fd, piece.span, piece.digest, job.file.path, turn.moved, is_verified)
        part = await job.lane.store.put_part(job.key, upload.upload_id, piece.number, source, check=piece.check)
        job.lane.verifies_checks |= part.verified
        sent[piece.number] = SentPart(part, piece.digest)
        await job.log.record_part(job.key, sent[piece.number])
        job.progress(job.file.path, source.size)

    await spread(job.lane.flow, next_missing, send)
    return [sent[number] for number in sorted(sent)], hashes.whole()


async def _complete(job: _Sending, upload: OpenFile, parts: list[Part]) -> str:
    """Join the parts. A lost reply is settled by looking at the object: it is ours if size and ETag are right.

    Where there is none, the store failed before it joined anything: the parts still lie there, and it is asked again.
    """
    for left in reversed(range(_COMPLETES)):
        try:
            etag: str | None = await _etag_kept(
                job, await job.lane.store.complete_upload(job.key, upload.upload_id, parts)
            )
        except (RemoteUnavailable, UploadNotFound) as error:
            is_gone = isinstance(error, UploadNotFound)
            if not is_gone and not error.ambiguous:
                raise
            etag = await _completed_all_the_same(job, parts)
            if etag is None and is_gone:
                raise UploadNotFound(
                    error.operation, error.subject, reason=f"the upload is gone and no object came of it ({error})"
                ) from error
            if etag is None and not left:
                raise  # the journal keeps upload and parts for the next time
        if etag is not None:
            return etag
    raise AssertionError("unreachable")


async def _etag_kept(job: _Sending, told: str) -> str:
    """The ETag that listings will show. Some stores tell another at Complete, so the first one is looked at."""
    if job.lane.keeps_told_etags:
        return told
    kept = (await job.lane.store.head(job.key)).etag
    job.lane.keeps_told_etags = kept == told
    return kept


async def _completed_all_the_same(job: _Sending, parts: list[Part]) -> str | None:
    try:
        info = await job.lane.store.head(job.key)
    except ObjectNotFound:
        return None
    is_ours = info.size == job.file.identity.size and info.etag == expected_etag(parts)
    return info.etag if is_ours else None


async def _give_up(job: _Sending, upload: OpenFile) -> None:
    """Abort an upload that was refused for good, so that nothing of ours stays open in the bucket."""
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 10):
        try:
            await job.lane.store.abort_upload(upload.key, upload.upload_id)
        except RemoteError as error:
            job.lane.tell.notice("warning", f"an upload could not be aborted; the bucket does so after 7 days: {error}")
        else:
            await job.log.forget_open(upload.key)
