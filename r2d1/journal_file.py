"""A journal's file: opened so that a damaged one is put aside, and left for memory when the disk is full."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from r2d1.errors import R2D1Error
from r2d1.events import log
from r2d1.localstate import close_lock, open_lock, wait_for_lock

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
PRAGMA user_version = 1;
COMMIT;
"""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise ``R2D1Error`` for what SQLite or the disk refuses."""
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        raise R2D1Error(f"journal {path}: {exc}. It only saves work: deleting it costs nothing but time") from exc


def open_journal(path: Path, wal: bool) -> sqlite3.Connection:
    """Open a journal; one that cannot be read is put aside: it saves work and holds no truth.

    Openers take turns, so that none puts aside what another has just made.
    """
    fd = open_lock(path.with_name(f"{path.stem}-opening.lock"))
    try:
        wait_for_lock(fd)
        with translated(path):
            try:
                return _connect(path, wal)
            except sqlite3.DatabaseError as exc:
                if getattr(exc, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
                    return in_memory(path)
                if isinstance(exc, sqlite3.OperationalError):
                    raise  # locked or not permitted: the file itself is sound
            _put_aside(path)
            return _connect(path, wal)
    finally:
        close_lock(fd)


def in_memory(path: Path, known: sqlite3.Connection | None = None) -> sqlite3.Connection:
    """A journal for as long as the process lives, with what is ``known`` already."""
    log.warning("%s: the disk is full; until the next start it is kept in memory", path)
    db = sqlite3.connect(":memory:", check_same_thread=False)
    if known is None:
        db.executescript(_SCHEMA)
    else:
        known.backup(db)
    return db


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
    return "parked" in tables
