"""The journal: survives kill -9, serves several processes, keeps scopes apart, and is no loss when it breaks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from r2d1.checkpoint import Identity, inspect
from r2d1.errors import R2D1Error, UnsafeDestination
from r2d1.journal import Done, Journal, Sent, StoredPart, StoredUpload, UnderWay, scope_of, state_of
from r2d1.objects import BodyCheck
from tests.checkpoints import write_checkpoint, write_sidecar

SCOPE = scope_of("memory://bucket", "job")
DONE = Done("state", 7, "jobs/job/chk_7", "blake3:aa", "shipped")
SHIP = UnderWay("0", "f" * 32, "state")
PART = StoredPart(1, "etag", 5, "ab", BodyCheck("crc64nvme", "AAAA:="))
WHO = Identity(5, 10**18, 10**18 + 1, 77)
SENT = Sent("a.bin", '{"x": 1}', Path("/w/chk_8/a.bin"), WHO, 16, "blake3:ab", ("ab", "cd"))


@pytest.fixture
def journal(tmp_path):
    journal = Journal(tmp_path / ".r2d1")
    yield journal
    journal.close()


def reopened(journal, **options):
    journal.close()
    return Journal(journal.path.parent, **options)


# -- what is remembered ---------------------------------------------------------------------------------------


def test_everything_is_there_again_after_a_restart(tmp_path):
    """Each kind of record is read back as it was written, from the file."""
    first = Journal(tmp_path)
    first.record_done(SCOPE, "chk_7", DONE)
    first.begin_ship(SCOPE, "chk_8", SHIP)
    first.record_sent(SCOPE, "chk_8", "0", [SENT])
    first.record_upload(SCOPE, "chk_8", "k", "u-1", 16)
    first.record_part(SCOPE, "chk_8", "k", PART)
    first.record_part(SCOPE, "chk_8", "k", StoredPart(10, "e", 1, "cd"))
    first.record_part(SCOPE, "chk_8", "k", StoredPart(2, "e", 1, "cd"))
    first.record_digest(Path("/w/chk_8/b.bin"), WHO, 16, "blake3:cd", ())
    first.owe(SCOPE, "chk_7")
    again = reopened(first)
    assert again.done(SCOPE, "chk_7") == DONE
    assert again.all_done(SCOPE) == {"chk_7": DONE}
    assert again.under_way(SCOPE, "chk_8") == SHIP
    assert again.names_under_way(SCOPE) == ["chk_8"]
    assert again.sent_entries(SCOPE, "chk_8", "0") == {"a.bin": '{"x": 1}'}
    parts = (PART, StoredPart(2, "e", 1, "cd"), StoredPart(10, "e", 1, "cd"))
    assert again.uploads(SCOPE, "chk_8") == [StoredUpload("k", "u-1", 16, parts)]
    assert again.digest(Path("/w/chk_8/a.bin"), WHO, "blake3", 16) == ("blake3:ab", ("ab", "cd"))
    assert again.digest(Path("/w/chk_8/b.bin"), WHO, "blake3", 16) == ("blake3:cd", ())
    assert again.owed(SCOPE) == ["chk_7"]
    again.close()


def test_what_was_never_written_is_absent(journal):
    """An empty journal knows nothing."""
    assert journal.done(SCOPE, "x") is None
    assert journal.under_way(SCOPE, "x") is None
    assert journal.sent_entries(SCOPE, "x", "0") == {}
    assert journal.digest(Path("/a"), WHO, "blake3", 16) is None
    assert journal.uploads(SCOPE, "x") == journal.owed(SCOPE) == journal.names_under_way(SCOPE) == []
    assert journal.all_done(SCOPE) == {}


def under_way(journal, name):
    journal.begin_ship(SCOPE, name, SHIP)
    journal.record_sent(SCOPE, name, "0", [SENT])
    journal.record_upload(SCOPE, name, "k", "u", 16)
    journal.record_part(SCOPE, name, "k", PART)


def knows_ship(journal, name):
    return (
        journal.under_way(SCOPE, name) is not None
        or journal.sent_entries(SCOPE, name, "0") != {}
        or journal.uploads(SCOPE, name) != []
    )


@pytest.mark.parametrize(
    "end",
    [
        lambda journal: journal.record_done(SCOPE, "chk_8", DONE),
        lambda journal: journal.end_ship(SCOPE, "chk_8"),
        lambda journal: journal.begin_ship(SCOPE, "chk_8", UnderWay("0", "e" * 32, "other")),
    ],
)
def test_a_ship_that_ended_leaves_nothing(journal, end):
    """Committed, given up or replaced: its uploads and files are forgotten in the same step, other names' are not."""
    under_way(journal, "chk_8")
    under_way(journal, "chk_9")
    end(journal)
    assert journal.sent_entries(SCOPE, "chk_8", "0") == {}
    assert journal.uploads(SCOPE, "chk_8") == []
    assert journal.under_way(SCOPE, "chk_8") in (None, UnderWay("0", "e" * 32, "other"))
    assert knows_ship(journal, "chk_9")


