"""Keeping a bucket in order: verify, reindex, rm. Each is safe beside couriers and readers (formats §4)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from r2d1 import keys
from r2d1.catalog import Catalog
from r2d1.digest import digest_of, new_hasher, split_digest
from r2d1.documents import Head
from r2d1.errors import FormatError, ObjectNotFound, PreconditionFailed, R2D1Error, RangeRefused, RemoteError
from r2d1.events import BytesMoved, Teller
from r2d1.finding import Found, find_latest, find_named, has_objects_below
from r2d1.heads import ensure_hint, list_heads, pause, put_hint, read_head, read_manifest, swap, wipe
from r2d1.keys import CheckpointKeys
from r2d1.manifest import FileEntry, Manifest
from r2d1.objects import ByteRange, ObjectStore
from r2d1.remote import Remote
from r2d1.rows import settle_rows
from r2d1.sidecar import MAX_SIDECAR_BYTES
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

    Without ``deep``: every object is there with its size. With it: every byte is read and its digest right. Each
    object that is missing, of another size or damaged is one of the problems, also one that goes meanwhile.
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
        problems |= await _byte_problems(lane, found.of, found.head.prefix, manifest, told=problems)
    told = tuple(text for key in sorted(problems) for text in problems[key])
    return Verified(uri, found.of.name, found.epoch, len(manifest.files), manifest.total_bytes, deep, told)


async def _find(store: ObjectStore, catalog: Catalog | None, target: Latest | Named, tell: Teller) -> Found | None:
    if isinstance(target, Latest):
        return await find_latest(store, catalog, target.job_id, tell)
    return await find_named(store, target.of, tell)


async def _listing_problems(
    store: ObjectStore, of: CheckpointKeys, head: Head, manifest: Manifest
) -> dict[str, list[str]]:
    """By key, what a listing shows: an object is missing, or has another size."""
    expected = {keys.nfc(f"{head.prefix}/{entry.object_key}"): entry.size for entry in manifest.files}
    expected[of.sidecar(head.prefix)] = manifest.sidecar_size
    problems: dict[str, list[str]] = {}
    async for info in store.list(f"{head.prefix}/"):
        size = expected.pop(info.key, None)
        if size is not None and size != info.size:
            problems[info.key] = [f"{keys.shown(info.key)} has {info.size} bytes, the manifest says {size}"]
    return problems | {key: [f"{keys.shown(key)} is missing"] for key in expected}


async def _byte_problems(
    lane: Lane, of: CheckpointKeys, prefix: str, manifest: Manifest, *, told: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """By key, what reading every byte shows. Of what is ``told`` already nothing is read."""
    damaged: dict[str, dict[int, str]] = {}
    gone: dict[str, list[str]] = {}  # whatever else was seen of it before

    async def check(piece: tuple[FileEntry, ByteRange, str]) -> None:
        entry, span, digest = piece
        key = keys.nfc(f"{prefix}/{entry.object_key}")
        if key in told or key in gone:
            return
        sink = _HashSink(split_digest(entry.digest)[0])
        try:
            async with lane.flow.turn():
                await lane.store.get_range(f"{prefix}/{entry.object_key}", span, sink)
        except (ObjectNotFound, RangeRefused, PreconditionFailed) as exc:
            gone[key] = [_why_unread(key, exc)]
            return
        lane.tell(BytesMoved(manifest.job_id, manifest.name, entry.path, "down", span.size))
        if sink.hexdigest() != digest:
            damaged.setdefault(key, {})[span.start] = (
                f"{keys.shown(entry.path)}: bytes {span.start} to {span.stop} are damaged: "
                f"expected {digest}, got {sink.hexdigest()}"
            )

    await run_bounded(lane.files_at_once, check, _slices(manifest))
    sidecar = of.sidecar(prefix)
    if sidecar not in told and (why := await _sidecar_problem(lane.store, sidecar, manifest)):
        gone[sidecar] = [why]
    return {key: [texts[start] for start in sorted(texts)] for key, texts in damaged.items()} | gone


def _why_unread(key: str, error: RemoteError) -> str:
    """It was there, and long enough, when it was listed a moment ago."""
    is_missing = isinstance(error, ObjectNotFound)
    return f"{keys.shown(key)} is missing" if is_missing else f"{keys.shown(key)} was written over meanwhile: {error}"


async def _sidecar_problem(store: ObjectStore, key: str, manifest: Manifest) -> str:
    try:
        raw, _ = await store.get(key, limit=MAX_SIDECAR_BYTES)
    except ObjectNotFound as exc:
        return _why_unread(key, exc)
    got = digest_of(raw, split_digest(manifest.sidecar_digest)[0])
    if got == manifest.sidecar_digest:
        return ""
    return f"{keys.shown(key)}: the sidecar is damaged: expected {manifest.sidecar_digest}, got {got}"


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


class HalfRemoved(R2D1Error):
    """Checkpoints are marked as deleted and gone for readers, but something of them could not be deleted."""

    hint = "The same command finishes it"


@dataclass(frozen=True, slots=True)
class Removed:
    """A checkpoint that is gone for readers; ``prefixes`` are those below which no object is left.

    ``was_marked``: an earlier call marked it as deleted. ``had_rest``: this call found something to delete.
    """

    job_id: str
    name: str
    epoch: int
    prefixes: tuple[str, ...]
    was_marked: bool = False
    had_rest: bool = True


async def remove(remote: Remote, of: CheckpointKeys, rng: random.Random) -> Removed | None:
    """Delete one checkpoint: its head first (``deleted``), then row, hint and objects; None when it has no head.

    Calling it again goes on where a first call was cut. Raises ``R2D1Error`` when couriers keep writing the head
    (nothing is deleted then), ``HalfRemoved`` when the head is marked and D1 or the store refuses the rest.
    """
    marked = await _mark_deleted(remote.store, of, rng)
    if marked is None:
        return None
    with _told_as_half(of.job_id, [of]):
        if remote.catalog is not None:
            await remote.catalog.remove(of.job_id, [of.name])
        return await _clear_away(remote.store, marked)


@contextmanager
def _told_as_half(job_id: str, marked: Sequence[CheckpointKeys]) -> Iterator[None]:
    """Have a refusal in the middle say how far it came: the heads are written, and readers go by them."""
    try:
        yield
    except RemoteError as exc:
        names = ", ".join(of.name for of in marked[:3]) + (", …" if len(marked) > 3 else "")
        raise HalfRemoved(
            f"{names} of job {job_id!a}: marked as deleted, so gone for readers; "
            f"row, hint and objects could not all be deleted yet: {exc}"
        ) from exc


@dataclass(frozen=True, slots=True)
class _Marked:
    """A head that says ``deleted``, and whether it did so before this call."""

    of: CheckpointKeys
    head: Head
    was_marked: bool


async def _clear_away(store: ObjectStore, marked: _Marked) -> Removed:
    """Hint and objects of a checkpoint whose head says that it is deleted."""
    of, head = marked.of, marked.head
    prefixes = tuple(prefix for prefix in (head.prefix, head.replaces) if prefix)
    had_rest = not marked.was_marked or await _has_rest(store, of, head.epoch, prefixes)
    await drop_hint(store, of, head.epoch)
    for prefix in prefixes:
        await wipe(store, of, prefix)
    return Removed(of.job_id, of.name, head.epoch, prefixes, marked.was_marked, had_rest)


async def _has_rest(store: ObjectStore, of: CheckpointKeys, epoch: int, prefixes: Sequence[str]) -> bool:
    """Whether a deletion was cut: hint and objects go last, so either is left then."""
    try:
        await store.head(of.hint(epoch))
    except ObjectNotFound:
        for prefix in prefixes:
            if await has_objects_below(store, prefix):
                return True
        return False
    return True


async def _mark_deleted(store: ObjectStore, of: CheckpointKeys, rng: random.Random) -> _Marked | None:
    for _ in range(_TRIES):
        stored = await read_head(store, of)
        if stored is None or stored.value.deleted:
            return _Marked(of, stored.value, was_marked=True) if stored else None
        gone = replace(stored.value, seq=stored.value.seq + 1, deleted=True)
        if await swap(store, of.head, gone.encode(), stored.etag, rng):
            return _Marked(of, gone, was_marked=False)
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

    In the order of ``remove``, but all rows at once: D1 takes few calls a second. Returned are those of which
    something was left. Raises what ``remove`` raises.
    """
    marked: list[_Marked] = []
    for of in [of async for of in list_heads(remote.store, job_id)]:
        stored = await read_head(remote.store, of)
        if stored is not None and stored.value.epoch > epoch:
            one = await _mark_deleted(remote.store, of, rng)
            if one is not None:
                marked.append(one)
    if not marked:
        return []
    with _told_as_half(job_id, [one.of for one in marked]):
        if remote.catalog is not None:
            await remote.catalog.remove(job_id, [one.of.name for one in marked])
        removed = [await _clear_away(remote.store, one) for one in marked]
    return [one for one in removed if one.had_rest]
