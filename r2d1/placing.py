"""Staging below ``<root>/.r2d1/`` and placing what was verified, so that no crash and no planted link misleads.

All of it blocks; ``locked`` alone waits asynchronously.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import anyio

from r2d1.errors import NoSpace, R2D1Error, UnsafeDestination
from r2d1.keys import STATE_DIR, parents
from r2d1.localstate import close_lock, far_state_directory, open_lock, own_folder, try_lock
from r2d1.tasks import in_thread

#: What says nothing of the destination, and may be gone the next time.
_MAY_PASS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.EINTR)


def state_dir(root: Path) -> Path:
    """``<root>/.r2d1``, made if missing; ``UnsafeDestination`` when somebody put a link or a file there."""
    root.mkdir(parents=True, exist_ok=True)
    return own_folder(root / STATE_DIR, mode=0o700)


@asynccontextmanager
async def locked(root: Path, what: str, *, patience: float | None = None) -> AsyncIterator[Path]:
    """Hold the lock of one thing that is pulled into ``root``; others wait. It dies with the process.

    ``TimeoutError`` when another one has it for longer than ``patience`` seconds.

    Where the file system has no locks, the lock lies with the state of this host and excludes nobody elsewhere.
    Gives the lock's file, which may be deleted while the lock is held, when what it guards is gone for good.
    """
    directory = await in_thread(state_dir, root)
    while True:
        fd, path = _open_lock(directory, root, f"{what}.lock")  # no await may stand between this and the `try`
        try:
            with anyio.fail_after(patience):
                while try_lock(fd) is False:  # noqa: ASYNC110 - another process holds it, no event of ours tells
                    await anyio.sleep(0.1)
            if await in_thread(_is_at, path, fd):
                yield path
                return
        finally:
            close_lock(fd)


def _open_lock(directory: Path, root: Path, name: str) -> tuple[int, Path]:
    path = directory / name
    fd = open_lock(path)
    if try_lock(fd) is None:
        close_lock(fd)
        far = far_state_directory(root)
        far.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = far / name
        fd = open_lock(path)
    return fd, path


def _is_at(path: Path, fd: int) -> bool:
    """Whether an open file still lies there: one that was deleted while we waited for it guards nothing."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def stage(root: Path, label: str, binding: str, sizes: Mapping[str, int]) -> Path:
    """Make the staging folder of one pull, with every folder it needs.

    What earlier pulls of the same ``label`` staged is moved over where path and size agree (its slices are
    verified before they count) and deleted otherwise. Returns the folder. ``UnsafeDestination`` when the
    file system cannot hold two of the paths beside each other (it folds case).
    """
    pulls = own_folder(state_dir(root) / "pull")
    staging = own_folder(pulls / f"{label}@{binding}")
    for folder in sorted({parent for path in sizes for parent in parents(path)}):
        own_folder(staging / folder)
    for old in sorted(pulls.glob(f"{label}@*")):
        if old != staging:
            _inherit(old, staging, sizes)
    _drop_strangers(staging, sizes)
    _refuse_folded(staging, sizes)
    return staging


def staged_paths(staging: Path) -> frozenset[str]:
    """The files that a staging folder holds already, whole or not."""
    walk = os.walk(staging)
    return frozenset(os.path.relpath(os.path.join(base, name), staging) for base, _, names in walk for name in names)


def _drop_strangers(staging: Path, sizes: Mapping[str, int]) -> None:
    """Nothing is placed that the manifest does not name."""
    for base, folders, names in os.walk(staging):
        links = [folder for folder in folders if os.path.islink(os.path.join(base, folder))]
        for name in [*names, *links]:
            full = os.path.join(base, name)
            if os.path.relpath(full, staging) not in sizes:
                os.unlink(full)


def _inherit(old: Path, staging: Path, sizes: Mapping[str, int]) -> None:
    for base, _, names in () if old.is_symlink() else os.walk(old):  # never through a link
        for name in names:
            theirs = os.path.join(base, name)
            path = os.path.relpath(theirs, old)
            if path in sizes and _is_file_of(theirs, sizes[path]) and not os.path.lexists(staging / path):
                os.rename(theirs, staging / path)
    remove_tree(old)


def _is_file_of(path: str, size: int) -> bool:
    info = os.lstat(path)
    return stat.S_ISREG(info.st_mode) and info.st_size == size


def _refuse_folded(staging: Path, sizes: Iterable[str]) -> None:
    """Two names that fold into one file would overwrite each other; ask the file system where names could fold."""
    folded: dict[str, list[str]] = {}
    for path in sizes:
        folded.setdefault(path.casefold(), []).append(path)
    for paths in folded.values():
        if len(paths) > 1 and _is_one_file(staging, paths):
            raise UnsafeDestination(f"this file system cannot hold {' and '.join(map(ascii, paths))} beside each other")


