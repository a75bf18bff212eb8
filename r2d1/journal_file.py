"""A journal's file: opened so that a damaged one is put aside, and left for memory when the disk is full."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from r2d1.errors import R2D1Error
from r2d1.events import log
from r2d1.localstate import FULL, close_lock, open_lock, wait_for_lock

_VERSION = 1
#: A table that came after the first release of this version stands beside the others: who does not know it never
#: looks, and who finds it missing makes it.
_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS done (
    scope TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, epoch INTEGER NOT NULL,
    prefix TEXT NOT NULL, manifest TEXT NOT NULL, origin TEXT NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS digests (
    path BLOB NOT NULL, part_size INTEGER NOT NULL, algorithm TEXT NOT NULL,
    size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL, inode INTEGER NOT NULL,
    digest TEXT NOT NULL, parts TEXT NOT NULL, PRIMARY KEY (path, part_size, algorithm)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ships (
    scope TEXT NOT NULL, name TEXT NOT NULL, ship TEXT NOT NULL, owner TEXT NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sent (
    scope TEXT NOT NULL, name TEXT NOT NULL, ship TEXT NOT NULL, path TEXT NOT NULL, entry TEXT NOT NULL,
    PRIMARY KEY (scope, name, ship, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS uploads (
    scope TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, upload_id TEXT NOT NULL,
    part_size INTEGER NOT NULL, PRIMARY KEY (scope, name, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (
    scope TEXT NOT NULL, name TEXT NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL,
    etag TEXT NOT NULL, size INTEGER NOT NULL, digest TEXT NOT NULL, checked TEXT NOT NULL,
    PRIMARY KEY (scope, name, key, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owed (scope TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (scope, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parked (
    scope TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL, at REAL NOT NULL,
    times INTEGER NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sealed (
    scope TEXT NOT NULL, name TEXT NOT NULL, sidecar TEXT NOT NULL, files TEXT NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
PRAGMA user_version = 1;
COMMIT;
"""
_TABLES = frozenset(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", _SCHEMA))
_UNREAD = "%s: what it knows cannot be read: %s; that costs time, nothing else"


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise ``R2D1Error`` for what SQLite or the disk refuses."""
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        raise R2D1Error(f"journal {path}: {exc}. It only saves work: deleting it costs nothing but time") from exc


def open_journal(path: Path, wal: bool) -> sqlite3.Connection:
    """Open a journal; one that cannot be read is put aside: it saves work and holds no truth.

    Openers take turns, so that none puts aside what another has just made. One that cannot be written is copied into
    memory. ``NoSpace`` when there is not even room for the file they take turns with.
    """
    fd = open_lock(path.with_name(f"{path.stem}-opening.lock"))
    try:
        wait_for_lock(fd)
        with translated(path):
            try:
                return _connect_or_begin_anew(path, wal)
            except (sqlite3.OperationalError, OSError) as exc:
                if not cannot_write(exc, path):
                    raise
                return _from_disk(path, exc)
    finally:
        close_lock(fd)


def cannot_write(exc: sqlite3.OperationalError | OSError, path: Path) -> bool:
    """Whether the disk takes no more of a journal, which is then to be kept in memory.

    SQLite calls a disk full only where writing the database fails. Where it lengthens its log or the memory that is
    shared beside it, a full disk is an I/O error, and the errno below is not told. No kind of I/O error says anything
    of the checkpoints, which a disk that is broken for the journal must keep from the bucket no more than a full one;
    so all count. A file that cannot be opened has a dozen causes: the lack of room for one more is tried out.
    """
    if isinstance(exc, OSError):
        return exc.errno in FULL
    # the higher bits tell one I/O error from another; an error of Python's own, a text it cannot decode, has no code
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN:
        return _takes_no_file(path.parent)
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def _takes_no_file(folder: Path) -> bool:
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as exc:
        return exc.errno in FULL
    return False


def in_memory(path: Path, why: Exception, known: sqlite3.Connection | None = None) -> sqlite3.Connection:
    """A journal for as long as the process lives, with what is ``known`` already, as far as that can be read."""
    log.warning("%s: the disk is full or broken (%s); until the next start it is kept in memory", path, why)
    db = sqlite3.connect(":memory:", check_same_thread=False)
    if known is not None:
        try:
            known.backup(db)
        except sqlite3.Error as exc:
            log.warning(_UNREAD, path, exc)
            db.close()
            db = sqlite3.connect(":memory:", check_same_thread=False)
    db.executescript(_SCHEMA)
    return db


def _from_disk(path: Path, why: Exception) -> sqlite3.Connection:
    """A journal in memory with what lies on a disk that takes no more of it.

    Who has a file to himself shares no memory with others, so SQLite reads it without making any on the disk.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0)) as known:
            known.execute("PRAGMA locking_mode=EXCLUSIVE")
            _has_tables(known)  # takes the lock for good, and refuses what is damaged or not ours
            return in_memory(path, why, known)
    except sqlite3.Error as exc:
        if path.exists():
            log.warning(_UNREAD, path, exc)
        return in_memory(path, why)


def _connect_or_begin_anew(path: Path, wal: bool) -> sqlite3.Connection:
    try:
        return _connect(path, wal)
    except sqlite3.OperationalError:
        raise  # locked, full or not permitted: the file itself is sound
    except sqlite3.DatabaseError:
        _put_aside(path)
    return _connect(path, wal)


def _put_aside(path: Path) -> None:
    path.replace(path.with_suffix(".broken"))
    for rest in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + rest).unlink(missing_ok=True)


def _connect(path: Path, wal: bool) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, timeout=30, check_same_thread=False)
    try:
        is_whole = _has_tables(db)  # before anything is written to a file that may not be ours
        db.execute(f"PRAGMA journal_mode={'WAL' if wal else 'DELETE'}")
        db.execute("PRAGMA synchronous=NORMAL")
        if not is_whole:
            db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _has_tables(db: sqlite3.Connection) -> bool:
    """Whether all tables are there; ``DatabaseError`` when they are damaged or those of another version of r2d1."""
    ((version,),) = db.execute("PRAGMA user_version")
    tables = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_master")}
    ((verdict,),) = db.execute("PRAGMA quick_check(1)")
    if verdict != "ok" or (tables and version != _VERSION):
        raise sqlite3.DatabaseError(f"version {version}, {verdict}")
    return tables >= _TABLES
