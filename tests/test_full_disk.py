"""A full disk under r2d1's own state keeps no checkpoint from the bucket: the journal goes on in memory.

RLIMIT_FSIZE stands for the disk: a file of the child's can grow to the limit and no further, whoever runs the tests.
Under it no module is compiled to a file, which the interpreter would cut short without a word.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from r2d1 import localstate
from r2d1.errors import LockHeld, NoSpace, R2D1Error
from r2d1.journal import Done, Journal, scope_of
from r2d1.localstate import close_lock, held, open_lock, own_folder, private_folder, try_lock
from tests.checkpoints import MIB, files_of, random_files, write_checkpoint
from tests.children import child_env, run_script

SCOPE = scope_of("memory://bucket", "job")
DONE = Done("state", 7, "jobs/job/chk_7", "blake3:aa", "shipped")

LIMIT = """
import resource, sys
from r2d1 import Courier, Fetcher, R2D1Error

def limit(size):
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
"""

SHIP = (
    LIMIT
    + """
limit(int(sys.argv[2]))
with Courier.from_env() as courier:
    courier.watch(sys.argv[1], job_id="job")
    courier.flush(timeout=60)
"""
)

#: The disk has no room for another folder, as one of ext4 without a free block.
SHIP_WITHOUT_A_FOLDER = """
import errno, os, sys
from r2d1 import Courier, R2D1Error

def mkdir(path, mode=0o777, *, dir_fd=None):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

os.mkdir = mkdir
with Courier.from_env() as courier, Courier.from_env() as second:
    courier.watch(sys.argv[1], job_id="job")
    try:
        second.watch(sys.argv[1], job_id="job")
    except R2D1Error as exc:
        print(type(exc).__name__)
    courier.flush(timeout=60)
"""

PULL = (
    LIMIT
    + """
limit(int(sys.argv[2]))
with Fetcher.from_env() as fetcher:
    try:
        fetcher.pull("r2://jobs/job/latest", sys.argv[1])
    except R2D1Error as exc:
        print(exc)
"""
)

RECORD = """
import os, sys
from pathlib import Path
from r2d1.journal import Done, Journal
journal = Journal(Path(sys.argv[1]), wal=sys.argv[2] == "wal")
for number in range(300):
    journal.record_done("s", str(number), Done("state", number, "p", "m", "shipped"))
if sys.argv[3] == "killed":
    os._exit(0)
journal.close()
"""

KNOWN = (
    LIMIT
    + """
from pathlib import Path
from r2d1.journal import Done, Journal
limit(0)
journal = Journal(Path(sys.argv[1]), wal=sys.argv[2] == "wal")
journal.record_done("s", "new", Done("state", 300, "p", "m", "shipped"))
print(len(journal.all_done("s")))
journal.close()
"""
)


def refusing(code, function, matches):
    """A function of ``os`` that the disk refuses for the paths that match."""

    def refuse(path, *args, **options):
        if matches(path):
            raise OSError(code, os.strerror(code), path)
        return function(path, *args, **options)

    return refuse


# -- what is shipped and pulled ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10, 4096, 40_000, 100_000])
def test_it_ships(size, s3, tmp_path):
    """From the first start on, wherever the disk becomes full: at the lock's text, the database, its log, its memory."""
    files = {f"{number}.bin": os.urandom(100) for number in range(150)}
    write_checkpoint(tmp_path / "w", "chk_1", 1, files)
    run_script(SHIP, tmp_path / "w", size, env=child_env(s3.env()))
    assert {path: s3.get(f"jobs/job/chk_1/{path}") for path in files} == files
    assert len(s3.keys("jobs/job/.r2d1/heads/")) == 1


