"""The cache of units: verified, bounded, shared, and never taking from under anybody's hands."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys

import pytest

from r2d1.datasets import UnitCache
from r2d1.errors import ConfigError, NoSpace, R2D1Error
from tests.datasets.making import sha

UNITS = [bytes([number]) * 1000 for number in range(10)]
HASHES = [sha(data) for data in UNITS]


def fill(cache, numbers):
    for at, number in enumerate(numbers):
        cache.store(HASHES[number], UNITS[number]).release()
        os.utime(cache.path(HASHES[number]), (at, at))


def there(cache):
    return {HASHES.index(path.name) for path in cache.directory.iterdir() if path.name in HASHES}


def test_what_is_stored_is_found(tmp_path):
    """A unit lies at its hash; one that is not there is None; letting go twice does no harm."""
    cache = UnitCache(tmp_path / "a" / "b")
    assert cache.pin(HASHES[0]) is None
    pin = cache.store(HASHES[0], UNITS[0])
    assert pin.path == tmp_path / "a" / "b" / HASHES[0]
    assert pin.path.read_bytes() == UNITS[0]
    pin.release()
    pin.release()
    again = cache.pin(HASHES[0])
    assert again is not None
    again.release()
    assert [path.name for path in cache.directory.iterdir()] == [HASHES[0]]


@pytest.mark.parametrize("damage", [b"", UNITS[0][:-1], UNITS[0] + b"x", b"x" * 1000])
def test_a_damaged_unit_is_removed(damage, tmp_path):
    """What a power cut or a disk made of a unit is not believed: it counts as absent and is stored anew."""
    cache = UnitCache(tmp_path)
    cache.store(HASHES[0], UNITS[0]).release()
    cache.path(HASHES[0]).write_bytes(damage)
    assert cache.pin(HASHES[0]) is None
    assert list(tmp_path.iterdir()) == []
    cache.store(HASHES[0], UNITS[0]).release()
    assert cache.path(HASHES[0]).read_bytes() == UNITS[0]


def test_the_least_recently_used_goes_first(tmp_path):
    """Above the limit the oldest go until there is a little room; a use makes a unit young."""
    cache = UnitCache(tmp_path, limit=5000)
    fill(cache, range(5))
    used = cache.pin(HASHES[0])
    assert used is not None
    used.release()
    cache.store(HASHES[5], UNITS[5]).release()
    assert there(cache) == {0, 3, 4, 5}


def test_what_is_held_stays(tmp_path):
    """Units that are pinned survive any number of others, whoever stores them."""
    cache = UnitCache(tmp_path, limit=3000)
    held = cache.store(HASHES[0], UNITS[0])
    os.utime(held.path, (0, 0))
    other = UnitCache(tmp_path, limit=3000)
    for number in range(1, 10):
        other.store(HASHES[number], UNITS[number]).release()
    assert 0 in there(cache)
    assert len(there(cache)) <= 3
    held.release()
    fill(other, [1, 2, 3, 4, 5])
    assert 0 not in there(cache)


HOLD = """
import sys
from r2d1.datasets import UnitCache
pin = UnitCache(sys.argv[1]).pin(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def test_what_another_process_holds_stays(tmp_path):
    """Another process's unit is not evicted while it lives; when it dies its hold dies with it."""
    cache = UnitCache(tmp_path, limit=3000)
    fill(cache, [0])
    command = [sys.executable, "-c", HOLD, str(tmp_path), HASHES[0]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "held\n"
        os.utime(cache.path(HASHES[0]), (0, 0))
        fill(cache, range(1, 10))
        assert 0 in there(cache)
        child.kill()
    fill(cache, range(1, 10))
    assert 0 not in there(cache)


def test_two_that_store_the_same_share_one_file(tmp_path):
    """The second to store a unit uses the first one's file, so that evicting sees both holds."""
    first, second = UnitCache(tmp_path, limit=2000), UnitCache(tmp_path, limit=2000)
    one, two = first.store(HASHES[0], UNITS[0]), second.store(HASHES[0], UNITS[0])
    one.release()
    os.utime(two.path, (0, 0))
    fill(first, range(1, 5))
    assert two.path.read_bytes() == UNITS[0]
    two.release()
    fill(first, range(1, 5))
    assert not two.path.exists()


def test_other_files_are_left_alone(tmp_path):
    """Only units and r2d1's own old temporary files are ever removed."""
    stale = tmp_path / f".{HASHES[0]}.0123456789abcdef.tmp"
    fresh = tmp_path / f".{HASHES[1]}.0123456789abcdef.tmp"
    note = tmp_path / "notes.txt"
    for path in (stale, fresh, note):
        path.write_bytes(b"x" * 5000)
    os.utime(stale, (0, 0))
    fill(UnitCache(tmp_path, limit=2000), range(5))
    assert not stale.exists()
    assert fresh.exists()
    assert note.exists()


def test_a_link_in_a_units_place_is_not_followed(tmp_path):
    """A planted link is an error that names the cache, and what it leads to is not touched."""
    (tmp_path / "secret").write_bytes(UNITS[0])
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / HASHES[0]).symlink_to(tmp_path / "secret")
    with pytest.raises(R2D1Error, match="cannot be used"):
        UnitCache(tmp_path / "cache").pin(HASHES[0])


PLANTED = {
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "a link": lambda path: os.symlink("/etc/passwd", path),
    "a link that leads nowhere": lambda path: os.symlink("nothing", path),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_no_file_in_a_units_place(what, tmp_path):
    """It is named and never opened for long; for room it is passed over, and other units go."""
    PLANTED[what](tmp_path / HASHES[0])
    cache = UnitCache(tmp_path, limit=3000)
    with pytest.raises(R2D1Error, match=f"cannot be used: {HASHES[0]} in it is no regular file"):
        cache.pin(HASHES[0])
    with pytest.raises(R2D1Error, match="is no regular file"):
        cache.store(HASHES[0], UNITS[0])
    fill(cache, range(1, 8))
    assert len(there(cache) - {0}) <= 3
    assert os.path.lexists(tmp_path / HASHES[0])


def test_what_is_no_file_under_a_temporary_name(tmp_path):
    """Old folders and links that bear the name of a temporary file are nobody's, and do no harm."""
    folder, link = (tmp_path / f".{HASHES[number]}.0123456789abcdef.tmp" for number in range(2))
    folder.mkdir()
    link.symlink_to("nothing")
    os.utime(folder, (0, 0))
    UnitCache(tmp_path).store(HASHES[0], UNITS[0]).release()
    assert folder.is_dir()
    assert link.is_symlink()


def test_a_unit_of_another_size_is_not_read(tmp_path, monkeypatch):
    """A file of many gigabytes in a unit's place costs a look at its size, not the memory or the time to read it."""
    cache = UnitCache(tmp_path)
    cache.store(HASHES[0], UNITS[0]).release()
    os.truncate(cache.path(HASHES[0]), 40 << 30)
    monkeypatch.setattr(os, "pread", None)
    assert cache.pin(HASHES[0], len(UNITS[0])) is None
    assert not cache.path(HASHES[0]).exists()


def test_a_folder_that_vanished_is_made_again(tmp_path):
    """Somebody who empties the disk meanwhile costs units, and nothing else."""
    cache = UnitCache(tmp_path / "cache")
    cache.store(HASHES[0], UNITS[0]).release()
    shutil.rmtree(tmp_path / "cache")
    cache.store(HASHES[1], UNITS[1]).release()
    assert there(cache) == {1}


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.ENOSPC, NoSpace, "no room for units"),
        (errno.EACCES, R2D1Error, "cannot be used: Permission denied. Remove or mend"),
    ],
)
@pytest.mark.parametrize("verb", ["open", "link", "unlink"])
def test_what_the_disk_refuses_is_named(verb, number, kind, text, tmp_path, monkeypatch):
    """Whichever step of storing is refused, the error is one of ours, with the cache's name."""
    cache = UnitCache(tmp_path)
    assert cache.pin(HASHES[0]) is None

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, verb, refuse)
    with pytest.raises(kind, match=text):
        cache.store(HASHES[0], UNITS[0])


