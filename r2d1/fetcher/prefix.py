"""Every object below a prefix onto the disk, file by file, bound to one listing (formats §7)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from r2d1 import keys, placing
from r2d1.checkpoint import Identity
from r2d1.digest import digest_of
from r2d1.events import BytesMoved, PullStarted
from r2d1.fetcher.bringing import Brought, telling_room
from r2d1.journal import Journal
from r2d1.objects import ObjectInfo, ObjectStore
from r2d1.tasks import acquired, in_thread, run_bounded
from r2d1.transfer.download import Wanted, fetch_file
from r2d1.transfer.lane import Lane

#: Placed files are remembered in the journal under this name, with the ETag in place of a digest.
_BY_ETAG = "etag"


async def list_prefix(store: ObjectStore, prefix: str, part_size: int) -> list[Wanted]:
    """What a prefix pull places: not what lies below ``.r2d1/``, nor the folder markers some tools leave.

    ``NameRefused`` when a name could lead outside of the destination, before anything is written.
    """
    wanted = [
        Wanted(_relative(info, prefix), info.key, info.size, info.etag, part_size)
        async for info in store.list(f"{prefix}/")
        if _is_placed(_relative(info, prefix))
    ]
    await in_thread(keys.check_paths, [one.path for one in wanted])
    return wanted


def _relative(info: ObjectInfo, prefix: str) -> str:
    return info.key[len(prefix) + 1 :]


def _is_placed(path: str) -> bool:
    return not path.endswith("/") and path != "" and keys.STATE_DIR not in path.split("/")[:-1]


async def bring_prefix(
    lane: Lane, uri: str, prefix: str, dest: Path, wanted: Sequence[Wanted], *, force: bool
) -> Brought:
    """Have all files of a listing below ``dest``; those placed from the same ETags before are left alone."""
    label = "prefix-" + digest_of(prefix.encode()).rpartition(":")[2][:16]
    async with placing.locked(dest, label), acquired(Journal.of, Journal.close, dest) as journal:
        todo = [one for one in wanted if force or not await in_thread(_is_there, journal, lane, dest, one)]
        if not todo:
            return Brought(is_cached=True)
        return await _fetch(lane, uri, prefix, dest, todo, journal, label)


async def _fetch(
    lane: Lane, uri: str, prefix: str, dest: Path, todo: Sequence[Wanted], journal: Journal, label: str
) -> Brought:
    sizes = {one.path: one.size for one in todo}
    binding = digest_of("\n".join(f"{one.path} {one.etag}" for one in todo).encode()).rpartition(":")[2][:16]
    staging = await in_thread(placing.stage, dest, label, binding, sizes)
    await in_thread(placing.check_room, staging, sizes)
    staged = await in_thread(placing.staged_paths, staging)
    lane.tell(PullStarted(uri, prefix, len(todo), sum(sizes.values())))
    brought = Brought(is_cached=False)

    def moved(path: str, count: int) -> None:
        lane.tell(BytesMoved("", prefix, path, "down", count))

    async def fetch(one: Wanted) -> None:
        fetched = await fetch_file(lane, one, staging / one.path, moved, is_staged=one.path in staged)
        brought.fetched_bytes += fetched
        await in_thread(_place, journal, lane, dest, staging, one)
        del sizes[one.path]

    async with telling_room(staging, sizes):
        await run_bounded(lane.files_at_once, fetch, todo)
    await in_thread(placing.remove_tree, staging)
    return brought


def _where(lane: Lane, dest: Path, one: Wanted) -> Path:
    """The journal's name for a placed file: bound to bucket and key as well as to the place."""
    return Path(f"{dest / one.path}\0{lane.store.where} {one.key}")


def _is_there(journal: Journal, lane: Lane, dest: Path, one: Wanted) -> bool:
    try:
        info = os.lstat(dest / one.path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    known = journal.digest(_where(lane, dest, one), Identity.of(info), _BY_ETAG, 0)
    return known is not None and known[0] == f"{_BY_ETAG}:{one.etag}"


def _place(journal: Journal, lane: Lane, dest: Path, staging: Path, one: Wanted) -> None:
    placed = placing.place_file(dest, one.path, staging / one.path)
    identity = Identity.of(os.lstat(placed))
    journal.record_digest(_where(lane, dest, one), identity, 0, f"{_BY_ETAG}:{one.etag}", ())
