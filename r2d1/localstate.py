"""Where local state is kept and who holds it: folders of r2d1's own, locks that die with their process (formats §6)."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from r2d1.errors import LockHeld, NoSpace, R2D1Error, UnsafeDestination
from r2d1.events import log
from r2d1.keys import STATE_DIR

_MOUNTS = Path("/proc/self/mountinfo")

#: File systems of other machines or of user space, on which SQLite's shared memory and locks cannot be trusted.
_REMOTE_TYPES = (
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "drvfs", "fuse", "gfs2", "glusterfs", "gpfs", "lustre", "ncp",
    "nfs", "ocfs2", "orangefs", "panfs", "prl_fs", "smb", "vboxsf", "virtiofs", "wekafs",
)  # fmt: skip

#: What flock says where a file system has no locks (Lustre without its flock option, NFS without a lock daemon).
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

#: What a write is refused with for want of room: on the disk, in a quota, or under the process's own RLIMIT_FSIZE.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def state_directory(directory: Path, *, mounts: Path = _MOUNTS) -> tuple[Path, bool]:
    """Where the state of a directory is kept, and whether SQLite's WAL can be trusted there."""
    own = directory / STATE_DIR
    is_writable = os.access(own if own.is_dir() else directory, os.W_OK | os.X_OK)
    if is_writable and not is_remote_file_system(directory, mounts=mounts):
        return own, True
    return far_state_directory(directory), False


def far_state_directory(directory: Path) -> Path:
    """Where the state of a directory is kept that cannot hold it itself."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
        base = os.path.expanduser("~/.local/state")
    digest = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:16]
    return Path(base) / "r2d1" / digest


def is_remote_file_system(directory: Path, *, mounts: Path = _MOUNTS) -> bool:
    """Whether a directory lies on a network or FUSE file system (told by Linux; elsewhere taken for local)."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as table:
            return _type_at(os.path.realpath(directory), table).startswith(_REMOTE_TYPES)
    except OSError:  # not Linux: there is no such table
        return False


def _type_at(real: str, table: Iterable[str]) -> str:
    """The type of the file system a path lies on: that of the last of the deepest mounts above it."""
    best, kind = "", ""
    for line in table:
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")
        if (real + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def own_folder(path: Path, mode: int = 0o777) -> Path:
    """A folder of r2d1's own, made if missing.

    ``UnsafeDestination`` when somebody put a link or a file there, or the disk does not let us; ``NoSpace`` when it
    is full.
    """
    try:
        path.mkdir(mode=mode, exist_ok=True)
    except FileExistsError as exc:
        raise UnsafeDestination(f"{path} is in the way of r2d1's own folder: remove it") from exc
    except OSError as exc:
        raise _refusal(f"{path}: r2d1 cannot keep its state here", exc) from exc
    if path.is_symlink():
        raise UnsafeDestination(f"{path} is a link, and writing through it could leave the destination: remove it")
    return path


def private_folder(path: Path) -> Path:
    """A folder for state that is its owner's alone, made if missing with those above it; raises like ``own_folder``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise _refusal(f"{path}: r2d1 cannot keep its state here", exc) from exc
    return own_folder(path, mode=0o700)


def _refusal(text: str, exc: OSError) -> R2D1Error:
    """What is raised where the disk does not let us."""
    text = f"{text}: {exc.strerror}"
    if exc.errno not in FULL:
        return UnsafeDestination(text)
    full = NoSpace(text)
    full.strerror = exc.strerror  # for those who catch any OSError and say in their own words what it was
    return full


_lock_fds: set[int] = set()


def _leave_locks_to_parent() -> None:
    """A forked child shares its parent's locks, and would hold them after the parent died."""
    while _lock_fds:
        os.close(_lock_fds.pop())


os.register_at_fork(after_in_child=_leave_locks_to_parent)


def open_lock(path: Path) -> int:
    """Open a lock file of ours; close it with ``close_lock``. ``NoSpace`` when there is none and no room for it."""
    return _opened(path, os.O_RDWR | os.O_CREAT)


def _opened(path: Path, flags: int) -> int:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise _refusal(f"{path}: the lock file cannot be opened", exc) from exc
    _lock_fds.add(fd)
    return fd


def close_lock(fd: int) -> None:
    """Let go of a lock file; nothing happens in a forked child, which has let go of it at its birth."""
    if fd in _lock_fds:
        _lock_fds.remove(fd)
        os.close(fd)


def try_lock(fd: int) -> bool | None:
    """Take a lock if it is free; None where the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        if exc.errno in _NO_LOCKS:
            return None
        raise
    return True


def wait_for_lock(fd: int) -> None:
    """Wait for a lock that others hold for moments only (blocks); where there are no locks, go on without."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, or raise ``LockHeld`` at once naming who has it. The lock dies with the process.

    A full disk does not keep anybody from working: where there is no room for the file, the directory is locked that
    the state is of. Where that is not known, for the state lies elsewhere, nobody is shut out.
    """
    try:
        fd = open_lock(private_folder(path.parent) / path.name)
    except NoSpace as full:
        if path.parent.name != STATE_DIR:
            log.warning("%s; going on without it: another courier on this host would not be refused", full)
            yield
            return
        log.warning("%s; the directory itself is locked in its place", full)
        fd = _opened(Path(os.path.realpath(path.parent.parent)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        if try_lock(fd) is False:
            raise LockHeld(f"{what} is held by {_owner(fd) or 'another process'}")
        _write_owner(fd)
        yield
    finally:
        close_lock(fd)


def _owner(fd: int) -> str:
    return os.pread(fd, 300, 0).decode(errors="replace").strip() if _is_file(fd) else ""


def _write_owner(fd: int) -> None:
    """Say in a lock file who holds it. The lock itself takes no room, so a full disk only leaves its owner unnamed."""
    if not _is_file(fd):
        return
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except OSError as exc:
        if exc.errno not in FULL:
            raise
        log.warning("the disk is full: others that want the lock are not told that this process holds it")


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)