def test_a_unit_of_another_user_stays(tmp_path, monkeypatch):
    """What may not be opened for a look at who holds it is not removed, and does not keep others from going."""
    cache = UnitCache(tmp_path, limit=3000)
    fill(cache, [0])
    open_ = os.open

    def guarded(path, flags, *args):
        if os.fspath(path).endswith(HASHES[0]):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return open_(path, flags, *args)

    monkeypatch.setattr(os, "open", guarded)
    fill(cache, range(1, 9))
    assert 0 in there(cache)
    assert len(there(cache)) <= 4


def test_a_cache_that_cannot_be_written_is_read(tmp_path, monkeypatch):
    """Units on a disk that is mounted for reading are found."""
    UnitCache(tmp_path).store(HASHES[0], UNITS[0]).release()

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refuse)
    pin = UnitCache(tmp_path).pin(HASHES[0])
    assert pin is not None
    pin.release()


def test_a_limit_without_room_is_refused(tmp_path):
    """A limit below what is in use at once makes no sense."""
    with pytest.raises(ConfigError, match="no room for the 5001 bytes"):
        UnitCache(tmp_path, limit=5000).require_room(5001)


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    """No space is an error of its own, with the cache's name, and leaves nothing behind."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = UnitCache(tmp_path)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NoSpace, match="no room for units"):
        cache.store(HASHES[0], UNITS[0])
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []
