"""Looking at a watched directory: which sidecars stand beside a folder, and what a checkpoint's state allows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from r2d1.checkpoint import Identity, LocalCheckpoint, Ready, Wait, inspect, judge
from r2d1.errors import FormatError, Superseded
from r2d1.keys import nfc
from r2d1.sidecar import MAX_SIDECAR_BYTES, is_temporary
from r2d1.strictjson import parse
from r2d1.tasks import in_thread
from r2d1.transfer.hashing import digest_file
from r2d1.transfer.lane import Lane

_NAMED = ("chk_", "slot_")


@dataclass(frozen=True, slots=True)
class Seen:
    """A sidecar beside its folder: the stem both share and the sidecar's identity."""

    stem: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a directory: ``root`` tells one directory from another that took its place.

    ``bare`` are folders named like checkpoints that have no sidecar (yet).
    """

    root: tuple[int, int]
    seen: tuple[Seen, ...]
    bare: tuple[str, ...] = ()


def look_at(directory: Path) -> Look | None:
    """List the pairs of a directory, oldest sidecar first; None when the directory is not there. Stat calls only."""
    try:
        info = os.stat(directory)
        with os.scandir(directory) as listing:
            entries = {entry.name: entry for entry in listing}
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = [seen for name, entry in entries.items() if (seen := _pair(name, entry, entries)) is not None]
    found.sort(key=lambda seen: (seen.identity.mtime_ns, seen.stem))
    bare = sorted(name for name in entries if name.startswith(_NAMED) and f"{name}.json" not in entries)
    return Look((info.st_dev, info.st_ino), tuple(found), tuple(name for name in bare if entries[name].is_dir()))


def _pair(name: str, entry: os.DirEntry[str], entries: dict[str, os.DirEntry[str]]) -> Seen | None:
    stem = name.removesuffix(".json")
    if stem == name or stem not in entries:
        return None
    try:
        if not entry.is_file() or not entries[stem].is_dir():
            return None
        return Seen(stem, Identity.of(entry.stat()))
    except FileNotFoundError:  # deleted between the listing and this look
        return None


def is_ours(directory: Path, stem: str) -> bool:
    """Whether a pair is a checkpoint: by its name, or because its JSON is an object with an ``epoch`` (formats §3).

    One in a writer's temporary folder is none yet: the folder gets its name when it is done.
    """
    if is_temporary(f"{stem}/sidecar"):
        return False
    if stem.startswith(_NAMED):
        return True
    try:
        with open(directory / f"{stem}.json", "rb") as file:
            fields = parse(file.read(MAX_SIDECAR_BYTES))
    except (OSError, FormatError):
        return False
    return isinstance(fields, dict) and "epoch" in fields


async def settle(lane: Lane, folder: Path, *, ordered: bool) -> tuple[LocalCheckpoint, Ready | Wait]:
    """Look at one checkpoint and judge it; errors of ``inspect`` pass through."""
    local = await in_thread(inspect, folder, limiter=lane.disk)
    try:
        sha256 = await _sha256_where_asked(lane, local)
    except Superseded as exc:
        return local, Wait(str(exc))
    return local, judge(local, sha256, ordered=ordered)


async def _sha256_where_asked(lane: Lane, local: LocalCheckpoint) -> dict[str, str]:
    asked = {nfc(entry.path): entry for entry in local.sidecar.files or () if entry.sha256 is not None}
    digests: dict[str, str] = {}
    for file in local.files:
        entry = asked.get(nfc(file.path))
        if entry is not None and entry.size in (None, file.identity.size):
            path = local.folder / file.path
            digest, _ = await digest_file(lane, path, file.identity, algorithm="sha256", part_size=lane.part_size)
            digests[file.path] = digest.partition(":")[2]
    return digests