def test_it_ships_where_no_folder_can_be_made(s3, tmp_path):
    """There is no ``.r2d1`` and cannot be one; a second courier is refused all the same."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(a=1000))
    said = run_script(SHIP_WITHOUT_A_FOLDER, tmp_path / "w", env=child_env(s3.env()))
    assert said == "LockHeld\n"
    assert len(s3.keys("jobs/job/.r2d1/heads/")) == 1
    assert sorted(os.listdir(tmp_path / "w")) == ["chk_1", "chk_1.json"]


def test_a_pull_tells_what_it_lacks_room_for(s3, tmp_path):
    """The file that could not be written is named, not the journal, which goes on in memory."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(a=MIB))
    run_script(SHIP, tmp_path / "w", 100 * MIB, env=child_env(s3.env()))
    said = run_script(PULL, tmp_path / "out", 4096, env=child_env(s3.env()))
    assert "a.bin" in said
    assert "journal" not in said
    assert run_script(PULL, tmp_path / "out", 100 * MIB, env=child_env(s3.env())) == ""
    assert files_of(tmp_path / "out" / "chk_1") == files_of(folder)


# -- the journal ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["wal", "delete"])
@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_the_disk_holds_is_known(tmp_path, mode, end):
    """A start on a full disk reads what lies there, the log of a killed process included, and changes none of it."""
    run_script(RECORD, tmp_path, mode, end, env=child_env())
    assert run_script(KNOWN, tmp_path, mode, env=child_env()) == "301\n"
    journal = Journal(tmp_path, wal=mode == "wal")
    assert set(journal.all_done("s")) == {str(number) for number in range(300)}
    journal.close()
    assert not (tmp_path / "journal.broken").exists()


class Refusing:
    """A connection on which SQLite fails as on a disk that has become full, or is broken for reading too."""

    def __init__(self, db, code, *, is_readable):
        self._db, self._code, self._is_readable = db, code, is_readable

    def execute(self, sql, params=()):
        exc = sqlite3.OperationalError("refused")
        exc.sqlite_errorcode = self._code
        raise exc

    def __enter__(self):
        return self._db.__enter__()

    def __exit__(self, *exc):
        return self._db.__exit__(*exc)

    def backup(self, target):
        if not self._is_readable:
            self.execute("")
        self._db.backup(target)

    def close(self):
        self._db.close()


IO_ERRORS = [
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
]


@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("code", IO_ERRORS)
def test_it_goes_on_in_memory(tmp_path, caplog, code, is_readable):
    """Reading needs room as well. What the disk does not even let us copy is forgotten, which costs time."""
    journal = Journal(tmp_path)
    journal.record_done(SCOPE, "old", DONE)
    journal._db = Refusing(journal._db, code, is_readable=is_readable)
    assert journal.all_done(SCOPE) == ({"old": DONE} if is_readable else {})
    journal.record_done(SCOPE, "new", DONE)
    assert journal.done(SCOPE, "new") == DONE
    assert "(refused); until the next start it is kept in memory" in caplog.text
    journal.close()
    again = Journal(tmp_path)
    assert again.all_done(SCOPE) == {"old": DONE}
    again.close()


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CANTOPEN])
def test_what_a_disk_with_room_does_is_told(tmp_path, code):
    """Anything else stays an error: a journal that is busy has a disk to be on."""
    journal = Journal(tmp_path)
    journal._db = Refusing(journal._db, code, is_readable=True)
    with pytest.raises(R2D1Error, match=r"journal\.db: refused"):
        journal.all_done(SCOPE)
    journal.close()


def test_no_room_for_another_file(tmp_path, monkeypatch):
    """SQLite only says that it cannot open a file; trying to make one tells why."""

    def refuse(dir):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), dir)

    journal = Journal(tmp_path)
    journal.owe(SCOPE, "x")
    journal._db = Refusing(journal._db, sqlite3.SQLITE_CANTOPEN, is_readable=True)
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert journal.owed(SCOPE) == ["x"]
    journal.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("name", ["journal.db", "journal-opening.lock"])
def test_no_room_for_a_file_of_the_journal(tmp_path, monkeypatch, caplog, name, code):
    """Neither the file nor the lock by which openers take turns keeps a journal from being."""
    monkeypatch.setattr(os, "open", refusing(code, os.open, lambda path: Path(path).name == name))
    journal = Journal(tmp_path)
    journal.owe(SCOPE, "x")
    assert journal.owed(SCOPE) == ["x"]
    assert "kept in memory" in caplog.text
    journal.close()


