"""Verified units on disk, shared by any number of processes, within a size: ``<directory>/<unit sha256>``."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from r2d1.errors import ConfigError, NoSpace, R2D1Error

_NAME = re.compile(r"[0-9a-f]{64}", re.ASCII)
_TEMPORARY = re.compile(r"\.[0-9a-f]{64}\.[0-9a-f]{16}\.tmp", re.ASCII)
#: A temporary file this old was left by a process that died.
_STALE_S = 3600.0
#: What an eviction leaves of the limit, so that not every unit evicts another.
_KEEP = 0.9
#: How often a unit is shown beside one that keeps coming and going.
_TRIES = 5
#: What file systems without hard links say.
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
#: What is said on opening a link or a socket.
_NO_FILE = (errno.ELOOP, errno.ENXIO)
#: Who may read a file and not say when: it is another user's, or the disk is not to be written.
_NO_TOUCH = (errno.EPERM, errno.EACCES, errno.EROFS)
_BLOCK = 1 << 20
#: After storing this share of the limit the directory is measured anew: other processes store there, too.
_MEASURE_AFTER = 0.125


@dataclass(slots=True, eq=False)
class Pin:
    """A unit that no process evicts until it is let go: an open file with a shared lock."""

    path: Path
    handle: int | None

    def release(self) -> None:
        """Let go; safe to call twice."""
        handle, self.handle = self.handle, None
        if handle is not None:
            os.close(handle)


class UnitCache:
    """A directory of units by their hash. ``limit`` in bytes (``None``: no limit); the least recently used go first.

    Files of other names are left alone. All calls block for a moment: make them in a worker thread.
    """

    def __init__(self, directory: str | os.PathLike[str], *, limit: int | None = None) -> None:
        self.directory = Path(directory)
        self.limit = limit
        self._lock = threading.Lock()
        self._size = 0
        self._since_measured = 0
        self._is_ready = False

    def path(self, sha256: str) -> Path:
        """Where a unit lies when it is cached."""
        return self.directory / sha256

    def require_room(self, size: int) -> None:
        """Raise ``ConfigError`` when the limit has no room for ``size`` bytes that are in use at once."""
        if self.limit is not None and self.limit < size:
            raise ConfigError(
                f"a cache limit of {self.limit} bytes has no room for the {size} bytes that are in use at once;"
                " raise it, or lower depth"
            )

    def pin(self, sha256: str, size: int | None = None) -> Pin | None:
        """A cached unit whose bytes were read and have this hash, or None. A damaged one is removed.

        One that has not the ``size`` in bytes, where it is given, is not read.
        """
        self._make_ready()
        path = self.path(sha256)
        with _disk_errors(self.directory):
            try:
                pin = Pin(path, _opened(path))
            except FileNotFoundError:
                return None
            try:
                is_good = _is_good(pin, sha256, size)
            except BaseException:
                pin.release()
                raise
        if not is_good:
            pin.release()
            return None
        return pin

    def store(self, sha256: str, data: bytes | bytearray) -> Pin:
        """Keep a unit whose hash was checked; ``NoSpace`` when the disk is full."""
        self._make_ready()
        with _disk_errors(self.directory):
            temporary, handle = self._temporary(sha256)
            pin = Pin(self.path(sha256), handle)
            try:
                _write_all(handle, data)
                _try_lock(handle, fcntl.LOCK_SH)
                theirs = self._show(temporary, sha256, len(data))
            except BaseException:
                pin.release()
                raise
            finally:
                temporary.unlink(missing_ok=True)
            if theirs is not None:
                pin.release()
                return theirs
            self._grown(len(data))
        return pin

    def _temporary(self, sha256: str) -> tuple[Path, int]:
        """A new file that no reader sees yet, and its handle."""
        path = self.directory / f".{sha256}.{secrets.token_hex(8)}.tmp"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return path, os.open(path, flags, 0o666)
        except FileNotFoundError:  # somebody has removed the whole folder
            self.directory.mkdir(parents=True, exist_ok=True)
        return path, os.open(path, flags, 0o666)

    def _show(self, temporary: Path, sha256: str, size: int) -> Pin | None:
        """Give a unit its name, unless another process has just done so: then its file is used.

        It must not be replaced, as those who hold it hold that very file.
        """
        for _ in range(_TRIES):
            try:
                os.link(temporary, self.path(sha256))
            except FileExistsError:
                if (theirs := self.pin(sha256, size)) is not None:
                    return theirs
            except OSError as exc:
                if exc.errno not in _NO_LINKS:
                    raise
                break
            else:
                return None
        os.replace(temporary, self.path(sha256))
        return None

    def _make_ready(self) -> None:
        with self._lock:
            if self._is_ready:
                return
            with _disk_errors(self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
                self._remove_stale()
                self._evict()
            self._is_ready = True

    def _remove_stale(self) -> None:
        for path, info in self._files(_TEMPORARY):
            if info.st_mtime < time.time() - _STALE_S:
                Path(path).unlink(missing_ok=True)

    def _grown(self, size: int) -> None:
        if self.limit is None:
            return
        with self._lock:
            self._size += size
            self._since_measured += size
            if self._size > self.limit or self._since_measured > self.limit * _MEASURE_AFTER:
                self._evict()

    def _evict(self) -> None:
        """Measure the directory and, above the limit, remove what was not used for longest and nobody holds."""
        if self.limit is None:
            return
        units = sorted((info.st_mtime_ns, info.st_size, path) for path, info in self._files(_NAME))
        self._size = sum(size for _, size, _ in units)
        self._since_measured = 0
        if self._size <= self.limit:
            return
        for _, size, path in units:
            if self._size <= self.limit * _KEEP:
                break
            if _removed(path):
                self._size -= size

    def _files(self, names: re.Pattern[str]) -> Iterator[tuple[str, os.stat_result]]:
        """The regular files with such names; what else may lie there is nobody's unit."""
        for entry in os.scandir(self.directory):
            if names.fullmatch(entry.name):
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # another process has evicted it
                    continue
                if stat.S_ISREG(info.st_mode):
                    yield entry.path, info


