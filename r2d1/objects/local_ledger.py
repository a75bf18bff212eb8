"""The store's own files in a directory bucket: records of versions, notes of long names, locks. Everything here blocks.

All of it lies in ``.r2d1/``: ``meta/`` (ETag and headers, one small file a version), ``names/``, ``uploads/``,
``tmp/``, ``locks/`` and ``store.json``.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from r2d1.errors import BucketNotFound, FormatError, NoSpace, RemoteError
from r2d1.objects.local_names import OWN

_VERSION = 1

#: Temporary files of dead processes are removed when they are this old.
_STALE_TMP_S = 86_400.0

_LOCKS = 256

#: What the system says where a key has no file: none, a file where a folder would be, a link.
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Record:
    """What is kept of one version of an object beside its bytes."""

    etag: str
    content_type: str | None = None
    cache_control: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Version:
    """The file of an object, and what tells it from the version before and after."""

    path: Path
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path, status: os.stat_result) -> Version:
        return cls(path, status.st_size, status.st_mtime_ns, status.st_ino)


class Ledger:
    """The bookkeeping of the bucket in ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own = root / OWN
        self.folds_case = False

    def prepare(self) -> None:
        """Make the folders; ``BucketNotFound`` when not even the folder around the root is there."""
        try:
            self._root.mkdir(exist_ok=True)
        except FileNotFoundError as exc:
            raise BucketNotFound(
                "open", str(self._root), reason="no such directory", hint="Make it, or mount what should be there"
            ) from exc
        for name in ("meta", "uploads", "tmp", "locks", "names"):
            (self._own / name).mkdir(parents=True, exist_ok=True)
        self.folds_case = self._read_or_write_header()
        self._sweep()

    @property
    def uploads(self) -> Path:
        return self._own / "uploads"

    def new_temp(self) -> Path:
        """A path for a file to be written and then renamed; not made yet."""
        return self._own / "tmp" / secrets.token_hex(16)

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep every other writer of this key (or upload) out, in this process and others."""
        number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % _LOCKS
        fd = os.open(self._own / "locks" / f"{number:03}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def read_record(self, key: str, version: Version) -> Record | None:
        path = self._record_path(key, version)
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as exc:
            raise FormatError(f"{path}: not a record of an object; remove it to do without") from exc
        _require_version(path, data)
        return Record(data["etag"], data["content_type"], data["cache_control"], data["metadata"])

    def write_record(self, key: str, version: Version, record: Record) -> None:
        path = self._record_path(key, version)
        path.parent.mkdir(exist_ok=True)
        self.write_file(path, {"version": _VERSION, "key": key, **asdict(record)})

    def drop_record(self, key: str, version: Version) -> None:
        self._record_path(key, version).unlink(missing_ok=True)

    def note(self, name: str, segment: str) -> None:
        """Keep the segment of a key that a shortened name stands for."""
        path = self._note_path(name)
        if not path.exists():
            self.write_file(path, {"version": _VERSION, "segment": segment})

    def noted(self, name: str) -> str | None:
        """The segment behind a shortened name."""
        try:
            return str(json.loads(self._note_path(name).read_bytes())["segment"])
        except FileNotFoundError:
            return None

    def write_file(self, path: Path, document: Mapping[str, object]) -> None:
        """Write a JSON document atomically and durably."""
        temp = self.new_temp()
        with temp.open("xb") as file:
            file.write(json.dumps(document, sort_keys=True).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temp, path)
        sync(path.parent)

    def _record_path(self, key: str, version: Version) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return self._own / "meta" / digest[:2] / f"{digest}-{version.mtime_ns:x}-{version.size:x}.json"

    def _note_path(self, name: str) -> Path:
        return self._own / "names" / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    def _read_or_write_header(self) -> bool:
        """Whether names are spelt for a file system that folds case: settled when the bucket is made."""
        path = self._own / "store.json"
        try:
            header = json.loads(path.read_bytes())
        except FileNotFoundError:
            header = {"version": _VERSION, "folds_case": (self._own / "META").exists()}
            self.write_file(path, header)
        _require_version(path, header)
        return bool(header["folds_case"])

    def _sweep(self) -> None:
        before = time.time() - _STALE_TMP_S
        with os.scandir(self._own / "tmp") as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.stat().st_mtime < before:
                        os.unlink(entry)


@contextmanager
def disk_errors(operation: str, key: str) -> Iterator[None]:
    """Raise r2d1's errors for what the system says of the bucket's own files."""
    try:
        yield
    except RemoteError:
        raise
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(f"{operation} {key}: {exc.strerror}. Make room on the disk of the bucket") from exc
        where = f": {exc.filename}" if exc.filename else ""
        raise RemoteError(
            operation, key, reason=f"{exc.strerror or exc}{where}", hint="Check the directory of the bucket"
        ) from exc


def version_at(path: Path) -> Version | None:
    """The version in a file; None when it is no regular file."""
    try:
        status = path.lstat()
    except OSError as exc:
        if exc.errno in NO_FILE:
            return None
        raise
    return Version.of(path, status) if stat.S_ISREG(status.st_mode) else None


def stamped(temp: Path, old: Version | None) -> Version:
    """The version a file will be, its time moved on until it differs from the one it replaces."""
    version = Version.of(temp, temp.stat())
    step_ns = 1000
    while old is not None and (version.size, version.mtime_ns) == (old.size, old.mtime_ns):
        os.utime(temp, ns=(old.mtime_ns + step_ns,) * 2)
        sync(temp)
        version = Version.of(temp, temp.stat())
        step_ns *= 10  # some file systems keep whole seconds, or two
    return version


def sync(path: Path) -> None:
    """Make a file's or a folder's state durable; a folder that another process has removed meanwhile has none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOTSUP):  # folders on some network file systems
            raise
    finally:
        os.close(fd)


def _require_version(path: Path, document: Mapping[str, object]) -> None:
    if document.get("version") != _VERSION:
        raise FormatError(f"{path}: version {document.get('version')!r} is not known to this version of r2d1")
