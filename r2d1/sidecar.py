"""The sidecar: what training code says of a checkpoint, read leniently and written durably (formats §3)."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from r2d1 import keys, strictjson
from r2d1.errors import CheckpointError

MAX_SIDECAR_BYTES = 16 * 2**20  # formats §4, limits
_END_DIGITS = re.compile(r"([0-9]+)\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of the sidecar's ``files``; ``size`` and ``sha256`` only where the trainer gave them."""

    path: str
    size: int | None = None
    sha256: str | None = None

    @property
    def is_exact(self) -> bool:
        return self.size is not None and self.sha256 is not None


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A parsed sidecar. ``files`` is None when it does not list any; ``raw`` is what was on disk, byte for byte."""

    raw: bytes
    name: str
    epoch: int
    timestamp: float
    files: tuple[Listed, ...] | None
    metadata: Any
    warnings: tuple[str, ...] = ()


def parse_sidecar(raw: bytes, *, stem: str, mtime: float) -> Sidecar:
    """Read a sidecar leniently; ``FormatError`` when it is no JSON object (it may still be growing)."""
    fields = strictjson.parse_object(raw)
    warnings: list[str] = []
    name = fields.get("name", stem)
    name = name if isinstance(name, str) else stem
    return Sidecar(
        raw=raw,
        name=name,
        epoch=_epoch_of(fields.get("epoch"), name, warnings),
        timestamp=_timestamp_of(fields.get("timestamp"), mtime, warnings),
        files=_files_of(fields.get("files"), warnings),
        metadata={} if fields.get("metadata") is None else fields["metadata"],
        warnings=tuple(warnings),
    )


def _epoch_of(value: object, name: str, warnings: list[str]) -> int:
    epoch = _as_epoch(value)
    if epoch is not None:
        return epoch
    match = _END_DIGITS.search(name)
    fallback = int(match[1]) if match and len(match[1]) <= 16 and int(match[1]) <= keys.MAX_EPOCH else 0
    said = "no epoch" if value is None else f"epoch {ascii(value)[:80]} is not an integer from 0 to 2^53-1"
    warnings.append(f"{said}; {fallback} is taken from the name")
    return fallback


def _as_epoch(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 4000:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= keys.MAX_EPOCH else None


def _timestamp_of(value: object, mtime: float, warnings: list[str]) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15:
        return float(value)
    if value is not None:
        warnings.append(f"timestamp {ascii(value)[:80]} is no number; the sidecar's own time is taken")
    return mtime


def _files_of(value: object, warnings: list[str]) -> tuple[Listed, ...] | None:
    if value is None:
        return None
    listed = [_listed(item) for item in value] if isinstance(value, list) else [None]
    if None in listed:
        warnings.append("'files' is not a list of names or of {path, size, sha256}; the whole folder is shipped")
        return None
    return tuple(item for item in listed if item is not None)


def _listed(item: object) -> Listed | None:
    if isinstance(item, str):
        return Listed(item.rstrip("/"))
    if not isinstance(item, dict) or not isinstance(item.get("path"), str):
        return None
    size, sha256 = item.get("size"), item.get("sha256")
    return Listed(
        item["path"].rstrip("/"),
        size if isinstance(size, int) and not isinstance(size, bool) else None,
        sha256.lower() if isinstance(sha256, str) else None,
    )


def is_temporary(path: str) -> bool:
    """Whether a path is one of a writer's temporaries, left out unless the sidecar names it (formats §3)."""
    *folders, name = path.split("/")
    if any(folder.startswith("tmp-") for folder in folders):
        return True
    return any(fnmatchcase(name, pattern) for pattern in ("*.tmp", "*.lock", ".~*"))


def row_metadata(metadata: object) -> tuple[str, list[str]]:
    """The metadata as strict JSON text for a row, and the names of values JSON does not have."""
    lost: list[str] = []
    return strictjson.dump(strictjson.clean(metadata, lost=lost)), lost


def write_sidecar(
    folder: str | os.PathLike[str],
    *,
    epoch: int,
    metadata: Mapping[str, Any] | None = None,
    timestamp: float | None = None,
) -> Path:
    """Write ``<folder>.json`` for a finished checkpoint folder: the last step of saving it.

    Every file is fsynced first, then the sidecar is written to a temporary file and renamed, so a courier
    (or a crash) sees either no sidecar or a whole one. ``timestamp`` is seconds since the epoch, now if
    omitted. Values that JSON does not have (NaN, infinities) become ``null``; NumPy scalars become numbers.

    Raises ``CheckpointError`` when the folder is missing, ``NameRefused`` when its name cannot be shipped.
    Returns the sidecar's path.
    """
    folder = Path(folder)
    keys.check_name(folder.name)
    if _as_epoch(epoch) is None:
        raise CheckpointError(f"epoch {epoch!r} is not an integer from 0 to 2^53-1")
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; write the checkpoint first, its sidecar last")
    files = sorted(_fsync_files(folder))
    fields = {
        "name": folder.name,
        "epoch": int(epoch),
        "timestamp": time.time() if timestamp is None else timestamp,
        "files": files,
        "metadata": strictjson.clean(json.loads(json.dumps(dict(metadata or {}), default=_plain))),
    }
    return _replace(folder.parent / f"{folder.name}.json", json.dumps(fields, indent=2).encode(), folder)


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)  # NumPy and torch scalars
    return item() if callable(item) else str(value)


def _fsync_files(folder: Path) -> Iterator[str]:
    for base, folders, names in os.walk(folder):
        for name in names:
            full = os.path.join(base, name)
            path = os.path.relpath(full, folder)
            if os.path.isfile(full) and not is_temporary(path):
                _fsync(full)
                yield path
        for name in folders:
            _fsync(os.path.join(base, name))
    _fsync(folder)


def _fsync(path: str | os.PathLike[str]) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _replace(path: Path, data: bytes, folder: Path) -> Path:
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _fsync(path.parent)
    return path


def _umask() -> int:
    """The process's umask; it can only be read by setting it, so it is read from the kernel where that tells."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o022)
    except OSError:
        return 0o022
