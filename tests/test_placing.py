"""Staging and placing: no crash shows half a checkpoint, no planted link leads a write outside."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import anyio
import pytest

from r2d1 import placing
from r2d1.errors import NoSpace, UnsafeDestination
from r2d1.placing import (
    check_room,
    keep_checkpoint,
    locked,
    place_checkpoint,
    place_file,
    remove_tree,
    stage,
    state_dir,
)
from tests.checkpoints import files_of, write_files

OLD = {"a.bin": b"old", "sub/b.bin": b"old too", "only-old": b""}
NEW = {"a.bin": b"new bytes", "sub/deep/c.bin": b"new"}
OLD_SIDECAR, SIDECAR = b'{"epoch": 1}', b'{"epoch": 2}'


def sizes_of(files):
    return {path: len(data) for path, data in files.items()}


def staged(root, files=NEW, label="chk_1", binding="abcd"):
    staging = stage(root, label, binding, sizes_of(files))
    write_files(staging, files)
    return staging


def place_old(root):
    write_files(root / "chk_1", OLD)
    (root / "chk_1.json").write_bytes(OLD_SIDECAR)


# -- placing ----------------------------------------------------------------------------------------------------


def test_a_first_checkpoint_is_placed(tmp_path):
    """Folder and sidecar are there, and nothing of the way there stays."""
    folder = place_checkpoint(tmp_path, "chk_1", staged(tmp_path), SIDECAR)
    assert folder == tmp_path / "chk_1"
    assert files_of(folder) == NEW
    assert (tmp_path / "chk_1.json").read_bytes() == SIDECAR
    assert files_of(tmp_path / ".r2d1") == {}
    assert sorted(os.listdir(tmp_path)) == [".r2d1", "chk_1", "chk_1.json"]


def test_a_later_checkpoint_takes_the_place_of_the_old_one(tmp_path):
    """No file of the old version stays in the new one."""
    place_old(tmp_path)
    place_checkpoint(tmp_path, "chk_1", staged(tmp_path), SIDECAR)
    assert files_of(tmp_path / "chk_1") == NEW
    assert (tmp_path / "chk_1.json").read_bytes() == SIDECAR
    assert files_of(tmp_path / ".r2d1") == {}


@pytest.mark.parametrize("step", range(5))
def test_a_checkpoint_being_kept_is_whole_somewhere_at_any_step(tmp_path, monkeypatch, step):
    """Cut at any of its renames, the only copy is whole in its old place or in the new one."""
    place_old(tmp_path)
    left = [step]

    def cut(real):
        def call(*args, **kwargs):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name in ("rename", "unlink"):
            patched.setattr(os, name, cut(getattr(os, name)))
        try:
            keep_checkpoint(tmp_path, "chk_1", "label")
        except KeyboardInterrupt:
            assert step < 4
    kept = tmp_path / ".r2d1" / "kept" / "label"
    whole = [
        home
        for home in (tmp_path, kept)
        if (home / "chk_1").is_dir() and files_of(home / "chk_1") == OLD and (home / "chk_1.json").exists()
    ]
    assert len(whole) == 1
    assert whole == [kept] or step < 3


#: Places a new version over an old one in a forked child that dies at its n-th change of the file system, for every
#: n, and prints after each what can be seen, and after a second placing that is left alone.
CRASH = """
import os, shutil, signal, sys
from pathlib import Path
from r2d1 import placing
from tests.test_placing import NEW, OLD, OLD_SIDECAR, SIDECAR, place_old, staged

CALLS = ("open", "rename", "unlink", "rmdir", "fsync")
os.fsync = lambda fd: None  # a killed process loses nothing that a disk must keep


def die_at(n):
    left = [n]

    def dying(real):
        def call(*args, **kwargs):
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return real(*args, **kwargs)
        return call

    for name in CALLS:
        setattr(os, name, dying(getattr(os, name)))