def _is_one_file(staging: Path, paths: list[str]) -> bool:
    inodes = set()
    for path in paths:
        os.close(os.open(staging / path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
        info = os.lstat(staging / path)
        inodes.add((info.st_dev, info.st_ino))
    return len(inodes) < len(paths)


def check_room(staging: Path, sizes: Mapping[str, int]) -> None:
    """``NoSpace`` when the disk cannot take what is still to come."""
    need, free = _room(staging, sizes)
    if need > free:
        raise NoSpace(f"{staging.parents[2]}: {_told(need, free)}")


def out_of_room(full: NoSpace, staging: Path, sizes: Mapping[str, int]) -> NoSpace:
    """What to say of a disk that became full while a pull wrote to it."""
    return NoSpace(f"{full}; {_told(*_room(staging, sizes))}")


def _room(staging: Path, sizes: Mapping[str, int]) -> tuple[int, int]:
    """The bytes that are still to come, and those that are free on the disk."""
    need = sum(size - min(size, _on_disk(staging / path)) for path, size in sizes.items())
    return need, shutil.disk_usage(staging).free


def _told(need: int, free: int) -> str:
    return (
        f"{need:,} bytes are to be pulled and {free:,} are free on that disk; "
        "make room or choose another destination (what is staged is kept)"
    )


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Raise r2d1's errors for what the disk refuses while ``what`` is done.

    ``NoSpace`` when it is full or a quota used up, ``UnsafeDestination`` when it does not let us, ``R2D1Error`` for
    what may pass.
    """
    try:
        yield
    except R2D1Error:
        raise
    except OSError as exc:
        path = os.fsdecode(exc.filename) if isinstance(exc.filename, str | bytes) else ""
        where = f": {path}" if path and path not in what else ""
        text = f"{what}{where}: {exc.strerror or exc}"
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(text) from exc
        if exc.errno in _MAY_PASS:
            raise R2D1Error(f"{text}; what is staged is kept, and the next pull goes on with it") from exc
        raise UnsafeDestination(f"{text}; what is staged is kept") from exc


def _on_disk(path: Path) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def place_checkpoint(root: Path, name: str, staging: Path, sidecar: bytes) -> Path:
    """Put a verified staging folder and its sidecar in place; returns the folder.

    The old sidecar goes first and the new one comes last, so at any crash a folder with a sidecar is whole.
    Whoever calls holds the lock of this name: what an earlier call that was cut short put aside is deleted.
    ``UnsafeDestination`` when what is in the way cannot be moved.
    """
    target, beside = root / name, root / f"{name}.json"
    own = state_dir(root)
    aside = own / f"aside-{name}"
    _fsync_tree(staging)
    remove_tree(aside)
    try:
        if os.path.lexists(beside):
            os.unlink(beside)
            fsync_folder(root)  # before the folder changes: no power cut may bring the old sidecar back to the new one
        if os.path.lexists(target):
            os.rename(target, aside)
        os.rename(staging, target)
        fsync_folder(root)
        _write_through(own / f"sidecar-{name}", beside, sidecar)
    except OSError as exc:
        raise UnsafeDestination(f"{target}: cannot be placed: {exc.strerror}; what was pulled is kept") from exc
    remove_tree(aside)
    return target


def keep_checkpoint(root: Path, name: str, label: str) -> Path:
    """Move a checkpoint that is in no bucket out of the way, to ``.r2d1/kept/<label>/``; returns its new folder.

    The sidecar is copied first and removed last: a crash in between leaves the checkpoint whole in one place or
    the other, and a second call goes on.
    """
    home = own_folder(own_folder(state_dir(root) / "kept") / label)
    beside, folder = root / f"{name}.json", home / name
    _write_through(home / ".sidecar", home / f"{name}.json", beside.read_bytes())
    os.rename(root / name, folder)
    fsync_folder(home)
    os.unlink(beside)
    fsync_folder(root)
    return folder


def _write_through(temporary: Path, target: Path, data: bytes) -> None:
    remove_tree(temporary)  # of a call that was cut short, or planted
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, target)
    fsync_folder(target.parent)


def place_file(root: Path, path: str, staged: Path) -> Path:
    """Move one verified file to ``<root>/<path>``; no link on the way is followed, one at its end is replaced."""
    *folders, name = path.split("/")
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            fd = _step_into(fd, folder, root / path)
        try:
            os.rename(staged, name, dst_dir_fd=fd)
        except IsADirectoryError as exc:
            raise UnsafeDestination(f"{root / path}: a folder is in the way of this file") from exc
        except OSError as exc:
            raise UnsafeDestination(f"{root / path}: cannot be placed: {exc.strerror}") from exc
        os.fsync(fd)
    finally:
        os.close(fd)
    return root / path


def _step_into(fd: int, folder: str, whole: Path) -> int:
    try:
        with suppress(FileExistsError):  # it is opened next, and refused there if it is no folder
            os.mkdir(folder, dir_fd=fd)
        deeper = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError as exc:
        if exc.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise UnsafeDestination(f"{whole}: {folder!a} on the way is a link or a file, not a folder") from exc
    os.close(fd)
    return deeper


def remove_tree(path: Path) -> None:
    """Delete what was put aside, be it a folder, a link or a file; what vanished meanwhile is fine."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    while os.path.lexists(path):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # somebody else deletes it too
        except PermissionError:
            if not _make_writable(path):
                raise


def _make_writable(folder: Path) -> bool:
    """Let the owner change every folder of a tree; whether any had to be."""
    has_changed = False
    for base, _, _ in os.walk(folder):
        mode = stat.S_IMODE(os.lstat(base).st_mode)
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(base, mode | stat.S_IRWXU)
            has_changed = True
    return has_changed


def _fsync_tree(folder: Path) -> None:
    for base, _, _ in os.walk(folder):
        fsync_folder(Path(base))


def fsync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