def test_an_upload_begun_anew_has_no_parts(journal):
    """Parts belong to the upload they were sent to."""
    under_way(journal, "chk_8")
    journal.record_upload(SCOPE, "chk_8", "k", "u-2", 32)
    assert journal.uploads(SCOPE, "chk_8") == [StoredUpload("k", "u-2", 32, ())]
    journal.forget_upload(SCOPE, "chk_8", "k")
    assert journal.uploads(SCOPE, "chk_8") == []
    journal.record_upload(SCOPE, "chk_8", "k", "u-3", 32)
    journal.forget_uploads(SCOPE, "chk_8")
    assert journal.uploads(SCOPE, "chk_8") == []
    assert journal.under_way(SCOPE, "chk_8") == SHIP


def test_what_is_owed_is_owed_once(journal):
    """A row is owed until it is paid, however often that is said."""
    for name in ("b", "a", "b"):
        journal.owe(SCOPE, name)
    assert journal.owed(SCOPE) == ["a", "b"]
    journal.paid(SCOPE, "b")
    journal.paid(SCOPE, "never owed")
    assert journal.owed(SCOPE) == ["a"]


def test_forgetting_that_something_is_done(journal):
    """A checkpoint that the bucket lost is shipped again."""
    journal.record_done(SCOPE, "chk_7", DONE)
    journal.forget_done(SCOPE, "chk_7")
    assert journal.done(SCOPE, "chk_7") is None


OTHERS = [scope_of("memory://other", "job"), scope_of("memory://bucket", "job2"), scope_of("memory://bucket job", "")]


@pytest.mark.parametrize("other", OTHERS)
def test_scopes_are_apart(journal, other):
    """What is known of one bucket, endpoint or job says nothing about another one, and is not forgotten with it."""
    journal.record_done(SCOPE, "x", DONE)
    under_way(journal, "x")
    journal.owe(SCOPE, "x")
    assert journal.done(other, "x") is None
    assert journal.all_done(other) == {}
    assert journal.under_way(other, "x") is None
    assert journal.sent_entries(other, "x", "0") == {}
    assert journal.uploads(other, "x") == journal.owed(other) == journal.names_under_way(other) == []
    journal.end_ship(other, "x")
    journal.forget_done(other, "x")
    journal.forget_uploads(other, "x")
    journal.forget_upload(other, "x", "k")
    journal.paid(other, "x")
    journal.record_done(other, "x", Done("s", 1, "p", "m", "pulled"))
    assert journal.done(SCOPE, "x") == DONE
    assert journal.owed(SCOPE) == ["x"]
    assert journal.uploads(SCOPE, "x") == [StoredUpload("k", "u", 16, (PART,))]


def test_no_two_scopes_look_alike():
    """A directory's name and a job id may hold spaces."""
    assert scope_of("file:///a b", "c") != scope_of("file:///a", "b c")


@pytest.mark.parametrize(
    ("path", "identity", "algorithm", "part_size"),
    [
        (Path("/b"), WHO, "blake3", 16),
        (Path("/a"), Identity(6, WHO.mtime_ns, WHO.ctime_ns, WHO.inode), "blake3", 16),
        (Path("/a"), Identity(5, WHO.mtime_ns + 1, WHO.ctime_ns, WHO.inode), "blake3", 16),
        (Path("/a"), Identity(5, WHO.mtime_ns, WHO.ctime_ns + 1, WHO.inode), "blake3", 16),
        (Path("/a"), Identity(5, WHO.mtime_ns, WHO.ctime_ns, WHO.inode + 1), "blake3", 16),
        (Path("/a"), WHO, "sha256", 16),
        (Path("/a"), WHO, "blake3", 32),
    ],
)
def test_a_digest_counts_for_one_state_of_one_file(journal, path, identity, algorithm, part_size):
    """Another file, another state of it, another algorithm or slicing: hashed again."""
    journal.record_digest(Path("/a"), WHO, 16, "blake3:ab", ())
    assert journal.digest(path, identity, algorithm, part_size) is None
    assert journal.digest(Path("/a"), WHO, "blake3", 16) == ("blake3:ab", ())


