"""What the bucket holds: its jobs, and every checkpoint of a job with its state (reads only)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from r2d1 import keys
from r2d1.errors import FormatError
from r2d1.events import Teller
from r2d1.finding import Begun, Found, find_named, is_fence, what_was_begun
from r2d1.heads import read_head, read_manifest
from r2d1.keys import CheckpointKeys
from r2d1.legacy import Unusable, read_legacy
from r2d1.objects import ObjectStore
from r2d1.tasks import run_bounded

_JOBS = "jobs/"
_AT_ONCE = 8


class State(StrEnum):
    """What a name in the bucket stands for."""

    COMMITTED = "committed"
    SHIPPING = "being shipped"  # a ship that is open, and no head
    DAMAGED = "damaged"  # the manifest that the head names is not there
    UNREADABLE = "unreadable"  # written by a newer r2d1, or not by r2d1 at all
    LEGACY = "legacy 0.2"
    LEGACY_PART = "legacy 0.2, incomplete"


@dataclass(frozen=True, slots=True)
class Listed:
    """One checkpoint of a job. ``total_bytes`` counts its files, without sidecar and manifest.

    ``epoch``, ``timestamp`` (seconds since 1970) and ``total_bytes`` are None where the state does not tell them;
    ``note`` says what is wrong.
    """

    job_id: str
    name: str
    state: State
    epoch: int | None = None
    timestamp: float | None = None
    total_bytes: int | None = None
    files: int | None = None
    prefix: str = ""
    note: str = ""


async def list_jobs(store: ObjectStore) -> list[str]:
    """The ids of all jobs, sorted. Of an id with a slash (0.2 allowed them) only the first segment shows."""
    folders = await store.list_folders(_JOBS)
    return [folder[len(_JOBS) :].rstrip("/") for folder in folders]


async def list_checkpoints(store: ObjectStore, job_id: str) -> list[Listed]:
    """Every checkpoint of a job, newest first as ``latest`` orders them; what cannot be read is listed as such.

    Costs one LIST each for heads, ships and the 0.2 line's folders, and a read of head and manifest a checkpoint.
    """
    names = await _names(store, job_id)
    found: list[Listed] = []

    async def look(name: str) -> None:
        if (listed := await look_at(store, CheckpointKeys(job_id, name))) is not None:
            found.append(listed)

    await run_bounded(_AT_ONCE, look, names)
    return sorted(found, key=lambda one: (-(one.epoch or 0), -(one.timestamp or 0), one.name))


async def _names(store: ObjectStore, job_id: str) -> list[str]:
    heads = [keys.parse_head_key(job_id, info.key) async for info in store.list(keys.heads_prefix(job_id))]
    names = {name for name in heads if name is not None}
    for base in (keys.records_prefix(job_id), keys.legacy_prefix(job_id)):
        names.update(_segments(base, await store.list_folders(base)))
    return sorted(names)


def _segments(base: str, folders: Iterable[str]) -> list[str]:
    names = [folder[len(base) :].rstrip("/") for folder in folders]
    return [name for name in names if keys.is_name(name)]


async def look_at(store: ObjectStore, of: CheckpointKeys) -> Listed | None:
    """One checkpoint; None when there is nothing under this name, or only what was deleted or given up."""
    try:
        found = await find_named(store, of, Teller(None))
        if found is None:
            return await _unfound(store, of)
        return await _committed(store, found) if found.legacy is None else _legacy(found)
    except FormatError as exc:
        return Listed(of.job_id, of.name, State.UNREADABLE, note=str(exc))


async def _committed(store: ObjectStore, found: Found) -> Listed:
    head = found.head
    assert head is not None
    manifest = await read_manifest(store, found.of, head)
    state = State.COMMITTED if manifest else State.DAMAGED
    return Listed(
        job_id=found.of.job_id,
        name=found.of.name,
        state=state,
        epoch=head.epoch,
        timestamp=head.timestamp,
        total_bytes=manifest.total_bytes if manifest else None,
        files=len(manifest.files) if manifest else None,
        prefix=head.prefix,
        note="" if manifest else f"the manifest that the head names is not at {found.of.manifest(head.prefix)}",
    )


def _legacy(found: Found) -> Listed:
    legacy = found.legacy
    assert legacy is not None
    files = [info for info in legacy.objects if info.key != legacy.sidecar_key]
    return Listed(
        job_id=found.of.job_id,
        name=found.of.name,
        state=State.LEGACY,
        epoch=legacy.epoch,
        timestamp=legacy.timestamp,
        total_bytes=sum(info.size for info in files),
        files=len(files),
        prefix=legacy.prefix,
    )


async def _unfound(store: ObjectStore, of: CheckpointKeys) -> Listed | None:
    """A name of which nothing counts (yet): the 0.2 line's leavings, a ship under way, or what was deleted."""
    legacy = await read_legacy(store, of)
    if isinstance(legacy, Unusable):
        return Listed(of.job_id, of.name, State.LEGACY_PART, prefix=of.legacy, note=legacy.why)
    stored = await read_head(store, of)
    if stored is not None and not is_fence(stored.value):
        return None
    is_under_way = await what_was_begun(store, of) is Begun.UNDER_WAY
    return Listed(of.job_id, of.name, State.SHIPPING) if is_under_way else None
