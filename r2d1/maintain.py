"""Keeping a bucket in order: verify, reindex, rm. Each is safe beside couriers and readers (formats §4)."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from r2d1 import keys
from r2d1.catalog import Catalog
from r2d1.digest import new_hasher, split_digest
from r2d1.documents import Head
from r2d1.errors import FormatError, ObjectNotFound, R2D1Error
from r2d1.events import BytesMoved, Teller
from r2d1.finding import Found, find_latest, find_named
from r2d1.heads import ensure_hint, list_heads, pause, put_hint, read_head, read_manifest, swap, wipe
from r2d1.keys import CheckpointKeys
from r2d1.manifest import FileEntry, Manifest
from r2d1.objects import ByteRange, ObjectStore
from r2d1.remote import Remote
from r2d1.rows import settle_rows
from r2d1.tasks import run_bounded
from r2d1.transfer.lane import Lane
from r2d1.transfer.plan import plan_ranges
from r2d1.uris import Latest, Named

_AT_ONCE = 8
_TRIES = 10


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification read and found. ``problems`` is empty when all is well.

    ``is_deep`` says whether every byte was read, or only what a listing tells (keys and sizes).
    """

    uri: str
    name: str
    epoch: int
    files: int
    total_bytes: int
    is_deep: bool
    problems: tuple[str, ...]


async def verify_target(
    lane: Lane, catalog: Catalog | None, target: Latest | Named, uri: str, *, deep: bool
) -> Verified | None:
    """Compare a committed checkpoint with its manifest; None when there is none.

    Without ``deep``: every object is there with its size. With it: every byte is read and its digest right.
    ``FormatError`` when the checkpoint has no manifest (the 0.2 line) and nothing can be verified against.
    """
    found = await _find(lane.store, catalog, target, lane.tell)
    if found is None:
        return None
    if found.head is None:
        raise FormatError(f"{uri}: {found.of.name} was written by r2d1 0.2 and has no manifest to verify against")
    manifest = await read_manifest(lane.store, found.of, found.head)
    if manifest is None:
        problem = f"{found.of.manifest(found.head.prefix)!a} is missing or is not the manifest that the head names"
        return Verified(uri, found.of.name, found.epoch, 0, 0, deep, (problem,))
    problems = await _listing_problems(lane.store, found.of, found.head, manifest)
    if deep:
        problems += await _byte_problems(lane, found.head.prefix, manifest)
    return Verified(uri, found.of.name, found.epoch, len(manifest.files), manifest.total_bytes, deep, tuple(problems))


async def _find(store: ObjectStore, catalog: Catalog | None, target: Latest | Named, tell: Teller) -> Found | None:
    if isinstance(target, Latest):
        return await find_latest(store, catalog, target.job_id, tell)
    return await find_named(store, target.of, tell)


async def _listing_problems(store: ObjectStore, of: CheckpointKeys, head: Head, manifest: Manifest) -> list[str]:
    expected = {keys.nfc(f"{head.prefix}/{entry.object_key}"): entry.size for entry in manifest.files}
    expected[of.sidecar(head.prefix)] = manifest.sidecar_size
    problems = []
    async for info in store.list(f"{head.prefix}/"):
        size = expected.pop(info.key, None)
        if size is not None and size != info.size:
            problems.append(f"{keys.shown(info.key)} has {info.size} bytes, the manifest says {size}")
    return problems + [f"{keys.shown(key)} is missing" for key in sorted(expected)]


async def _byte_problems(lane: Lane, prefix: str, manifest: Manifest) -> list[str]:
    problems: list[str] = []

    async def check(piece: tuple[FileEntry, ByteRange, str]) -> None:
        entry, span, digest = piece
        sink = _HashSink(split_digest(entry.digest)[0])
        try:
            async with lane.flow.turn():
                await lane.store.get_range(f"{prefix}/{entry.object_key}", span, sink)
        except ObjectNotFound:
            return  # the listing has told
        lane.tell(BytesMoved(manifest.job_id, manifest.name, entry.path, "down", span.size))
        if sink.hexdigest() != digest:
            problems.append(
                f"{keys.shown(entry.path)}: bytes {span.start} to {span.stop} are damaged: "
                f"expected {digest}, got {sink.hexdigest()}"
            )

    await run_bounded(lane.files_at_once, check, _slices(manifest))
    return sorted(problems)