def test_digests_of_a_deleted_folder(journal):
    """Only what lies in the folder is forgotten, not what is merely spelled alike."""
    for path in ("/w/a/x", "/w/a/deep/y", "/w/a", "/w/a0", "/w/a.b/x", "/w/ab/x"):
        journal.record_digest(Path(path), WHO, 16, "blake3:ab", ())
    journal.forget_digests(Path("/w/a"))
    left = [
        path
        for path in ("/w/a/x", "/w/a/deep/y", "/w/a", "/w/a0", "/w/a.b/x", "/w/ab/x")
        if journal.digest(Path(path), WHO, "blake3", 16)
    ]
    assert left == ["/w/a", "/w/a0", "/w/a.b/x", "/w/ab/x"]


def test_odd_numbers_and_names_of_file_systems(journal):
    """Inodes of 64 bits without a sign, times before 1970 and paths that are no UTF-8 are remembered like any other."""
    odd = Identity(5, -1, -(10**18), 2**64 - 1)
    path = Path(os.fsdecode(b"/w/caf\xe9"))
    journal.record_digest(path, odd, 16, "blake3:ab", ())
    assert journal.digest(path, odd, "blake3", 16) == ("blake3:ab", ())
    assert journal.digest(path, WHO, "blake3", 16) is None


def test_the_state_of_a_checkpoint(tmp_path):
    """Any change of a file's identity, of the set of files or of the sidecar is another state; a second look is not."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a": b"1"})
    first = state_of(inspect(folder))
    assert state_of(inspect(folder)) == first
    os.utime(folder / "a", ns=(1, 1))
    second = state_of(inspect(folder))
    write_sidecar(folder, 2)
    third = state_of(inspect(folder))
    (folder / "b").write_bytes(b"")
    assert len({first, second, third, state_of(inspect(folder))}) == 4


# -- dying and sharing ----------------------------------------------------------------------------------------

WRITE = """
import sys
from pathlib import Path
from r2d1.journal import Done, Journal, StoredPart, UnderWay
journal = Journal(Path(sys.argv[1]), wal=sys.argv[2] == "wal")
round = sys.argv[3]
for n in range(1_000_000):
    name = f"chk_{round}_{n}"
    journal.begin_ship("s", name, UnderWay("0", "f" * 32, "x" * 2000))
    journal.record_upload("s", name, "k", "u", 16)
    for number in range(1, 4):
        journal.record_part("s", name, "k", StoredPart(number, "e", 1, "ab"))
    if n % 2:
        journal.record_done("s", name, Done("state", n, "p", "m", "shipped"))
        journal.owe("s", name)
    print(n, flush=True)
"""


def start(program, *args):
    return subprocess.Popen([sys.executable, "-c", program, *map(str, args)], stdout=subprocess.PIPE, text=True)


def written_by(journal, name, n):
    """Whether what the child did for ``n`` is there, all of it."""
    if n % 2:
        return journal.done("s", name) == Done("state", n, "p", "m", "shipped") and name in journal.owed("s")
    (upload,) = journal.uploads("s", name)
    return journal.under_way("s", name) is not None and len(upload.parts) == 3


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_kill_9_in_the_middle_of_writes(tmp_path, mode):
    """Killed at any moment, again and again, the journal opens and holds every record whose call had returned."""
    for round_, lines in enumerate([1, 8, 3, 21, 5] if mode == "wal" else [1, 2, 5]):
        with start(WRITE, tmp_path, mode, round_) as child:
            done = [int(child.stdout.readline()) for _ in range(lines)]
            child.send_signal(signal.SIGKILL)
        journal = Journal(tmp_path, wal=mode == "wal")
        assert not (tmp_path / "journal.broken").exists()
        for n in done:
            assert written_by(journal, f"chk_{round_}_{n}", n)
        journal.close()


SHARE = """
import sys
from pathlib import Path
from r2d1.journal import Done, Journal
print("ready", flush=True)
sys.stdin.readline()
journal = Journal(Path(sys.argv[1]), wal=sys.argv[2] == "wal")
for n in range(40 if sys.argv[2] == "wal" else 8):
    journal.record_done("s", f"chk_{sys.argv[3]}_{n}", Done("state", n, "p", "m", "shipped"))
    journal.owe("s", "shared")
    journal.paid("s", "shared")
