"""One checkpoint onto the disk: staged, verified against its manifest, placed whole (formats §7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from r2d1 import keys, placing
from r2d1.checkpoint import LocalCheckpoint, inspect
from r2d1.digest import digest_of, split_digest
from r2d1.documents import Head
from r2d1.errors import CheckpointError, FormatError, IntegrityError, NameRefused, NoSpace
from r2d1.events import BytesMoved, PullStarted
from r2d1.journal import Done, Journal, scope_of, state_of
from r2d1.keys import CheckpointKeys
from r2d1.legacy import Legacy
from r2d1.manifest import FileEntry, Manifest
from r2d1.objects import ObjectStore
from r2d1.sidecar import MAX_SIDECAR_BYTES
from r2d1.tasks import acquired, in_thread, run_bounded
from r2d1.transfer.download import Wanted
from r2d1.transfer.hashing import digest_file
from r2d1.transfer.lane import Lane
from r2d1.transfer.several import fetch_files, rows_down


@dataclass(frozen=True, slots=True)
class Bringing:
    """What is to be brought: the files wanted, the sidecar, and what binds the staging to them.

    ``binding`` is the manifest's digest, or one of the listing for a checkpoint of the 0.2 line. ``told`` is what
    observers were told of the bytes of each path; the attempts of one pull share it, ``is_again`` but the first.
    """

    of: CheckpointKeys
    uri: str
    root: Path
    prefix: str
    epoch: int
    binding: str
    wanted: tuple[Wanted, ...]
    sidecar_key: str
    sidecar_digest: str | None
    told: dict[str, int] = field(default_factory=dict, compare=False)
    is_again: bool = False

    @property
    def folder(self) -> Path:
        return self.root / self.of.name

    @property
    def total_bytes(self) -> int:
        return sum(wanted.size for wanted in self.wanted)


@dataclass(slots=True)
class Brought:
    is_cached: bool
    fetched_bytes: int = 0
    seen: dict[str, int] = field(default_factory=dict)


def from_manifest(uri: str, root: Path, head: Head, of: CheckpointKeys, manifest: Manifest, *, etags: bool) -> Bringing:
    """Bring what a head names. ``etags`` asks ranges with ``If-Match``; without, the digests alone decide."""
    return Bringing(
        of=of,
        uri=uri,
        root=root,
        prefix=head.prefix,
        epoch=head.epoch,
        binding=head.manifest,
        wanted=tuple(_wanted(head.prefix, entry, etags) for entry in manifest.files),
        sidecar_key=of.sidecar(head.prefix),
        sidecar_digest=manifest.sidecar_digest,
    )


def _wanted(prefix: str, entry: FileEntry, etags: bool) -> Wanted:
    algorithm, _ = split_digest(entry.digest)
    return Wanted(
        path=entry.path,
        key=f"{prefix}/{entry.object_key}",
        size=entry.size,
        etag=entry.etag if etags else None,
        part_size=entry.part_size,
        algorithm=algorithm,
        digests=entry.slice_digests(),
    )


def from_legacy(uri: str, root: Path, legacy: Legacy, part_size: int) -> Bringing:
    """Bring a checkpoint of the 0.2 line, bound to the sizes and ETags of its listing."""
    objects = [info for info in legacy.objects if info.key != legacy.sidecar_key and not info.key.endswith("/")]
    listing = "\n".join(f"{info.key} {info.size} {info.etag}" for info in legacy.objects)
    return Bringing(
        of=legacy.of,
        uri=uri,
        root=root,
        prefix=legacy.prefix,
        epoch=legacy.epoch,
        binding=f"listing:{digest_of(listing.encode())}",
        wanted=tuple(
            Wanted(info.key[len(legacy.prefix) + 1 :], info.key, info.size, info.etag, part_size) for info in objects
        ),
        sidecar_key=legacy.sidecar_key,
        sidecar_digest=digest_of(legacy.sidecar.raw),
    )


async def bring(lane: Lane, job: Bringing, *, force: bool) -> Brought:
    """Have the checkpoint on disk, whole and verified; does nothing when it is there already.

    Raises ``IntegrityError`` for damage that stays, ``ObjectNotFound`` and ``PreconditionFailed`` when the
    bucket has changed, ``NoSpace`` before the first byte or when others fill the disk, ``UnsafeDestination``,
    ``NameRefused``.
    """
    await in_thread(keys.check_paths, [wanted.path for wanted in job.wanted])
    async with (
        placing.locked(job.root, f"pull-{job.of.name}"),
        acquired(Journal.of, Journal.close, job.root) as journal,
    ):
        if not force and await _is_there(lane, job, journal):
            return Brought(is_cached=True)
        return await _fetch_and_place(lane, job, journal)


async def _is_there(lane: Lane, job: Bringing, journal: Journal) -> bool:
    """Whether the folder matches: by the identity recorded when it was shipped or pulled, else by its digests."""
    try:
        local = await in_thread(inspect, job.folder, limiter=lane.disk)
    except (CheckpointError, FormatError, NameRefused):
        return False
    done = await in_thread(journal.done, _scope(lane.store, job), job.of.name)
    if done is not None and (done.manifest, done.state) == (job.binding, state_of(local)):
        return True
    if not await _matches(lane, job, local):
        return False
    await _record(lane.store, job, journal, local)
    return True


async def _matches(lane: Lane, job: Bringing, local: LocalCheckpoint) -> bool:
    wanted = {one.path: one for one in job.wanted}
    if {file.path: file.identity.size for file in local.files} != {path: one.size for path, one in wanted.items()}:
        return False
    if job.sidecar_digest != digest_of(local.sidecar.raw):
        return False
    for file in local.files:
        one = wanted[file.path]
        if one.digests is None or one.algorithm is None:
            return False
        path = local.folder / file.path
        digest, parts = await digest_file(lane, path, file.identity, algorithm=one.algorithm, part_size=one.part_size)
        if (parts or (split_digest(digest)[1],)) != one.digests:
            return False
    return True


async def _fetch_and_place(lane: Lane, job: Bringing, journal: Journal) -> Brought:
    sizes = {one.path: one.size for one in job.wanted}
    staging = await in_thread(placing.stage, job.root, job.of.name, _label(job.binding), sizes)
    await in_thread(placing.check_room, staging, sizes)
    staged = await in_thread(placing.staged_paths, staging)
    if not job.is_again:
        lane.tell(PullStarted(job.uri, job.of.name, len(job.wanted), job.total_bytes))
    brought = Brought(is_cached=False)
    moved = _progress(lane, job)
    sidecar = await _read_sidecar(lane.store, job)

    async def fetch(row: list[Wanted]) -> None:
        fetched = await fetch_files(lane, row, staging, moved, staged=staged)
        brought.fetched_bytes += fetched

    async with telling_room(staging, sizes):
        await run_bounded(lane.files_at_once, fetch, list(rows_down(job.wanted, staged)))
    with anyio.CancelScope(shield=True):  # a few renames: to be cut between them would only cost a second pull
        await _keep_what_is_nowhere_else(lane, job, journal)
        folder = await in_thread(placing.place_checkpoint, job.root, job.of.name, staging, sidecar)
        await _record(lane.store, job, journal, await in_thread(inspect, folder))
    return brought


@asynccontextmanager
async def telling_room(staging: Path, sizes: Mapping[str, int]) -> AsyncIterator[None]:
    """Have a disk that became full meanwhile say how much is still to come, and how much is free."""
    try:
        yield
    except NoSpace as full:
        raise await in_thread(placing.out_of_room, full, staging, sizes) from full


async def _keep_what_is_nowhere_else(lane: Lane, job: Bringing, journal: Journal) -> None:
    """Move a complete local checkpoint aside that was neither shipped nor pulled in this state: never lose one."""
    try:
        local = await in_thread(inspect, job.folder, limiter=lane.disk)
    except (CheckpointError, FormatError, NameRefused):
        return  # no whole checkpoint: it cannot be resumed from, and is replaced
    state = state_of(local)
    done = await in_thread(journal.done, _scope(lane.store, job), job.of.name)
    if done is not None and done.state == state:
        return
    label = f"{job.of.name}-epoch-{local.sidecar.epoch}-{_label(state)[:8]}"
    kept = await in_thread(placing.keep_checkpoint, job.root, job.of.name, label)
    lane.tell.notice(
        "warning",
        f"{job.folder}: held epoch {local.sidecar.epoch}, which this machine has not shipped; it is kept in {kept}. "
        "Ship what is left of an earlier run before pulling",
    )


def _label(binding: str) -> str:
    return binding.rpartition(":")[2][:16]


def _progress(lane: Lane, job: Bringing) -> Callable[[str, int], None]:
    """Tell the bytes of this attempt that no attempt before it has told."""
    moved: dict[str, int] = {}

    def progress(path: str, count: int) -> None:
        moved[path] = moved.get(path, 0) + count
        if (news := moved[path] - job.told.get(path, 0)) > 0:
            job.told[path] = moved[path]
            lane.tell(BytesMoved(job.of.job_id, job.of.name, path, "down", news))

    return progress


async def _read_sidecar(store: ObjectStore, job: Bringing) -> bytes:
    raw, _ = await store.get(job.sidecar_key, limit=MAX_SIDECAR_BYTES)
    if job.sidecar_digest is not None and digest_of(raw, split_digest(job.sidecar_digest)[0]) != job.sidecar_digest:
        raise IntegrityError(
            f"{keys.shown(job.sidecar_key)}: the sidecar is damaged in the bucket: expected {job.sidecar_digest}, "
            f"got {digest_of(raw)}"
        )
    return raw


async def _record(store: ObjectStore, job: Bringing, journal: Journal, local: LocalCheckpoint) -> None:
    """Tell a courier of this directory that the bucket has this state, so that it sends nothing back."""
    done = Done(state_of(local), job.epoch, job.prefix, job.binding, "pulled")
    await in_thread(journal.record_done, _scope(store, job), job.of.name, done, local)


def _scope(store: ObjectStore, job: Bringing) -> str:
    return scope_of(store.where, job.of.job_id)


async def missing_objects(store: ObjectStore, job: Bringing) -> list[str]:
    """The keys of every object that should be there and is not, or has another size."""
    left = {keys.nfc(one.key): one.size for one in job.wanted}
    left[job.sidecar_key] = -1
    async for info in store.list(f"{job.prefix}/"):
        if left.get(info.key) in (info.size, -1):
            del left[info.key]
    return sorted(left)
