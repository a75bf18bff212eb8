"""Checkpoints pinned by hard links while they are shipped, so that a trainer's rotation cannot take them away."""

from __future__ import annotations

import os
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from r2d1.checkpoint import Identity, LocalCheckpoint, inspect
from r2d1.errors import CheckpointError, FormatError, NameRefused, Superseded
from r2d1.journal import Done, Journal, state_of
from r2d1.keys import STATE_DIR
from r2d1.localstate import own_folder
from r2d1.placing import fsync_folder, remove_tree


def snapshots(directory: Path) -> Path:
    """Where the checkpoints of a watched directory are pinned."""
    return directory / STATE_DIR / "snap"


def pin(local: LocalCheckpoint) -> LocalCheckpoint:
    """Link every file of a checkpoint into ``.r2d1/snap/`` beside it; returns the checkpoint as it lies there.

    ``Superseded`` when a file went away meanwhile, ``CheckpointError`` where the file system has no hard links.
    """
    home = own_folder(own_folder(local.folder.parent / STATE_DIR, mode=0o700) / "snap")
    folder = home / local.folder.name
    unpin(folder)
    try:
        folder.mkdir()
        for file in local.files:
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            source = os.path.realpath(local.folder / file.path)
            if Identity.of(os.stat(source)) != file.identity:  # linking moves ctime: this is the last that it tells
                raise Superseded(f"{local.folder}: changed before it was pinned: {file.path}")
            os.link(source, target)
    except FileNotFoundError as exc:
        raise Superseded(f"{local.folder}: changed before it was pinned: {exc}") from exc
    except OSError as exc:
        raise CheckpointError(f"{local.folder}: cannot be pinned by hard links: {exc}; use snapshot=None") from exc
    sidecar = _sidecar(folder)
    sidecar.write_bytes(local.sidecar.raw)
    os.utime(sidecar, ns=(local.sidecar_identity.mtime_ns, local.sidecar_identity.mtime_ns))
    pinned = inspect(folder)
    if local.doubtful_in(pinned) is None:  # rewritten since it was settled, perhaps in part only
        raise Superseded(f"{local.folder}: changed before it was pinned")
    with open(_mark(folder), "wb") as mark:
        mark.write(state_of(pinned, ctime=False).encode())
        mark.flush()
        os.fsync(mark.fileno())  # what is pinned may soon be the only copy, and counts for nothing without this
    return pinned


@dataclass(slots=True)
class TakenUp:
    """What became of leftovers: names put back to be shipped, and what could not be settled, with why."""

    put_back: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


def take_up(
    directory: Path, journal: Journal, scope: str, *, busy: Container[str] = (), is_start: bool = True
) -> TakenUp:
    """Settle what is pinned and not being shipped (``busy``), be it of a courier that died or of a ship that failed.

    A checkpoint that rotation took away meanwhile exists nowhere but here: it goes back to where it was. Of anything
    else the trainer's folder or the bucket has it, or it was never pinned whole, or its files, which it shares with
    the trainer's folder, were rewritten in place for the next version. What rotation has taken in part is completed
    at the start alone: later it may be at it, and would stumble over what comes back.
    """
    home, done = snapshots(directory), TakenUp()
    if home.is_symlink() or not home.is_dir():
        return done
    for folder in sorted(home.iterdir()):
        name = folder.name
        if name in busy or name.removesuffix(".json").removeprefix(".") in busy:
            continue
        try:
            if not folder.is_dir() or folder.is_symlink():
                _drop_orphan(folder)
            elif not _is_needed(folder, journal, scope):
                unpin(folder)
            elif _settle(folder, directory / name, is_start=is_start):
                done.put_back.append(name)
        except OSError as exc:
            done.troubles.append(f"{folder}: what is pinned there could not be settled: {exc}")
    return done


def let_go(folder: Path, original: Path) -> None:
    """After a ship that failed: drop what is pinned if the trainer's folder still has it all, else leave it.

    Raises nothing, as something else is on its way out: what cannot be settled now is told by ``take_up``.
    """
    with suppress(OSError):
        if _compare(original, folder) is _Original.WHOLE:
            unpin(folder)


