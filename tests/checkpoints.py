"""What a trainer does: checkpoint folders with their sidecars, written as the sidecar convention says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

MIB = 1 << 20


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Fill a checkpoint folder, sub-folders included."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def write_sidecar(folder: Path, epoch: int, /, **fields: object) -> Path:
    """The JSON beside the folder, renamed into place; ``fields`` replace or extend the documented ones."""
    sidecar = folder.with_name(f"{folder.name}.json")
    temporary = sidecar.with_name(f".{sidecar.name}.tmp")
    document = {"name": folder.name, "epoch": epoch, "timestamp": 1_748_000_000.0 + epoch, "metadata": {"loss": 0.5}}
    temporary.write_text(json.dumps({**document, **fields}))
    os.replace(temporary, sidecar)
    return sidecar


def write_checkpoint(directory: Path, name: str, epoch: int, files: Mapping[str, bytes], /, **fields: object) -> Path:
    """A whole checkpoint: the folder first, the sidecar last. Returns the folder."""
    folder = directory / name
    write_files(folder, files)
    write_sidecar(folder, epoch, **fields)
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its path, hidden ones included."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def random_files(**sizes: int) -> dict[str, bytes]:
    """Files of random bytes: ``random_files(a=3)`` is ``{"a.bin": b"..."}`` with 3 bytes."""
    return {f"{name}.bin": os.urandom(size) for name, size in sizes.items()}