class _InTheWay(OSError):
    """What has a unit's name is no file."""


def _opened(path: str | Path) -> int:
    """Open a unit for reading, without waiting for whoever planted a pipe in its place."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as exc:
        if exc.errno not in _NO_FILE:
            raise
    else:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
    raise _InTheWay(errno.EEXIST, f"{os.path.basename(path)} in it is no regular file")


def _is_good(pin: Pin, sha256: str, size: int | None) -> bool:
    """Lock a unit that was opened and read it; a damaged one is removed."""
    assert pin.handle is not None
    if not _try_lock(pin.handle, fcntl.LOCK_SH) or (info := os.fstat(pin.handle)).st_nlink == 0:
        return False  # it is being evicted
    if (size is not None and info.st_size != size) or _sha256_of(pin.handle) != sha256:
        _remove_held(pin.handle, str(pin.path))
        return False
    try:
        os.utime(pin.handle)
    except OSError as exc:
        if exc.errno not in _NO_TOUCH:
            raise
        return True  # it only looks older than it is
    return True


def _removed(path: str) -> bool:
    """Remove a unit unless somebody holds it, or it is another user's who lets nobody look."""
    try:
        handle = _opened(path)
    except FileNotFoundError:
        return True
    except (_InTheWay, PermissionError):
        return False
    try:
        return _remove_held(handle, path)
    finally:
        os.close(handle)


def _remove_held(handle: int, path: str) -> bool:
    """Remove the file that is open unless another process holds it. Its name may belong to a newer one by now."""
    if not _try_lock(handle, fcntl.LOCK_EX):
        return False
    if os.fstat(handle).st_nlink:
        Path(path).unlink(missing_ok=True)
    return True


def _try_lock(handle: int, kind: int) -> bool:
    """Take a lock unless another holds one that excludes it; where the file system has no locks, go on without."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        return exc.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
    return True


def _sha256_of(handle: int) -> str:
    """The hash of a whole file, in hexadecimal."""
    hasher, at = hashlib.sha256(), 0
    while block := os.pread(handle, _BLOCK, at):
        hasher.update(block)
        at += len(block)
    return hasher.hexdigest()


def _write_all(handle: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    try:
        yield
    except NoSpace:
        raise
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(exc.errno, f"no room for units in {directory}; free some, or give the cache a limit") from exc
        hint = "Remove or mend what is named, or give another folder"
        raise R2D1Error(f"the cache {directory} cannot be used: {exc.strerror}. {hint}") from exc