class _Original(Enum):
    WHOLE = "the same"
    PARTIAL = "the same, as far as it is there"
    GONE = "not there, or its sidecar alone"
    OTHER = "another version"
    UNCLEAR = "an empty folder: the end of rotation, or the next version's beginning"


def _settle(folder: Path, original: Path, *, is_start: bool) -> bool:
    """True when a whole pinned checkpoint went back to where it was taken away from."""
    found = _compare(original, folder)
    if found is _Original.UNCLEAR or (found is _Original.PARTIAL and not is_start):
        return False
    if found is _Original.PARTIAL:
        for path in _files(folder):
            if not (original / path).exists():
                (original / path).parent.mkdir(parents=True, exist_ok=True)
                os.link(folder / path, original / path)
    sidecar = _sidecar(original)
    if found in (_Original.PARTIAL, _Original.GONE) and not sidecar.exists():
        os.link(_sidecar(folder), sidecar)
    if found is _Original.GONE:
        os.rename(folder, original)  # now it is whole; before, the next start goes on from here
    fsync_folder(original.parent)
    unpin(folder)
    return found in (_Original.PARTIAL, _Original.GONE)


def _compare(original: Path, folder: Path) -> _Original:
    """What the trainer's folder is to the pinned one, whose files it shares as long as it is the same."""
    sidecar = _sidecar(original)
    if os.path.lexists(sidecar) and sidecar.read_bytes() != _sidecar(folder).read_bytes():
        return _Original.OTHER
    if not os.path.lexists(original):
        return _Original.GONE
    pinned, there = _files(folder), _files(original)
    if any(path not in pinned or inode != pinned[path] for path, inode in there.items()):
        return _Original.OTHER
    if not there and not sidecar.exists():
        return _Original.UNCLEAR
    return _Original.WHOLE if len(there) == len(pinned) and sidecar.exists() else _Original.PARTIAL


def _files(folder: Path) -> dict[str, int]:
    """The inode of every file below a folder, by path."""
    found = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            found[str(path.relative_to(folder))] = path.stat().st_ino
    return found


def _drop_orphan(file: Path) -> None:
    """Remove a sidecar or mark whose folder is gone: whoever moved or removed that was stopped in between."""
    name = file.name.removesuffix(".json").removeprefix(".")
    if not file.with_name(name).exists() and not file.is_dir():
        file.unlink()


def _is_needed(folder: Path, journal: Journal, scope: str) -> bool:
    try:
        pinned, was = inspect(folder), _mark(folder).read_bytes().decode("ascii", "replace")
    except (CheckpointError, FormatError, NameRefused, FileNotFoundError):
        return False
    done = journal.done(scope, pinned.name)
    return was == state_of(pinned, ctime=False) and (done is None or done.state != was)


def unpin(folder: Path) -> None:
    """Drop a pinned checkpoint; the trainer's own files are not touched."""
    remove_tree(folder)
    _sidecar(folder).unlink(missing_ok=True)
    _mark(folder).unlink(missing_ok=True)


def _mark(folder: Path) -> Path:
    """Holds the state that was pinned, and is written last."""
    return folder.with_name(f".{folder.name}")


def _sidecar(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def record_original(
    journal: Journal, scope: str, name: str, original: LocalCheckpoint, pinned: LocalCheckpoint
) -> None:
    """Remember the trainer's folder as shipped: linking changed its files' ctime, and nothing else did."""
    done = journal.done(scope, name)
    try:
        now = inspect(original.folder)
    except (CheckpointError, FormatError, NameRefused):
        return  # rotated away meanwhile: nothing to remember
    if done is not None and _is_same(now, pinned):
        again = Done(state_of(now), done.epoch, done.prefix, done.manifest, done.origin)
        journal.record_done(scope, name, again, now)


def _is_same(now: LocalCheckpoint, pinned: LocalCheckpoint) -> bool:
    def key(local: LocalCheckpoint) -> list[tuple[str, int, int, int]]:
        return [(f.path, f.identity.size, f.identity.mtime_ns, f.identity.inode) for f in local.files]

    return key(now) == key(pinned) and now.sidecar.raw == pinned.sidecar.raw
