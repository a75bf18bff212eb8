"""Checkpoints that the 0.2 line wrote: read, never written or deleted (formats §4, "The 0.2 line")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r2d1.errors import FormatError, ObjectNotFound
from r2d1.keys import CheckpointKeys
from r2d1.objects import ObjectInfo, ObjectStore
from r2d1.sidecar import MAX_SIDECAR_BYTES, Sidecar, parse_sidecar


@dataclass(frozen=True, slots=True)
class Legacy:
    """A usable checkpoint of the 0.2 line. ``objects`` are all of its prefix, sidecar included."""

    of: CheckpointKeys
    prefix: str
    sidecar: Sidecar
    sidecar_key: str
    objects: tuple[ObjectInfo, ...]

    @property
    def epoch(self) -> int:
        return self.sidecar.epoch

    @property
    def timestamp(self) -> float:
        return self.sidecar.timestamp


@dataclass(frozen=True, slots=True)
class Unusable:
    """A checkpoint of the 0.2 line that is there in part: still being shipped, or given up."""

    of: CheckpointKeys
    why: str


async def read_legacy(store: ObjectStore, of: CheckpointKeys) -> Legacy | Unusable | None:
    """What the 0.2 line left under this name; None when there is nothing."""
    objects = tuple([info async for info in store.list(f"{of.legacy}/")])
    if not objects:
        return None
    info = _find_sidecar(objects, of)
    if info is None:
        return Unusable(of, "it has no sidecar (yet)")
    try:
        raw, _ = await store.get(info.key, limit=MAX_SIDECAR_BYTES)
        sidecar = parse_sidecar(raw, stem=of.name, mtime=info.modified)
    except (FormatError, ObjectNotFound) as exc:
        return Unusable(of, f"its sidecar cannot be read: {exc}")
    if why := _why_unusable(objects, info, sidecar, of):
        return Unusable(of, why)
    return Legacy(of, of.legacy, sidecar, info.key, objects)


def _find_sidecar(objects: Sequence[ObjectInfo], of: CheckpointKeys) -> ObjectInfo | None:
    """``<name>.json``, else the only ``chk_*.json`` or ``slot_*.json`` at the top of the prefix."""
    top = {info.key[len(of.legacy) + 1 :]: info for info in objects if "/" not in info.key[len(of.legacy) + 1 :]}
    if (named := top.get(f"{of.name}.json")) is not None:
        return named
    others = [name for name in top if name.endswith(".json") and name.startswith(("chk_", "slot_"))]
    return top[others[0]] if len(others) == 1 else None


def _why_unusable(
    objects: Sequence[ObjectInfo], sidecar_info: ObjectInfo, sidecar: Sidecar, of: CheckpointKeys
) -> str | None:
    paths = [info.key[len(of.legacy) + 1 :] for info in objects]
    for listed in sidecar.files or ():
        if listed.path not in paths and not any(path.startswith(f"{listed.path}/") for path in paths):
            return f"{listed.path!a}, which its sidecar lists, is not there"
    newer = next((info.key for info in objects if info.modified > sidecar_info.modified), None)
    return f"{newer!a} is newer than its sidecar: another version is being shipped over it" if newer else None
