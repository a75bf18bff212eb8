"""Deleting a local checkpoint so that whatever is cut short is finished by the next start, and nothing else is lost.

The sidecar goes first, so that nobody takes a folder half deleted for a checkpoint: it is moved into a trash folder
of its own, beside a note of the state that the bucket holds. The folder follows if it still is in that state.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from r2d1.checkpoint import LocalCheckpoint, inspect, inspect_as, read_sidecar, sidecar_path
from r2d1.errors import CheckpointError, FormatError, NameRefused
from r2d1.journal import state_of
from r2d1.keys import STATE_DIR
from r2d1.placing import remove_tree, state_dir

_TRASH = "trash-"
_STATE = "state"


def delete(directory: Path, local: LocalCheckpoint) -> bool:
    """Delete a checkpoint of a directory; False when it changed meanwhile and is left as it is. Blocks.

    Raises ``OSError``; what was begun is finished by ``finish_deletions``.
    """
    trash = state_dir(directory) / f"{_TRASH}{secrets.token_hex(6)}"
    trash.mkdir()
    (trash / _STATE).write_text(state_of(local, ctime=False), encoding="ascii")
    sidecar = sidecar_path(local.folder)
    os.rename(sidecar, trash / sidecar.name)
    return _finish(directory, trash)


def finish_deletions(directory: Path) -> None:
    """Go on with deletions that a crash cut short. Blocks; raises ``OSError``."""
    state = directory / STATE_DIR
    if state.is_dir():
        for trash in state.glob(f"{_TRASH}*"):
            _finish(directory, trash)


def _finish(directory: Path, trash: Path) -> bool:
    """Move the folder after its sidecar, unless somebody writes it anew, and remove both; whether they are gone."""
    sidecars = list(trash.glob("*.json")) if not trash.is_symlink() else []
    for sidecar in sidecars:
        folder, moved = directory / sidecar.stem, trash / sidecar.stem
        if not moved.exists():
            if os.path.lexists(sidecar_path(folder)) or not _is_as_noted(folder, trash):
                _put_back(folder, trash)
                return False
            os.rename(folder, moved)
        if not _is_as_noted(moved, trash):  # rewritten in the moment before it was moved
            _put_back(folder, trash)
            return False
        sidecar.unlink()  # from here on what lies here is to be removed, however little is left of it
    remove_tree(trash)
    return bool(sidecars)


def _is_as_noted(folder: Path, trash: Path) -> bool:
    try:
        sidecar = read_sidecar(trash / folder.name)
        local = inspect(folder) if folder.parent == trash else inspect_as(folder, *sidecar)
        return state_of(local, ctime=False) == (trash / _STATE).read_text(encoding="ascii")
    except (CheckpointError, FormatError, NameRefused, OSError):
        return False


def _put_back(folder: Path, trash: Path) -> None:
    """Leave things as they were; what has come in their place meanwhile stays."""
    moved, sidecar = trash / folder.name, sidecar_path(folder)
    if moved.exists() and not os.path.lexists(folder):
        os.rename(moved, folder)
    if folder.exists() and not moved.exists() and not os.path.lexists(sidecar):
        os.rename(trash / sidecar.name, sidecar)
    remove_tree(trash)