def test_no_room_for_the_journals_folder(tmp_path, monkeypatch):
    """The same for the folder, and for one above it."""
    for directory in (tmp_path / ".r2d1", tmp_path / "far" / "r2d1"):
        monkeypatch.setattr(os, "mkdir", refusing(errno.ENOSPC, os.mkdir, lambda path: True))
        journal = Journal(directory)
        journal.owe(SCOPE, "x")
        assert journal.owed(SCOPE) == ["x"]
        journal.close()
        assert os.listdir(tmp_path) == []


# -- the locks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["pwrite", "ftruncate"])
def test_a_lock_needs_no_room(tmp_path, monkeypatch, caplog, step):
    """Where its owner cannot be written down, the lock is held by somebody without a name."""

    def refuse(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, refuse)
    with held(tmp_path / "x.lock", "x"), pytest.raises(LockHeld, match="x is held by another process"):
        with held(tmp_path / "x.lock", "x"):
            pass
    assert "the disk is full" in caplog.text


def test_other_failures_of_the_text_are_errors(tmp_path, monkeypatch):
    """Only a full disk is forgiven, and the lock is let go of."""

    def refuse(*_args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", refuse)
        with pytest.raises(OSError, match="Input/output"), held(tmp_path / "x.lock", "x"):
            pass
    with held(tmp_path / "x.lock", "x"):
        pass


@pytest.mark.parametrize("call", ["mkdir", "open"])
def test_without_room_for_the_lock_the_directory_is_locked(tmp_path, monkeypatch, call):
    """No file, or not even the folder for it: the watched directory stands in, under any of its names."""
    (tmp_path / "w").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("w")
    mine = (".r2d1", "courier.lock")
    monkeypatch.setattr(os, call, refusing(errno.ENOSPC, getattr(os, call), lambda path: Path(path).name in mine))
    with held(tmp_path / "link" / ".r2d1" / "courier.lock", "w"):
        with pytest.raises(LockHeld, match="w is held by another process"):
            with held(tmp_path / "w" / ".r2d1" / "courier.lock", "w"):
                pass
        with held(tmp_path / "other" / ".r2d1" / "courier.lock", "other"):
            pass
    with held(tmp_path / "w" / ".r2d1" / "courier.lock", "w"):
        pass
    assert localstate._lock_fds == set()


def test_without_room_elsewhere_nobody_is_shut_out(tmp_path, monkeypatch, caplog):
    """The home is full, and what the state is of is not to be told from its place: that is said, and work goes on."""
    monkeypatch.setattr(os, "mkdir", refusing(errno.EDQUOT, os.mkdir, lambda path: True))
    with held(tmp_path / "r2d1" / "0123456789abcdef" / "courier.lock", "w"):
        assert "another courier on this host would not be refused" in caplog.text
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [own_folder, private_folder, lambda path: private_folder(path / "below"), open_lock])
def test_no_room_is_told_as_such(tmp_path, monkeypatch, make):
    """It is ``NoSpace``, with the path and the reason, for those too who catch any ``OSError``."""
    for call in ("mkdir", "open"):
        monkeypatch.setattr(os, call, refusing(errno.ENOSPC, getattr(os, call), lambda path: Path(path).name != "w"))
    with pytest.raises(NoSpace, match=r"^/.*new.*: No space left on device$") as caught:
        make(tmp_path / "new")
    assert caught.value.strerror == "No space left on device"


def test_a_directory_that_was_locked_is_free_again(tmp_path, monkeypatch):
    """What stands in for the lock file holds nothing up once the block is left by an error."""
    monkeypatch.setattr(os, "mkdir", refusing(errno.ENOSPC, os.mkdir, lambda path: True))
    with pytest.raises(RuntimeError), held(tmp_path / ".r2d1" / "courier.lock", "w"):
        raise RuntimeError
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    other = open_lock(tmp_path / "x.lock")
    assert try_lock(other)
    close_lock(other)
