"""Files on their way down: ranges in parallel, each checked against its digest, wrong ones fetched again alone."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from r2d1 import keys
from r2d1.digest import Hasher, new_hasher
from r2d1.errors import IntegrityError, UnsafeDestination
from r2d1.objects import ByteRange
from r2d1.placing import disk_errors
from r2d1.tasks import acquired, in_thread
from r2d1.transfer.files import HELD, MAY_PASS, HeldSink, SliceSink, Staged, hash_span
from r2d1.transfer.flow import Turn, spread
from r2d1.transfer.lane import Lane
from r2d1.transfer.plan import plan_ranges

S = TypeVar("S", SliceSink, HeldSink)
Progress = Callable[[str, int], None]

#: How often one slice is fetched before its damage is called permanent.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to fetch. ``digests`` are the hex digests of its slices, or None when nothing is known of its bytes."""

    path: str
    key: str
    size: int
    etag: str | None
    part_size: int
    algorithm: str | None = None
    digests: tuple[str, ...] | None = None

    def slices(self) -> list[tuple[ByteRange, str | None]]:
        spans = plan_ranges(self.size, self.part_size)
        digests = self.digests if self.digests is not None and spans else [None] * len(spans)
        return list(zip(spans, digests, strict=True))


async def fetch_file(lane: Lane, wanted: Wanted, target: Path, progress: Progress, *, is_staged: bool = True) -> int:
    """Fetch one file into ``target``, keeping slices that are there and right; returns the bytes fetched.

    ``target``'s folder must exist and be ours; ``is_staged``: a part of the file may be there already.
    Raises ``IntegrityError`` naming expected and actual digest when a slice stays wrong, ``PreconditionFailed``
    when the object's ETag is not ``wanted.etag``, and what ``placing.disk_errors`` says of the disk, naming
    ``target``; what has been written is there for the next call.
    """
    with _disk_errors(wanted, target):
        return await _fetch_file(lane, wanted, target, progress, is_staged=is_staged)


def write_small(wanted: Wanted, target: Path, data: bytes) -> None:
    """Put a small file that came whole and right where ``fetch_file`` would have put it. Blocks; raises like that."""
    with _disk_errors(wanted, target):
        _write_staged(target, data)


def _disk_errors(wanted: Wanted, target: Path) -> AbstractContextManager[None]:
    return disk_errors(f"pulling {keys.shown(wanted.key)} into {target}")


async def _fetch_file(lane: Lane, wanted: Wanted, target: Path, progress: Progress, *, is_staged: bool) -> int:
    if wanted.size == 0:
        await lane.store.head(wanted.key)  # no range can be asked of an empty object, but it must be there
    if 0 < wanted.size <= min(HELD, wanted.part_size) and not is_staged:
        return await _fetch_held(lane, wanted, target, progress)
    async with _staged(target, wanted.size, lane) as (file, is_new):
        todo = wanted.slices()
        if not is_new and wanted.digests is not None:
            todo = await _missing(lane, file.fd, wanted, todo, progress)
        fetched = 0

        left = iter(todo)

        async def following() -> tuple[ByteRange, str | None] | None:
            return next(left, None)

        async def fetch(turn: Turn, piece: tuple[ByteRange, str | None]) -> None:
            nonlocal fetched
            await _fetch_slice(lane, turn, file, wanted, *piece)
            fetched += piece[0].size
            progress(wanted.path, piece[0].size)

        await spread(lane.flow, following, fetch)
        await in_thread(os.fsync, file.fd, limiter=lane.disk)
    return fetched


async def _fetch_held(lane: Lane, wanted: Wanted, target: Path, progress: Progress) -> int:
    """A small file comes into memory and is written once it is right."""
    ((span, digest),) = wanted.slices()
    async with lane.flow.turn() as turn:
        data = await _fetch_right(lane, wanted, span, digest, lambda hasher: HeldSink(hasher, turn.moved))
        await in_thread(_write_staged, target, data.content(), limiter=lane.disk)
    progress(wanted.path, wanted.size)
    return wanted.size


