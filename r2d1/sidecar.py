"""The sidecar: what training code says of a checkpoint, read leniently and written durably (formats §3)."""

from __future__ import annotations

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
from r2d1.events import log

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
    name = _name_of(fields.get("name"), stem, warnings)
    return Sidecar(
        raw=raw,
        name=name,
        epoch=_epoch_of(fields.get("epoch"), name, warnings),
        timestamp=_timestamp_of(fields.get("timestamp"), mtime, warnings),
        files=_files_of(fields.get("files"), warnings),
        metadata={} if fields.get("metadata") is None else fields["metadata"],
        warnings=tuple(warnings),
    )


def _name_of(value: object, stem: str, warnings: list[str]) -> str:
    if isinstance(value, str) and value:
        return value
    if value is not None:
        warnings.append(f"name {_brief(value)} is no name; {stem!a}, the file's, is taken")
    return stem


def _brief(value: object) -> str:
    return ascii(value)[:80]


def _epoch_of(value: object, name: str, warnings: list[str]) -> int:
    epoch = _as_epoch(value)
    if epoch is not None:
        return epoch
    match = _END_DIGITS.search(name)
    fallback = (_as_epoch(match[1]) if match else None) or 0
    said = "no epoch" if value is None else f"epoch {_brief(value)} is not an integer from 0 to 2^53-1"
    warnings.append(f"{said}; {fallback} is taken from the name")
    return fallback


def _as_epoch(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit():
        digits = value.lstrip("0") or "0"
        value = int(digits) if len(digits) <= 16 else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and 0 <= value <= keys.MAX_EPOCH else None


def _timestamp_of(value: object, mtime: float, warnings: list[str]) -> float:
    timestamp = strictjson.as_finite(value)
    if timestamp is not None:
        return timestamp
    if value is not None:
        warnings.append(f"timestamp {_brief(value)} is no number; the sidecar's own time is taken")
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

    Every file is fsynced first and listed with its size, then the sidecar is written to a temporary file and
    renamed, so a courier (or a crash) sees either no sidecar or a whole one, and a file that is cut off later is
    not taken for this checkpoint's. ``timestamp`` is seconds since the epoch, now if
    omitted. Values that JSON does not have (NaN, infinities) become ``null``; NumPy and torch scalars and
    arrays become numbers and lists, anything else its ``str``.

    Raises ``CheckpointError`` when the folder is missing or the epoch is none, ``NameRefused`` when a name in it
    (or its own) cannot be shipped, ``OSError`` when the disk refuses. Returns the sidecar's path.
    """
    folder = Path(folder)
    keys.check_name(folder.name)
    number = _as_epoch(_plain(epoch) if not isinstance(epoch, (int, float, str)) else epoch)
    if number is None:
        raise CheckpointError(f"epoch {epoch!r} is not an integer from 0 to 2^53-1")
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; write the checkpoint first, its sidecar last")
    sizes = dict(sorted(_fsync_files(folder)))
    keys.check_paths(sizes)
    fields = {
        "name": folder.name,
        "epoch": number,
        "timestamp": time.time() if timestamp is None else timestamp,
        "files": [{"path": path, "size": size} for path, size in sizes.items()],
        "metadata": {} if metadata is None else dict(metadata),
    }
    lost: list[str] = []
    text = strictjson.dump(strictjson.clean(fields, lost=lost, other=_plain), is_pretty=True)
    if lost:
        log.warning("%s: null stands for what JSON has no number for: %s", folder.name, ", ".join(lost[:20]))
    return _replace(folder.parent / f"{folder.name}.json", text.encode())


def _plain(value: Any) -> Any:
    """What JSON has for an object: NumPy's and torch's know lists and numbers of themselves."""
    if isinstance(value, Mapping):
        return dict(value)
    to_list = getattr(value, "tolist", None)
    plain = to_list() if callable(to_list) else None
    return plain if isinstance(plain, (bool, int, float, str, list)) else str(value)


def _fsync_files(folder: Path) -> Iterator[tuple[str, int]]:
    """Path and size of every file that is shipped, each on the disk by then."""
    for base, folders, names in os.walk(folder, onerror=_refuse):
        if base == os.fspath(folder) and keys.STATE_DIR in folders:
            folders.remove(keys.STATE_DIR)  # r2d1's own, left out when shipping
        for name in names:
            full = os.path.join(base, name)
            path = os.path.relpath(full, folder)
            if os.path.isfile(full) and not is_temporary(path):
                yield path, _fsync(full)
        for name in folders:
            _fsync(os.path.join(base, name))
    _fsync(folder)


def _refuse(error: OSError) -> None:
    raise error


def _fsync(path: str | os.PathLike[str]) -> int:
    """Have a file or folder on the disk; returns its size."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _replace(path: Path, data: bytes) -> Path:
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _fsync(path.parent)
    return path


def _umask() -> int:
    """The process's umask; it can only be read by setting it, so it is read from the kernel where that tells."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next((int(line.split()[1], 8) for line in status if line.startswith("Umask:")), 0o022)
    except OSError:
        return 0o022