def _slices(manifest: Manifest) -> list[tuple[FileEntry, ByteRange, str]]:
    return [
        (entry, span, digest)
        for entry in manifest.files
        for span, digest in zip(plan_ranges(entry.size, entry.part_size), entry.slice_digests(), strict=False)
    ]


class _HashSink:
    """Bytes that are only hashed."""

    def __init__(self, algorithm: str) -> None:
        self._hasher = new_hasher(algorithm)

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self._hasher.update(block)

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


@dataclass(frozen=True, slots=True)
class Reindexed:
    """How many heads were read, hints put back and rows written."""

    heads: int
    hints: int
    rows: int


async def reindex_job(remote: Remote, job_id: str, tell: Teller) -> Reindexed:
    """Rebuild hints and rows from the heads, which alone say what exists."""
    names = [of async for of in list_heads(remote.store, job_id)]
    hints = 0

    async def hint(of: CheckpointKeys) -> None:
        nonlocal hints
        stored = await read_head(remote.store, of)
        if stored is not None and not stored.value.deleted:
            is_back = await ensure_hint(remote.store, of, stored.value.epoch)
            hints += is_back

    await run_bounded(_AT_ONCE, hint, names)
    rows = 0
    if remote.catalog is not None:
        for at in range(0, len(names), 50):
            heads = await settle_rows(remote.store, remote.catalog, names[at : at + 50], tell)
            rows += sum(1 for head in heads.values() if head is not None and not head.deleted)
    return Reindexed(len(names), hints, rows)


@dataclass(frozen=True, slots=True)
class Removed:
    """A checkpoint that is gone for readers; ``prefixes`` are those whose objects were deleted."""

    job_id: str
    name: str
    epoch: int
    prefixes: tuple[str, ...]


async def remove(remote: Remote, of: CheckpointKeys, rng: random.Random) -> Removed | None:
    """Delete one checkpoint: its head first (``deleted``), then row, hint and objects; None when it has no head.

    Calling it again goes on where a first call was cut. Raises ``R2D1Error`` when couriers keep writing the head;
    nothing is deleted then.
    """
    head = await _mark_deleted(remote.store, of, rng)
    if head is None:
        return None
    if remote.catalog is not None:
        await remote.catalog.remove(of.job_id, [of.name])
    return await _clear_away(remote.store, of, head)


async def _clear_away(store: ObjectStore, of: CheckpointKeys, head: Head) -> Removed:
    """Hint and objects of a checkpoint whose head says that it is deleted."""
    await drop_hint(store, of, head.epoch)
    prefixes = tuple(prefix for prefix in (head.prefix, head.replaces) if prefix)
    for prefix in prefixes:
        await wipe(store, of, prefix)
    return Removed(of.job_id, of.name, head.epoch, prefixes)


async def _mark_deleted(store: ObjectStore, of: CheckpointKeys, rng: random.Random) -> Head | None:
    for _ in range(_TRIES):
        stored = await read_head(store, of)
        if stored is None or stored.value.deleted:
            return stored.value if stored else None
        gone = replace(stored.value, seq=stored.value.seq + 1, deleted=True)
        if await swap(store, of.head, gone.encode(), stored.etag, rng):
            return gone
        await pause(rng)
    raise R2D1Error(f"{of.head}: other writers kept changing the head; nothing was deleted. Stop the courier first.")


async def drop_hint(store: ObjectStore, of: CheckpointKeys, epoch: int) -> None:
    """Delete a hint, then read the head and put the hint back if the head names its epoch."""
    await store.delete([of.hint(epoch)])
    stored = await read_head(store, of)
    if stored is not None and not stored.value.deleted and stored.value.epoch == epoch:
        await put_hint(store, of, epoch)


async def remove_after(remote: Remote, job_id: str, epoch: int, rng: random.Random) -> list[Removed]:
    """Delete every checkpoint of a job with a higher epoch: the end of a timeline that was given up.

    In the order of ``remove``, but all rows at once: D1 takes few calls a second.
    """
    marked, news = list[tuple[CheckpointKeys, Head]](), set[str]()
    for of in [of async for of in list_heads(remote.store, job_id)]:
        stored = await read_head(remote.store, of)
        if stored is not None and stored.value.epoch > epoch:
            head = await _mark_deleted(remote.store, of, rng)
            if head is not None:
                marked.append((of, head))
                news |= set() if stored.value.deleted else {of.name}
    if marked and remote.catalog is not None:
        await remote.catalog.remove(job_id, [of.name for of, _ in marked])
    removed = [await _clear_away(remote.store, of, head) for of, head in marked]
    return [one for one in removed if one.name in news]
