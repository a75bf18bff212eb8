"""Where local state is kept, and locks that name their owner and die with their process."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from r2d1 import localstate
from r2d1.errors import LockHeld, UnsafeDestination
from r2d1.localstate import (
    close_lock,
    far_state_directory,
    held,
    is_remote_file_system,
    open_lock,
    own_folder,
    state_directory,
    try_lock,
)  # fmt: skip


def mount_table(tmp_path, *lines):
    """A table of mounts as Linux writes it: ``(mount point, type)`` from the outside in."""
    table = tmp_path / "mountinfo"
    rows = [
        f"{n} 1 0:{n} / {point} rw,relatime shared:{n} - {kind} some:/where rw" for n, (point, kind) in enumerate(lines)
    ]
    table.write_text("\n".join(rows) + "\n")
    return table


@pytest.fixture
def xdg(tmp_path, monkeypatch):
    base = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(base))
    return base


def digest_of(directory):
    return hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:16]


# -- where ----------------------------------------------------------------------------------------------------


def test_state_lies_in_the_directory(tmp_path, xdg):
    """An ordinary directory keeps its own state, and SQLite's WAL can be trusted there."""
    assert state_directory(tmp_path, mounts=mount_table(tmp_path, ("/", "ext4"))) == (tmp_path / ".r2d1", True)


@pytest.mark.parametrize(
    "kind",
    ["nfs4", "nfs", "cifs", "smb3", "fuse.sshfs", "fuseblk", "fuse", "9p", "lustre", "ceph", "virtiofs", "wekafs"],
)
def test_state_on_a_network_file_system_lies_elsewhere(tmp_path, xdg, kind):
    """On a network or FUSE file system the state of this host is kept below XDG_STATE_HOME, without WAL."""
    directory = tmp_path / "w"
    directory.mkdir()
    table = mount_table(tmp_path, ("/", "ext4"), (tmp_path, kind))
    assert state_directory(directory, mounts=table) == (xdg / "r2d1" / digest_of(directory), False)


def test_state_of_a_read_only_directory_lies_elsewhere(tmp_path, xdg, monkeypatch):
    """A directory that cannot be written to keeps no state; one that only its ``.r2d1`` forbids neither."""
    directory = tmp_path / "w"
    directory.mkdir()
    refused = directory
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != refused)
    table = mount_table(tmp_path, ("/", "ext4"))
    elsewhere = (xdg / "r2d1" / digest_of(directory), False)
    assert state_directory(directory, mounts=table) == elsewhere
    refused = directory / ".r2d1"
    assert state_directory(directory, mounts=table) == (refused, True)
    refused.mkdir()
    assert state_directory(directory, mounts=table) == elsewhere


def test_two_names_of_one_directory_share_their_state(tmp_path, xdg):
    """The place elsewhere goes by the real path."""
    (tmp_path / "w").mkdir()
    (tmp_path / "link").symlink_to("w")
    assert far_state_directory(tmp_path / "link") == far_state_directory(tmp_path / "w")
    assert far_state_directory(tmp_path) != far_state_directory(tmp_path / "w")


@pytest.mark.parametrize("base", ["", "relative/path"])
def test_without_a_usable_xdg_state_home(tmp_path, monkeypatch, base):
    """Missing, empty or relative: the XDG default counts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", base)
    assert far_state_directory(tmp_path) == tmp_path / ".local/state/r2d1" / digest_of(tmp_path)


def test_the_deepest_mount_counts(tmp_path):
    """A local disk within a network mount is local, a network mount within a disk is not; the last of one place wins."""
    for name in ("net", "net/disk", "netx", "twice"):
        (tmp_path / name).mkdir()
    table = mount_table(
        tmp_path,
        ("/", "ext4"),
        (tmp_path / "net", "nfs4"),
        (tmp_path / "net/disk", "xfs"),
        (tmp_path / "twice", "autofs"),
        (tmp_path / "twice", "nfs4"),
    )
    assert is_remote_file_system(tmp_path / "net", mounts=table)
    assert is_remote_file_system(tmp_path / "net" / "not-yet-there", mounts=table)
    assert not is_remote_file_system(tmp_path / "net/disk", mounts=table)
    assert not is_remote_file_system(tmp_path / "netx", mounts=table)
    assert is_remote_file_system(tmp_path / "twice", mounts=table)
    assert not is_remote_file_system(tmp_path, mounts=table)
    turned = mount_table(tmp_path, (tmp_path / "net/disk", "xfs"), (tmp_path / "net", "nfs4"), ("/", "ext4"))
    assert not is_remote_file_system(tmp_path / "net/disk", mounts=turned)
    assert is_remote_file_system(tmp_path / "net", mounts=turned)


@pytest.mark.parametrize("name", ["with space", "ü日", "back\\slash", "tab\there"])
def test_mount_points_are_unescaped(tmp_path, name):
    """Linux writes spaces, tabs and backslashes of a mount point as octal escapes."""
    (tmp_path / name).mkdir()
    point = str(tmp_path / name).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011")
    assert is_remote_file_system(tmp_path / name, mounts=mount_table(tmp_path, ("/", "ext4"), (point, "nfs")))


def test_without_a_mount_table_everything_is_local(tmp_path):
    """Systems other than Linux do not tell."""
    assert not is_remote_file_system(tmp_path, mounts=tmp_path / "missing")


def test_the_real_mount_table_is_read():
    """The table of this machine parses, whatever is mounted here."""
    assert isinstance(is_remote_file_system(Path("/")), bool)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.symlink_to("outside"),
        lambda path: path.symlink_to("missing"),
    ],
)
def test_a_folder_of_ours_is_never_a_link_or_a_file(tmp_path, make):
    """What somebody put in its place is refused and named, and nothing is made outside."""
    (tmp_path / "outside").mkdir()
    make(tmp_path / ".r2d1")
    with pytest.raises(UnsafeDestination, match=r"\.r2d1"):
        own_folder(tmp_path / ".r2d1")
    assert os.listdir(tmp_path / "outside") == []
    assert not (tmp_path / "missing").exists()


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    """A disk that refuses is named with its reason."""

    def refuse(path, mode):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(UnsafeDestination, match=r"\.r2d1: r2d1 cannot keep its state here: Read-only file system"):
        own_folder(tmp_path / ".r2d1")


# -- who --------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from r2d1.localstate import held
with held(Path(sys.argv[1]), "x"):
    print("held", flush=True)
    sys.stdin.read()
"""


