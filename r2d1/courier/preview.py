"""What shipping would do: the same looks and judgements, and a read of the bucket; nothing is sent or written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from r2d1 import keys
from r2d1.checkpoint import LocalCheckpoint, Wait, inspect, judge
from r2d1.courier.looking import is_ours, look_at, settle
from r2d1.errors import CheckpointError, FormatError, NameRefused, Superseded
from r2d1.heads import read_head, read_manifest
from r2d1.journal import Done, Parked, state_of
from r2d1.keys import CheckpointKeys
from r2d1.manifest import Manifest
from r2d1.objects import ObjectStore
from r2d1.tasks import in_thread
from r2d1.transfer.hashing import digest_file
from r2d1.transfer.lane import Lane


class Outlook(StrEnum):
    """What would become of a checkpoint."""

    SHIP = "would be shipped"
    THERE = "is in the bucket already"
    DELETED = "was deleted from the bucket since it was shipped, and is left alone"
    WAIT = "would wait"
    FAIL = "would fail"
    IGNORED = "would be ignored"


@dataclass(frozen=True, slots=True)
class Preview:
    """One checkpoint as it lies on disk and what shipping it would do. Sizes are bytes; ``why`` may be empty.

    ``parked`` is why it was not taken the last time, None when it was not tried yet in its present state.
    """

    folder: Path
    name: str
    outlook: Outlook
    why: str = ""
    epoch: int | None = None
    files: tuple[tuple[str, int], ...] = ()
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    parked: Parked | None = None

    @property
    def total_bytes(self) -> int:
        return sum(size for _, size in self.files)


async def preview_directory(
    lane: Lane,
    directory: Path,
    job_id: str,
    *,
    ordered: bool = True,
    bucket: ObjectStore | None = None,
    done: Mapping[str, Done] = MappingProxyType({}),
) -> list[Preview]:
    """Preview what a watch would do with every pair of a directory, oldest sidecar first.

    ``bucket`` is asked what it has already, if given. What the journal calls ``done`` in its present state a watch
    leaves alone, as long as the bucket has a head of it, be it one that says that it was deleted.
    """
    look = await in_thread(look_at, directory, limiter=lane.disk)
    if look is None:
        raise CheckpointError(f"{directory}: no such directory")
    found = [
        await preview(lane, directory / seen.stem, job_id, ordered=ordered, bucket=bucket, done=done)
        if await in_thread(is_ours, directory, seen.stem, limiter=lane.disk)
        else Preview(directory / seen.stem, seen.stem, Outlook.IGNORED, "not a checkpoint by name or JSON")
        for seen in look.seen
    ]
    return _without_twins(found)


async def not_shipped(
    lane: Lane, directory: Path, job_id: str, done: Mapping[str, Done], parked: Mapping[str, Parked]
) -> list[Preview]:
    """Preview what a directory holds that is not ``done`` (its journal's word) as it lies there.

    What could be shipped and is ``parked`` in this state carries the reason. The bucket is not asked, and nothing of
    what is done is read. Folders without a sidecar would wait for it.
    """
    look = await in_thread(look_at, directory, limiter=lane.disk)
    if look is None:
        return []
    left = []
    for seen in look.seen:
        folder = directory / seen.stem
        if await in_thread(is_ours, directory, seen.stem, limiter=lane.disk) and not await _is_done(lane, folder, done):
            left.append(await preview(lane, folder, job_id, parked=parked))
    bare = [Preview(directory / name, name, Outlook.WAIT, "it has no sidecar") for name in look.bare]
    return [*_without_twins(left), *bare]


async def _is_done(lane: Lane, folder: Path, done: Mapping[str, Done]) -> bool:
    try:
        local = await in_thread(inspect, folder, limiter=lane.disk)
    except (CheckpointError, FormatError, NameRefused):
        return False
    return local.name in done and done[local.name].state == state_of(local)


def _without_twins(found: Sequence[Preview]) -> list[Preview]:
    """Two sidecars that claim one name both fail."""
    counts = Counter(one.name for one in found if one.outlook is not Outlook.IGNORED)
    return [
        replace(one, outlook=Outlook.FAIL, why=f"another sidecar here claims the name {one.name!r}, too")
        if one.outlook is not Outlook.IGNORED and counts[one.name] > 1
        else one
        for one in found
    ]


async def preview(
    lane: Lane,
    folder: Path,
    job_id: str,
    *,
    ordered: bool = True,
    bucket: ObjectStore | None = None,
    drafted: LocalCheckpoint | None = None,
    parked: Mapping[str, Parked] = MappingProxyType({}),
    done: Mapping[str, Done] = MappingProxyType({}),
) -> Preview:
    """Preview one checkpoint; ``drafted`` is its state with a sidecar that is still to be written.

    ``parked`` says what a courier could not ship, and why; ``done`` what a watch need not look at again (`ship`
    asks the bucket all the same).
    """
    try:
        if drafted is None:
            local, verdict = await settle(lane, folder, ordered=ordered)
        else:
            local, verdict = drafted, judge(drafted, {}, ordered=ordered)
    except FormatError as exc:  # a sidecar that may still be growing
        return Preview(folder, folder.name, Outlook.WAIT, str(exc))
    except (CheckpointError, NameRefused) as exc:
        return Preview(folder, folder.name, Outlook.FAIL, str(exc))
    if isinstance(verdict, Wait):
        return _described(local, Outlook.WAIT, verdict.reason)
    try:
        found = await _looked_up(lane, bucket, CheckpointKeys(job_id, local.name), local, done)
    except NameRefused as exc:
        return _described(local, Outlook.FAIL, str(exc))
    known = parked.get(local.name)
    is_parked = found.outlook is Outlook.SHIP and known is not None and known.state == state_of(local, ctime=False)
    return replace(found, parked=known) if is_parked else found


async def _looked_up(
    lane: Lane, bucket: ObjectStore | None, of: CheckpointKeys, local: LocalCheckpoint, done: Mapping[str, Done]
) -> Preview:
    if (outlook := await _settled_before(bucket, of, local, done)) is not None:
        return _described(local, outlook)
    if why := await in_thread(_why_unreadable, local, limiter=lane.disk):
        return _described(local, Outlook.FAIL, why)
    return await _compared(lane, bucket, of, local)


async def _settled_before(
    bucket: ObjectStore | None, of: CheckpointKeys, local: LocalCheckpoint, done: Mapping[str, Done]
) -> Outlook | None:
    """The courier's own rule (``Folder._ready``): done in this state, and the bucket has a head of this name."""
    known = done.get(local.name)
    if bucket is None or known is None or known.state != state_of(local):
        return None
    stored = await read_head(bucket, of)
    if stored is None:
        return None
    return Outlook.DELETED if stored.value.deleted else Outlook.THERE


def _why_unreadable(local: LocalCheckpoint) -> str:
    bad = [file.path for file in local.files if not os.access(local.folder / file.path, os.R_OK)]
    return f"{keys.shown(bad[0])} may not be read ({len(bad)} such files)" if bad else ""


def _described(local: LocalCheckpoint, outlook: Outlook, why: str = "") -> Preview:
    return Preview(
        folder=local.folder,
        name=local.name,
        outlook=outlook,
        why=why,
        epoch=local.sidecar.epoch,
        files=tuple((file.path, file.identity.size) for file in local.files),
        left_out=local.left_out,
        warnings=local.warnings,
    )


async def _compared(lane: Lane, bucket: ObjectStore | None, of: CheckpointKeys, local: LocalCheckpoint) -> Preview:
    """Ask head and manifest whether the bucket has these very files; they are hashed only if sizes agree."""
    stored = await read_head(bucket, of) if bucket is not None else None
    prefix = of.prefix(keys.FIRST_SHIP if stored is None else "0" * 12)
    for file in local.files:
        keys.check_key(f"{prefix}/{file.key}")
    if bucket is None or stored is None or stored.value.deleted:
        return _described(local, Outlook.SHIP)
    manifest = await read_manifest(bucket, of, stored.value)
    try:
        if manifest is not None and await _is_same(lane, manifest, local):
            return _described(local, Outlook.THERE)
    except Superseded as exc:
        return _described(local, Outlook.WAIT, str(exc))
    return _described(local, Outlook.SHIP, f"in place of the version of epoch {stored.value.epoch}")


async def _is_same(lane: Lane, manifest: Manifest, local: LocalCheckpoint) -> bool:
    sizes = {file.path: file.identity.size for file in local.files}
    if manifest.epoch != local.sidecar.epoch or {entry.path: entry.size for entry in manifest.files} != sizes:
        return False
    identities = {file.path: file.identity for file in local.files}
    for entry in manifest.files:
        path, identity = local.folder / entry.path, identities[entry.path]
        digest, _ = await digest_file(lane, path, identity, algorithm=entry.algorithm, part_size=entry.part_size)
        if digest != entry.digest:
            return False
    return True
