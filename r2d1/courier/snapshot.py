"""Checkpoints pinned by hard links while they are shipped, so that a trainer's rotation cannot take them away."""

from __future__ import annotations

import os
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
    _mark(folder).write_text(state_of(pinned, ctime=False), encoding="ascii")
    return pinned


def take_up(directory: Path, journal: Journal, scope: str) -> list[str]:
    """Settle what a courier that died has left pinned; returns the names of what was put back to be shipped.

    A checkpoint that rotation took away meanwhile exists nowhere but here: it goes back to where it was. Of anything
    else the trainer's folder or the bucket has it, or it was never pinned whole, or its files, which it shares with
    the trainer's folder, were rewritten in place for the next version.
    """
    home, put_back = snapshots(directory), []
    if home.is_symlink() or not home.is_dir():
        return []
    for folder in sorted(home.iterdir()):
        if not folder.is_dir() or folder.is_symlink():
            continue
        original = directory / folder.name
        if not _is_taken(original, folder) and _is_needed(folder, journal, scope):
            if not _sidecar(original).exists():
                os.link(_sidecar(folder), _sidecar(original))
            os.rename(folder, original)  # now it is whole; before, the next start goes on from here
            fsync_folder(directory)
            put_back.append(folder.name)
        unpin(folder)
    return put_back


def _is_taken(original: Path, folder: Path) -> bool:
    """Whether the trainer has this checkpoint, or has begun another one of its name."""
    sidecar, mine = _sidecar(original), _sidecar(folder)
    return original.exists() or (sidecar.exists() and not (mine.exists() and sidecar.samefile(mine)))


def _is_needed(folder: Path, journal: Journal, scope: str) -> bool:
    try:
        pinned, was = inspect(folder), _mark(folder).read_text(encoding="ascii")
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
        journal.record_done(scope, name, Done(state_of(now), done.epoch, done.prefix, done.manifest, done.origin))


def _is_same(now: LocalCheckpoint, pinned: LocalCheckpoint) -> bool:
    def key(local: LocalCheckpoint) -> list[tuple[str, int, int, int]]:
        return [(f.path, f.identity.size, f.identity.mtime_ns, f.identity.inode) for f in local.files]

    return key(now) == key(pinned) and now.sidecar.raw == pinned.sidecar.raw