journal.close()
"""


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_several_processes_write_one_journal(tmp_path, mode):
    """Processes that open a new journal at the same moment and write to it at once lose nothing and never fail."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", SHARE, str(tmp_path), mode, str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        with child:
            assert child.wait() == 0
    journal = Journal(tmp_path, wal=mode == "wal")
    assert len(journal.all_done("s")) == (120 if mode == "wal" else 24)
    assert journal.owed("s") == []
    journal.close()


def test_several_threads_use_one_journal(journal):
    """Worker threads share one connection."""

    def work(mine):
        for n in range(30):
            journal.record_done(SCOPE, f"chk_{mine}_{n}", DONE)
            assert journal.done(SCOPE, f"chk_{mine}_{n}") == DONE

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(journal.all_done(SCOPE)) == 120


def test_two_journals_in_one_process(tmp_path):
    """A courier and a pull in one process see what the other writes."""
    one, other = Journal(tmp_path), Journal(tmp_path)
    one.record_done(SCOPE, "x", DONE)
    assert other.done(SCOPE, "x") == DONE
    one.close()
    other.owe(SCOPE, "x")
    other.close()


# -- breaking -------------------------------------------------------------------------------------------------


def damage_all(path):
    path.write_bytes(b"this is no database" * 1000)


def damage_pages(path):
    """A page in the middle of the tables, as a bad sector would: the first page is sound."""
    raw = bytearray(path.read_bytes())
    raw[8192:12288] = b"\xff" * 4096
    path.write_bytes(raw)


def cut_short(path):
    path.write_bytes(path.read_bytes()[: 4096 * 3])


def another_version(path):
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 9")
    db.close()


def old_tables(path):
    path.unlink()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE done (x TEXT)")
    db.close()


@pytest.mark.parametrize("damage", [damage_all, damage_pages, cut_short, another_version, old_tables])
def test_a_journal_that_cannot_be_read_is_put_aside(tmp_path, damage):
    """Damage costs time, never a start: the broken file is kept beside a new, empty one."""
    journal = Journal(tmp_path)
    for n in range(200):
        journal.record_done(SCOPE, f"chk_{n}", DONE)
        journal.owe(SCOPE, f"chk_{n}")
    journal.close()
    damage(journal.path)
    broken = journal.path.read_bytes()
    again = Journal(tmp_path)
    assert again.all_done(SCOPE) == {}
    again.record_done(SCOPE, "x", DONE)
    again.close()
    assert (tmp_path / "journal.broken").read_bytes() == broken
    third = Journal(tmp_path)
    assert third.all_done(SCOPE) == {"x": DONE}
    third.close()


def test_a_log_of_the_broken_file_is_not_replayed(tmp_path):
    """What SQLite left beside a broken file belongs to it alone."""
    Journal(tmp_path).close()
    journal = Journal(tmp_path)
    journal.record_done(SCOPE, "x", DONE)
    log = Path(f"{journal.path}-wal").read_bytes()
    assert log
    journal.close()
    damage_all(journal.path)
    Path(f"{journal.path}-wal").write_bytes(log)
    again = Journal(tmp_path)
    assert again.all_done(SCOPE) == {}
    again.close()


def test_an_empty_file_is_a_new_journal(tmp_path):
    """A crash between making the file and its tables leaves an empty one."""
    (tmp_path / "journal.db").write_bytes(b"")
    journal = Journal(tmp_path)
    journal.owe(SCOPE, "x")
    journal.close()
    assert not (tmp_path / "journal.broken").exists()


TABLES = ("done", "digests", "ships", "sent", "uploads", "parts", "owed", "parked")