def _write_staged(target: Path, data: bytes) -> None:
    fd = _opened_for(target, os.O_WRONLY | os.O_TRUNC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


@asynccontextmanager
async def _staged(target: Path, size: int, lane: Lane) -> AsyncIterator[tuple[Staged, bool]]:
    opening = acquired(_open_staged, lambda opened: os.close(opened[0]), target, size, limiter=lane.disk)
    async with opening as (fd, is_new):
        yield Staged(fd), is_new


def _opened_for(target: Path, mode: int) -> int:
    try:
        return os.open(target, mode | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as exc:
        if exc.errno in (*MAY_PASS, errno.ENOSPC, errno.EDQUOT):
            raise
        raise UnsafeDestination(f"{target}: cannot be staged here: {exc.strerror}") from exc


def _open_staged(target: Path, size: int) -> tuple[int, bool]:
    fd = _opened_for(target, os.O_RDWR)
    try:
        was = os.fstat(fd).st_size
        if was != size:
            os.ftruncate(fd, size)
    except BaseException:  # a disk may refuse the size; nobody else knows of the file yet
        os.close(fd)
        raise
    return fd, was == 0


async def _missing(
    lane: Lane, fd: int, wanted: Wanted, slices: Sequence[tuple[ByteRange, str | None]], progress: Progress
) -> list[tuple[ByteRange, str | None]]:
    """The slices that an interrupted pull left wrong or empty."""
    missing = []
    for span, digest in slices:
        hasher = new_hasher(wanted.algorithm or "")
        if await in_thread(hash_span, fd, span, hasher, wanted.path, limiter=lane.disk) == digest:
            progress(wanted.path, span.size)
        else:
            missing.append((span, digest))
    return missing


async def _fetch_slice(
    lane: Lane, turn: Turn, file: Staged, wanted: Wanted, span: ByteRange, digest: str | None
) -> None:
    refusals: list[OSError] = []
    try:
        await _fetch_right(
            lane, wanted, span, digest, lambda hasher: _DiskSink(file, span, hasher, turn.moved, refusals)
        )
    except Exception:
        if refusals:
            raise refusals[0] from None  # a store on a disk of its own may have taken it for its own
        raise


class _DiskSink(SliceSink):
    """A sink that puts down what its disk refused, past whoever else handles the error."""

    def __init__(
        self, file: Staged, span: ByteRange, hasher: Hasher, moved: Callable[[int], None], refusals: list[OSError]
    ) -> None:
        super().__init__(file, span, hasher, moved)
        self._refusals = refusals

    def write(self, block: bytes | bytearray | memoryview) -> None:
        try:
            super().write(block)
        except OSError as exc:
            self._refusals.append(exc)
            raise


async def _fetch_right(
    lane: Lane, wanted: Wanted, span: ByteRange, digest: str | None, new_sink: Callable[[Hasher], S]
) -> S:
    """Fetch a slice into a new sink, until its digest is right."""
    got = ""
    for _ in range(_TRIES):
        sink = new_sink(new_hasher(wanted.algorithm or "blake3"))
        await lane.store.get_range(wanted.key, span, sink, if_match=wanted.etag)
        got = sink.hexdigest()
        if digest is None or got == digest:
            return sink
        lane.tell.notice(
            "warning", f"{keys.shown(wanted.key)}: bytes {span.start}-{span.stop} arrived damaged; fetching them again"
        )
    raise IntegrityError(
        f"{keys.shown(wanted.path)}: bytes {span.start} to {span.stop} are damaged in the bucket: "
        f"expected {wanted.algorithm}:{digest}, got {wanted.algorithm}:{got} in {_TRIES} tries "
        f"(object {keys.shown(wanted.key)}). `r2d1 rm` it and ship it again, or pull another one by name"
    )
