"""Looking at a watched directory: which sidecars stand beside a folder, and what a checkpoint's state allows."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from r2d1 import keys
from r2d1.checkpoint import Identity, LocalCheckpoint, Ready, Wait, inspect, judge
from r2d1.errors import CheckpointError, FormatError, NameRefused, Superseded
from r2d1.events import Teller
from r2d1.keys import nfc
from r2d1.sidecar import MAX_SIDECAR_BYTES, is_temporary
from r2d1.strictjson import parse
from r2d1.tasks import in_thread
from r2d1.transfer.hashing import digest_file
from r2d1.transfer.lane import Lane

_NAMED = ("chk_", "slot_")
#: How often a checkpoint that is not complete is looked at, and how often what it lacks is told anew if it changes.
_LOOK_EVERY_S, _TELL_EVERY_S = 0.2, 10.0
_WAY_OUT = "if it is whole, write the sidecar again, or use --unordered, in Python ordered=False"
#: Of a sidecar that is known to belong to other files.
OUTDATED = "the sidecar is the one of what was shipped before, and the files changed; if they are whole, write it again"


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
    """Look at one checkpoint and judge it; errors of ``inspect`` pass through.

    ``CheckpointError`` also when the sidecar lists a path that no file of a checkpoint can have.
    """
    local = await in_thread(inspect, folder, limiter=lane.disk)
    _refuse_impossible(local)
    try:
        sha256 = await _sha256_where_asked(lane, local)
    except Superseded as exc:
        return local, Wait(str(exc))
    return local, _judged(local, sha256, ordered=ordered)


def _refuse_impossible(local: LocalCheckpoint) -> None:
    for listed in local.sidecar.files or ():
        try:
            keys.check_path(listed.path)
        except NameRefused as exc:
            raise CheckpointError(
                f"{local.folder}: no file can ever be what the sidecar's 'files' lists: {exc}; "
                "paths there are relative to the folder"
            ) from exc


def _judged(local: LocalCheckpoint, sha256: dict[str, str], *, ordered: bool) -> Ready | Wait:
    """``judge``, where a listed file that was written over after the sidecar is the next version's, not a late one."""
    verdict = judge(local, sha256, ordered=ordered)
    if ordered and isinstance(verdict, Wait) and not verdict.is_stale and (path := _written_over(local)):
        reason = f"{verdict.reason}; {path!a} is newer than the sidecar: the next version is being written"
        verdict = Wait(reason, is_stale=True)
    if isinstance(verdict, Wait) and verdict.is_stale:
        return replace(verdict, reason=f"{verdict.reason} ({_WAY_OUT})")
    return verdict


def _written_over(local: LocalCheckpoint) -> str | None:
    """A file of another size than the sidecar says, and newer than it. One with a digest is waited for instead."""
    sizes = {nfc(one.path): one.size for one in local.sidecar.files or () if one.size is not None and not one.sha256}
    for file in local.files:
        is_newer = file.identity.mtime_ns > local.sidecar_identity.mtime_ns
        if is_newer and sizes.get(nfc(file.path), file.identity.size) != file.identity.size:
            return file.path
    return None


async def until_ready(lane: Lane, folder: Path, *, ordered: bool, timeout: float) -> LocalCheckpoint:
    """Look at a checkpoint until it may be shipped, and say at once what is waited for.

    ``CheckpointError`` when ``timeout`` seconds do not make it complete, or nothing ever can.
    """
    why, told_at = "it was not looked at", -_TELL_EVERY_S
    told = ""
    with anyio.move_on_after(timeout):
        while True:
            try:
                local, verdict = await settle(lane, folder, ordered=ordered)
            except FormatError as exc:
                verdict = Wait(str(exc))
            else:
                if isinstance(verdict, Ready):
                    tell_warnings(lane.tell, local)
                    return local
            why, now = verdict.reason, anyio.current_time()
            if why != told and now - told_at >= _TELL_EVERY_S:
                lane.tell.notice("warning", f"{folder}: waiting at most {timeout:g} s, as it is not complete: {why}")
                told, told_at = why, now
            await anyio.sleep(_LOOK_EVERY_S)
    raise CheckpointError(f"{folder}: not complete after {timeout:g} s: {why}")


def tell_warnings(tell: Teller, local: LocalCheckpoint) -> None:
    """What is odd about a checkpoint that is shipped all the same, each told once."""
    for warning in local.warnings:
        tell.notice("warning", f"{local.folder}: {warning}", once=f"{local.folder} {warning}")


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