def run(root, n):
    child = os.fork()
    if child == 0:
        staging = staged(root)
        if n is not None:
            die_at(n)
        placing.place_checkpoint(root, "chk_1", staging, SIDECAR)
        os.kill(os.getpid(), signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def seen(root):
    files = {}
    folder, sidecar = root / "chk_1", root / "chk_1.json"
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            files[str(path.relative_to(folder))] = path.read_bytes()
    beside = sidecar.read_bytes() if sidecar.exists() else None
    what = "old" if files == OLD else "new" if files == NEW else "none" if not folder.exists() else f"part{sorted(files)}"
    return what + "+" + {OLD_SIDECAR: "old", SIDECAR: "new", None: "none"}[beside]


for n in range(1000):
    root = Path(sys.argv[1], str(n))
    if sys.argv[2] == "over-old":
        root.mkdir()
        place_old(root)
    code = run(root, n)
    first = seen(root)
    run(root, None)
    left = [name for name in os.listdir(root / ".r2d1") if name != "pull"]
    print(first, seen(root), left, flush=True)
    shutil.rmtree(root)
    if code == -signal.SIGTERM:
        break
"""


@pytest.mark.parametrize("over", ["over-old", "over-nothing"])
def test_at_any_crash_a_folder_with_a_sidecar_is_whole(tmp_path, over):
    """Killed at every single step, a sidecar stands only beside the whole folder it belongs to; the next pull ends well."""
    done = subprocess.run(
        [sys.executable, "-c", CRASH, str(tmp_path), over],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    lines = done.stdout.splitlines()
    assert len(lines) > 12
    crashed = [line.split()[0] for line in lines]
    steps = ["none+none", "new+none", "new+new"]
    assert list(dict.fromkeys(crashed)) == (["old+old", "old+none", *steps] if over == "over-old" else steps)
    assert crashed[-1] == "new+new"
    assert all(line.split(maxsplit=1)[1] == "new+new []" for line in lines)


def test_the_disk_is_synced_in_order(tmp_path, monkeypatch):
    """No power cut can bring an old sidecar to a new folder: its removal is on disk before the folder is changed."""
    place_old(tmp_path)
    staging = staged(tmp_path)
    calls = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "unlink")}

    def fsync(fd):
        calls.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        real["fsync"](fd)

    def rename(source, target, **options):
        calls.append(f"rename {Path(source).name} {Path(target).name}")
        real["rename"](source, target, **options)

    def unlink(path, **options):
        real["unlink"](path, **options)
        calls.append(f"unlink {Path(path).name}")

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(os, "unlink", unlink)
    place_checkpoint(tmp_path, "chk_1", staging, SIDECAR)
    root = f"fsync {tmp_path.name}"
    at = calls.index("unlink chk_1.json")
    assert set(calls[:at]) == {"fsync chk_1@abcd", "fsync sub", "fsync deep"}
    assert calls[at : at + 8] == [
        "unlink chk_1.json",
        root,
        "rename chk_1 aside-chk_1",
        "rename chk_1@abcd chk_1",
        root,
        "fsync sidecar-chk_1",
        "rename sidecar-chk_1 chk_1.json",
        root,
    ]


def test_a_folder_that_cannot_be_moved_is_named(tmp_path, monkeypatch):
    """What is in the way is told as such, and what was pulled is kept for the next try."""
    place_old(tmp_path)
    staging = staged(tmp_path)
    real = os.rename

    def rename(source, target):
        if Path(source) == tmp_path / "chk_1":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(UnsafeDestination, match="chk_1: cannot be placed: Device or resource busy"):
        place_checkpoint(tmp_path, "chk_1", staging, SIDECAR)
    assert files_of(staging) == NEW
    assert files_of(tmp_path / "chk_1") == OLD


def test_a_folder_in_the_sidecars_place(tmp_path):
    """A folder called like the sidecar is in the way, and is not deleted."""
    write_files(tmp_path / "chk_1.json", {"precious": b""})
    with pytest.raises(UnsafeDestination, match="cannot be placed"):
        place_checkpoint(tmp_path, "chk_1", staged(tmp_path), SIDECAR)
    assert files_of(tmp_path / "chk_1.json") == {"precious": b""}


# -- planted links ----------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path):
    """A folder that must stay as it is, whatever is planted."""
    folder = tmp_path / "OUTSIDE"
    write_files(folder, {"a.bin": b"mine", "sub/b.bin": b"mine"})
    yield folder
    assert files_of(folder) == {"a.bin": b"mine", "sub/b.bin": b"mine"}


@pytest.fixture
def dest(tmp_path):
    (tmp_path / "dest").mkdir()
    return tmp_path / "dest"


def test_a_link_in_the_checkpoints_place_is_replaced(dest, outside):
    """``dest/chk_1`` is a link: the link goes, what it led to stays."""
    (dest / "chk_1").symlink_to(outside)
    (dest / "chk_1.json").symlink_to(outside / "a.bin")
    place_checkpoint(dest, "chk_1", staged(dest), SIDECAR)
    assert not (dest / "chk_1").is_symlink()
    assert not (dest / "chk_1.json").is_symlink()
    assert files_of(dest / "chk_1") == NEW


def test_a_link_within_the_old_checkpoint(dest, outside):
    """``dest/chk_1/sub`` is a link: it goes with the old folder."""
    write_files(dest / "chk_1", {"x": b""})
    (dest / "chk_1" / "sub").symlink_to(outside)
    place_checkpoint(dest, "chk_1", staged(dest), SIDECAR)
    assert files_of(dest / "chk_1") == NEW


@pytest.mark.parametrize("name", ["aside-chk_1", "sidecar-chk_1"])
def test_a_link_in_a_temporary_files_place(dest, outside, name):
    """A temporary name created beforehand as a link is taken away, not followed."""
    (state_dir(dest) / name).symlink_to(outside / "a.bin" if "sidecar" in name else outside)
    place_old(dest)
    place_checkpoint(dest, "chk_1", staged(dest), SIDECAR)
    assert files_of(dest / "chk_1") == NEW
    assert os.listdir(dest / ".r2d1") == ["pull"]


@pytest.mark.parametrize("path", [".r2d1", ".r2d1/pull", ".r2d1/pull/chk_1@abcd", ".r2d1/pull/chk_1@abcd/sub"])
def test_a_link_on_the_way_to_the_staging_folder(dest, outside, path):
    """A folder of ours that is a link is refused before anything is written, and named."""
    (dest / path).parent.mkdir(parents=True, exist_ok=True)
    (dest / path).symlink_to(outside)
    with pytest.raises(UnsafeDestination, match="is a link"):
        staged(dest)


def test_links_within_the_staging_folder(dest, outside):
    """A link that the manifest does not name is taken away; one in a file's place survives only to be refused."""
    staging = stage(dest, "chk_1", "abcd", {"a.bin": 3, "x/y": 1})
    (staging / "stray").symlink_to(outside / "a.bin")
    (staging / "straydir").symlink_to(outside)
    again = stage(dest, "chk_1", "abcd", {"a.bin": 3, "x/y": 1})
    assert not os.path.lexists(again / "stray")
    assert not os.path.lexists(again / "straydir")


def test_links_within_an_older_staging_folder(dest, outside):
    """Nothing is moved out of OUTSIDE through a link in what an earlier pull left."""
    older = stage(dest, "chk_1", "0123", {})
    (older / "sub").symlink_to(outside / "sub")
    (older / "a.bin").symlink_to(outside / "a.bin")
    staging = stage(dest, "chk_1", "abcd", {"sub/b.bin": 4, "a.bin": 4})
    assert files_of(staging) == {}
    (dest / ".r2d1" / "pull" / "chk_1@4567").symlink_to(outside)
    staging = stage(dest, "chk_1", "89ab", {"sub/b.bin": 4, "a.bin": 4})
    assert files_of(staging) == {}
    assert os.listdir(dest / ".r2d1" / "pull") == ["chk_1@89ab"]


def test_files_of_a_prefix_are_placed_without_following_links(dest, outside):
    """A link on the way is refused, one at the end is replaced; the folders that are missing are made."""
    staging = staged(dest, {"a": b"1", "b": b"2", "c": b"3"})
    assert place_file(dest, "new/deep/a.bin", staging / "a") == dest / "new/deep/a.bin"
    (dest / "link.bin").symlink_to(outside / "a.bin")
    place_file(dest, "link.bin", staging / "b")
    assert not (dest / "link.bin").is_symlink()
    (dest / "sub").symlink_to(outside / "sub")
    with pytest.raises(UnsafeDestination, match="sub/b.bin: 'sub' on the way"):
        place_file(dest, "sub/b.bin", staging / "c")
    assert files_of(staging) == {"c": b"3"}
    assert (dest / "new/deep/a.bin").read_bytes() + (dest / "link.bin").read_bytes() == b"12"


def test_what_is_in_the_way_of_a_file_of_a_prefix(dest):
    """A file where a folder should be, and a folder where a file should be, are named and kept."""
    staging = staged(dest, {"a": b"1"})
    write_files(dest, {"file": b"mine", "folder/x": b"mine"})
    with pytest.raises(UnsafeDestination, match="'file' on the way"):
        place_file(dest, "file/a", staging / "a")
    with pytest.raises(UnsafeDestination, match="a folder is in the way"):
        place_file(dest, "folder", staging / "a")
    assert (dest / "file").read_bytes() + (dest / "folder/x").read_bytes() == b"minemine"
    assert len(os.listdir("/proc/self/fd")) < 200


def test_a_file_that_cannot_be_placed_is_named(dest, monkeypatch):
    """Another file system below the destination is told as such."""
    staging = staged(dest, {"a": b"1"})

    def rename(source, target, **options):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(UnsafeDestination, match="b/a: cannot be placed: Invalid cross-device link"):
        place_file(dest, "b/a", staging / "a")


# -- staging ----------------------------------------------------------------------------------------------------


def test_an_interrupted_pull_finds_what_it_staged(tmp_path):
    """The same pull keeps its files, and what it does not name is taken away."""
    staging = staged(tmp_path)
    write_files(staging, {"stray": b"x", "sub/stray": b"x"})
    assert stage(tmp_path, "chk_1", "abcd", sizes_of(NEW)) == staging
    assert files_of(staging) == NEW


def test_a_changed_checkpoint_keeps_files_of_the_same_size(tmp_path):
    """What an earlier pull of the name staged is moved over where path and size agree, to be verified; the rest goes."""
    older = staged(tmp_path, {"same": b"123", "other": b"12", "sub/same": b"1", "gone": b""}, binding="0123")
    foreign = staged(tmp_path, {"x": b"1"}, label="chk_10", binding="0123")
    staging = stage(tmp_path, "chk_1", "abcd", {"same": 3, "other": 3, "sub/same": 1, "new": 0})
    assert files_of(staging) == {"same": b"123", "sub/same": b"1"}
    assert not older.exists()
    assert files_of(foreign) == {"x": b"1"}


def test_what_is_staged_already_is_not_replaced(tmp_path):
    """A file of the pull itself is better than an older one's."""
    staged(tmp_path, {"a": b"old"}, binding="0123")
    (tmp_path / ".r2d1" / "pull" / "chk_1@abcd").mkdir()
    write_files(tmp_path / ".r2d1" / "pull" / "chk_1@abcd", {"a": b"new"})
    assert files_of(stage(tmp_path, "chk_1", "abcd", {"a": 3})) == {"a": b"new"}


def test_names_that_only_differ_in_case_are_tried_on_the_disk(tmp_path):
    """A file system that keeps both takes both."""
    assert stage(tmp_path, "chk_1", "abcd", {"A/x": 1, "a/x": 1, "b": 1}).is_dir()


def test_a_disk_that_folds_case_refuses_both(tmp_path, monkeypatch):
    """Where two names are one file, the pull is refused and both are named."""
    real = os.open

    def folding(path, flags, mode=0o777, **options):
        return real(str(path).replace("Model", "model"), flags, mode, **options)

    real_lstat = os.lstat
    monkeypatch.setattr(os, "open", folding)
    monkeypatch.setattr(os, "lstat", lambda path, **options: real_lstat(str(path).replace("Model", "model"), **options))
    with pytest.raises(UnsafeDestination, match=r"'Model.bin' and 'model.bin'"):
        stage(tmp_path, "chk_1", "abcd", {"Model.bin": 1, "model.bin": 1})


def test_state_of_ours_is_private(tmp_path):
    """Staged files are their owner's until they are placed."""
    assert os.stat(state_dir(tmp_path / "new" / "dest")).st_mode & 0o777 == 0o700


Usage = namedtuple("Usage", "total used free")


def test_room_is_asked_for_before_the_first_byte(tmp_path, monkeypatch):
    """The disk must take what is still to come; what is staged counts, and the destination is named."""
    staging = staged(tmp_path, {"a": os.urandom(100_000)})
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(0, 0, 1_000))
    check_room(staging, {"a": 100_000, "b": 1_000})
    with pytest.raises(NoSpace, match=rf"{tmp_path}: 1,001 bytes are to be pulled and 1,000 are free"):
        check_room(staging, {"a": 100_000, "b": 1_001})
    (staging / "sparse").touch()
    os.truncate(staging / "sparse", 5_000)
    with pytest.raises(NoSpace):
        check_room(staging, {"sparse": 5_000})


