"""Small files in rows: one turn and one worker thread for a row of them, both ways.

What does not go well at once goes on by itself, file by file, with retries and with words for what was wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from r2d1.checkpoint import LocalFile
from r2d1.digest import new_hasher
from r2d1.manifest import FileEntry
from r2d1.objects import BodyCheck, SmallGet, SmallPut
from r2d1.transfer.download import Wanted, fetch_file, write_small
from r2d1.transfer.files import HELD, Held, read_held
from r2d1.transfer.lane import Lane
from r2d1.transfer.upload import Progress, UploadLog, entry_of, upload_file

T = TypeVar("T")

#: Most files of a row, and most bytes: as many as a turn may hold in memory.
_MOST = 16
_MOST_BYTES = HELD

#: There are to be so many rows at least: with fewer, some connections would idle while others have a row to send.
_LEAST_ROWS = 32


def _rows(items: Sequence[T], size_of: Callable[[T], int], is_small: Callable[[T], bool]) -> Iterator[list[T]]:
    most = max(1, min(_MOST, sum(map(is_small, items)) // _LEAST_ROWS))
    row: list[T] = []
    left = _MOST_BYTES
    for item in items:
        if not is_small(item):
            yield [item]
            continue
        if row and (len(row) == most or size_of(item) > left):
            yield row
            row, left = [], _MOST_BYTES
        row.append(item)
        left -= size_of(item)
    if row:
        yield row


def rows_up(files: Sequence[LocalFile], part_size: int) -> Iterator[list[LocalFile]]:
    """Files to be sent, for ``upload_files``: in their order, the small ones in rows."""
    return _rows(files, lambda file: file.identity.size, lambda file: file.identity.size <= min(HELD, part_size))


def rows_down(files: Sequence[Wanted], staged: Container[str]) -> Iterator[list[Wanted]]:
    """Files to be fetched, for ``fetch_files``: in their order, the small ones of which nothing is there in rows."""

    def is_small(wanted: Wanted) -> bool:
        return 0 < wanted.size <= min(HELD, wanted.part_size) and wanted.path not in staged

    return _rows(files, lambda wanted: wanted.size, is_small)


async def upload_files(
    lane: Lane, log: UploadLog, *, folder: Path, prefix: str, files: Sequence[LocalFile], progress: Progress
) -> list[FileEntry]:
    """Send one file of any size, or a row of small ones; returns their entries. Raises like ``upload_file``."""
    if len(files) == 1:
        return [await upload_file(lane, log, folder=folder, prefix=prefix, file=files[0], progress=progress)]
    fresh = [file for file in files if await log.sent_file(file) is None and await log.open_file(file) is None]
    entries = await _send_row(lane, folder, prefix, fresh)
    await log.record_sent(entries)
    for file, _ in entries:
        progress(file.path, file.identity.size)
    sent = {file.path: entry for file, entry in entries}
    for file in files:
        if file.path not in sent:
            sent[file.path] = await upload_file(lane, log, folder=folder, prefix=prefix, file=file, progress=progress)
    return [sent[file.path] for file in files]


async def _send_row(
    lane: Lane, folder: Path, prefix: str, files: Sequence[LocalFile]
) -> list[tuple[LocalFile, FileEntry]]:
    """As many of the files as go well, from the first on."""
    if not files:
        return []
    async with lane.flow.turn() as turn:
        sources = [_Small(folder / file.path, file, lane.upload_check, turn.moved) for file in files]
        puts = [SmallPut(f"{prefix}/{source.file.key}", source, source.read) for source in sources]
        etags = await lane.store.put_several(puts)
    done = zip(files, sources, etags, strict=False)
    return [(file, entry_of(file, source.digest, etag, lane.part_size)) for file, source, etag in done]


@dataclass(slots=True)
class _Small:
    """A small file that is read in the worker thread that sends it, and forgotten when it is sent."""

    path: Path
    file: LocalFile
    upload_check: str
    moved: Callable[[int], None]
    digest: str = ""
    _held: Held | None = field(default=None, init=False)

    @property
    def size(self) -> int:
        return self.file.identity.size

    def read(self) -> BodyCheck | None:
        self._held = read_held(self.path, self.file, self.upload_check)
        self.digest = self._held.digest
        return self._held.check

    def blocks(self, block_size: int) -> Iterator[bytes | memoryview]:
        assert self._held is not None
        yield from self._held.source(self.moved).blocks(block_size)


async def fetch_files(
    lane: Lane, row: Sequence[Wanted], folder: Path, progress: Progress, *, staged: Container[str] = ()
) -> int:
    """Fetch one file of any size, or a row of small ones; returns the bytes fetched. Raises like ``fetch_file``.

    ``staged`` are the paths of which a part may be there already: none in a row.
    """
    done = await _fetch_row(lane, row, folder) if len(row) > 1 else 0
    for wanted in row[:done]:
        progress(wanted.path, wanted.size)
    fetched = sum(wanted.size for wanted in row[:done])
    for wanted in row[done:]:
        fetched += await fetch_file(lane, wanted, folder / wanted.path, progress, is_staged=wanted.path in staged)
    return fetched


async def _fetch_row(lane: Lane, row: Sequence[Wanted], folder: Path) -> int:
    """How many came and are written, from the first on."""
    async with lane.flow.turn() as turn:

        def get(wanted: Wanted) -> SmallGet:
            def take(data: bytes) -> bool:
                ((_, digest),) = wanted.slices()
                hasher = new_hasher(wanted.algorithm or "blake3")
                hasher.update(data)
                turn.moved(len(data))
                if digest is not None and hasher.hexdigest() != digest:
                    return False
                write_small(wanted, folder / wanted.path, data)
                return True

            return SmallGet(wanted.key, wanted.size, wanted.etag, take)

        return await lane.store.get_several([get(wanted) for wanted in row])