@pytest.mark.parametrize("missing", [*((table,) for table in TABLES), TABLES[:4], TABLES])
def test_a_table_that_is_missing_is_made(tmp_path, missing):
    """Whichever it is; what the others hold is kept, and nothing is put aside."""
    journal = Journal(tmp_path)
    assert {name for (name,) in journal._all("SELECT name FROM sqlite_master WHERE type='table'")} >= set(TABLES)
    under_way(journal, "chk_8")
    journal.owe(SCOPE, "chk_8")
    journal.close()
    other = sqlite3.connect(journal.path)
    for table in missing:
        other.execute(f"DROP TABLE {table}")
    other.close()
    again = Journal(tmp_path)
    assert again.owed(SCOPE) == ([] if "owed" in missing else ["chk_8"])
    assert again.under_way(SCOPE, "chk_8") == (None if "ships" in missing else SHIP)
    again.record_part(SCOPE, "chk_8", "k", PART)
    again.record_done(SCOPE, "chk_8", DONE)
    assert again.done(SCOPE, "chk_8") == DONE
    assert again.all_parked(SCOPE) == {}
    again.close()
    assert not (tmp_path / "journal.broken").exists()


def test_failures_of_the_file_are_errors_of_ours(tmp_path):
    """What SQLite says is told with the journal's path and what may be done; no foreign exception leaves."""
    journal = Journal(tmp_path)
    other = sqlite3.connect(journal.path)
    other.execute("DROP TABLE owed")
    other.close()
    with pytest.raises(R2D1Error, match=r"journal\.db: no such table: owed.*deleting it costs"):
        journal.owe(SCOPE, "x")
    with pytest.raises(R2D1Error, match="no such table"):
        journal.owed(SCOPE)
    journal.close()


def test_a_failed_step_leaves_nothing_half_done(tmp_path):
    """A record of several statements is written whole or not at all."""
    journal = Journal(tmp_path)
    under_way(journal, "x")
    other = sqlite3.connect(journal.path)
    other.execute("DROP TABLE parts")
    other.close()
    with pytest.raises(R2D1Error):
        journal.record_done(SCOPE, "x", DONE)
    assert journal.done(SCOPE, "x") is None
    assert journal.under_way(SCOPE, "x") == SHIP
    journal.close()


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.symlink_to("outside")])
def test_something_in_the_journals_place(tmp_path, make):
    """A folder or a planted link where the file should be is an error that names it; nothing is written outside."""
    make(tmp_path / "journal.db")
    with pytest.raises(R2D1Error, match=r"journal\.db"):
        Journal(tmp_path)
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("make", [lambda path: path.write_bytes(b""), lambda path: path.symlink_to("outside")])
def test_something_in_the_folders_place(tmp_path, make):
    """The same for the folder that holds it."""
    (tmp_path / "outside").mkdir()
    make(tmp_path / ".r2d1")
    with pytest.raises(UnsafeDestination, match=r"\.r2d1"):
        Journal(tmp_path / ".r2d1")
    assert os.listdir(tmp_path / "outside") == []


def test_local_state_is_private(tmp_path):
    """Folder and file are their owner's alone."""
    journal = Journal(tmp_path / "deep" / ".r2d1")
    journal.owe(SCOPE, "x")
    assert os.stat(journal.path.parent).st_mode & 0o777 == 0o700
    for path in journal.path.parent.iterdir():
        assert os.stat(path).st_mode & 0o777 == 0o600
    journal.close()


def test_the_journal_of_a_directory(tmp_path):
    """A directory's journal lies in its ``.r2d1``, in WAL mode."""
    journal = Journal.of(tmp_path)
    assert journal.path == tmp_path / ".r2d1" / "journal.db"
    assert journal._all("PRAGMA journal_mode") == [("wal",)]
    journal.close()


def test_the_journal_of_a_directory_that_cannot_hold_it(tmp_path, monkeypatch):
    """A read-only directory's journal lies with the user's state, without WAL."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "w").mkdir()
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    journal = Journal.of(tmp_path / "w")
    assert journal.path.is_relative_to(tmp_path / "state" / "r2d1")
    assert journal._all("PRAGMA journal_mode") == [("delete",)]
    journal.close()
    assert os.listdir(tmp_path / "w") == []


def test_a_full_disk_does_not_stop_it(tmp_path, caplog):
    """It goes on in memory, says so, and knows all it knew; the next start has what fitted on the disk."""
    journal = Journal(tmp_path)
    journal.record_done(SCOPE, "chk_7", DONE)
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count={pages}")
    for number in range(200):
        journal.record_done(SCOPE, f"other_{number:04}", DONE)
    assert "the disk is full" in caplog.text
    assert journal.done(SCOPE, "chk_7") == journal.done(SCOPE, "other_0199") == DONE
    again = reopened(journal)
    assert again.done(SCOPE, "chk_7") == DONE
    again.close()