# -- deleting ---------------------------------------------------------------------------------------------------


def test_trees_links_files_and_nothing_are_removed(tmp_path, outside):
    """Whatever was put aside goes; a link alone, never what it leads to."""
    write_files(tmp_path / "tree", {"a/b": b""})
    (tmp_path / "tree" / "link").symlink_to(outside)
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("tree", "link", "file", "pipe", "nothing"):
        remove_tree(tmp_path / name)
    assert os.listdir(tmp_path) == ["OUTSIDE"]


def test_a_tree_that_others_delete_too(tmp_path, monkeypatch):
    """What vanishes meanwhile is fine."""
    write_files(tmp_path / "tree", {"a/b": b"", "c": b""})
    real = shutil.rmtree

    def racing(path):
        if (tmp_path / "tree" / "c").exists():
            (tmp_path / "tree" / "c").unlink()
            raise FileNotFoundError(2, "No such file or directory")
        real(path)

    monkeypatch.setattr(shutil, "rmtree", racing)
    remove_tree(tmp_path / "tree")
    assert os.listdir(tmp_path) == []


def test_folders_that_were_made_read_only(tmp_path, monkeypatch):
    """A folder without write permission is given it, once; a refusal that stays is raised."""
    write_files(tmp_path / "tree", {"a/b": b""})
    os.chmod(tmp_path / "tree" / "a", 0o555)
    real = shutil.rmtree

    def strict(path):
        if os.stat(tmp_path / "tree" / "a").st_mode & 0o200 == 0:
            raise PermissionError(13, "Permission denied")
        real(path)

    monkeypatch.setattr(shutil, "rmtree", strict)
    remove_tree(tmp_path / "tree")
    assert os.listdir(tmp_path) == []
    write_files(tmp_path / "tree", {"a/b": b""})

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(PermissionError):
        remove_tree(tmp_path / "tree")