def start(program, *args):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_a_second_holder_is_told_who_has_it(tmp_path):
    """Another process that holds the lock is named; when it is killed, the lock is free at once."""
    path = tmp_path / "courier.lock"
    with start(HOLD, path) as child:
        assert child.stdout.readline() == "held\n"
        with (
            pytest.raises(LockHeld, match=rf"the directory /d is held by process {child.pid} on "),
            held(path, "the directory /d"),
        ):
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
        with held(path, "x"):
            assert path.read_text().startswith(f"process {os.getpid()} on ")


def test_one_process_cannot_hold_it_twice(tmp_path):
    """Two couriers in one process exclude each other like two processes; then the lock is free again."""
    path = tmp_path / "courier.lock"
    with held(path, "x"):
        with pytest.raises(LockHeld, match=f"process {os.getpid()}"), held(path, "x"):
            pass
        with pytest.raises(LockHeld), held(path, "x"):
            pass
    with held(path, "x"):
        pass


FORK = """
import os, signal, sys
from pathlib import Path
from r2d1.localstate import held
with held(Path(sys.argv[1]), "x"):
    ready, up = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(up, b"!")
        sys.stdin.read()
        os._exit(0)
    os.read(ready, 1)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    """A data loader's worker that outlives the killed courier does not hold up the courier that replaces it."""
    path = tmp_path / "courier.lock"
    with start(FORK, path) as parent:
        worker = int(parent.stdout.readline())
        parent.wait()
        os.kill(worker, 0)  # it lives
        with held(path, "x"):
            pass


UNWIND = """
import os, sys
from pathlib import Path
from r2d1.localstate import held
with held(Path(sys.argv[1]), "x"):
    child = os.fork()
    if child == 0:
        mine = os.open(os.devnull, os.O_RDONLY)
if child == 0:
    os.fstat(mine)
    os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_that_leaves_the_block_closes_nothing_of_its_own(tmp_path):
    """The number of the lock's file may be another file's in the child."""
    with start(UNWIND, tmp_path / "courier.lock") as parent:
        assert parent.wait() == 0


def test_a_planted_link_is_not_followed(tmp_path):
    """A lock file is never opened through a link."""
    (tmp_path / "x.lock").symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafeDestination, match=r"x\.lock"), held(tmp_path / "x.lock", "x"):
        pass
    assert not (tmp_path / "outside").exists()


def test_a_lock_file_is_private(tmp_path):
    """Nobody else can hold up a courier."""
    with held(tmp_path / "x.lock", "x"):
        assert os.stat(tmp_path / "x.lock").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_systems_without_locks_are_told(tmp_path, monkeypatch, code):
    """Where flock does not exist, ``try_lock`` says so, and a courier works without."""

    def flock(fd, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    fd = open_lock(tmp_path / "x.lock")
    assert try_lock(fd) is None
    localstate.wait_for_lock(fd)
    close_lock(fd)
    with held(tmp_path / "x.lock", "x"):
        pass


def test_other_failures_of_a_lock_are_errors(tmp_path, monkeypatch):
    """Only the absence of locks is forgiven."""

    def flock(fd, operation):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output"), held(tmp_path / "x.lock", "x"):
        pass


def test_closing_twice_is_harmless(tmp_path):
    """A number that was given back is not closed again: it may be somebody else's by then."""
    fd = open_lock(tmp_path / "x.lock")
    close_lock(fd)
    other = os.open(os.devnull, os.O_RDONLY)
    close_lock(fd)
    os.fstat(other)
    os.close(other)