# -- locks ------------------------------------------------------------------------------------------------------


async def test_one_pull_of_a_name_at_a_time(tmp_path):
    """A second one waits until the first is done; another name does not."""
    order = []

    async def pull(name, what):
        async with locked(tmp_path, what):
            order.append(f"{name} begins")
            await anyio.sleep(0)
            order.append(f"{name} ends")

    async with anyio.create_task_group() as tasks:
        async with locked(tmp_path, "pull-a"):
            tasks.start_soon(pull, "second", "pull-a")
            await pull("other", "pull-b")
            order.append("first ends")
    assert order == ["other begins", "other ends", "first ends", "second begins", "second ends"]


async def test_waiting_for_a_lock_can_be_cancelled(tmp_path):
    """Who gives up waiting leaves nothing open, and the lock goes to the next."""
    before = len(os.listdir("/proc/self/fd"))
    async with locked(tmp_path, "x"):
        with anyio.move_on_after(0.01) as scope:
            async with locked(tmp_path, "x"):
                raise AssertionError("never reached")
        assert scope.cancelled_caught
    async with locked(tmp_path, "x"):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


async def test_where_there_are_no_locks_this_host_keeps_its_own(tmp_path, monkeypatch):
    """On a file system without locks the lock lies with the user's state, and still excludes."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    real = fcntl.flock

    def flock(fd, operation):
        if os.readlink(f"/proc/self/fd/{fd}").startswith(str(tmp_path / "dest")):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    async with locked(tmp_path / "dest", "x"):
        with anyio.move_on_after(0.01) as scope:
            async with locked(tmp_path / "dest", "x"):
                raise AssertionError("never reached")
        assert scope.cancelled_caught
    assert [path.name for path in (tmp_path / "state").rglob("*.lock")] == ["x.lock"]


async def test_with_no_locks_anywhere_a_pull_goes_on(tmp_path, monkeypatch):
    """A lock saves work; its absence stops nobody."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def flock(fd, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    async with locked(tmp_path / "dest", "x"):
        assert placing.state_dir(tmp_path / "dest").is_dir()
