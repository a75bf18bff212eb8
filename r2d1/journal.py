"""Durable local state in SQLite: what was shipped or pulled, ships under way, rows owed (formats §6).

Every record is bound to a scope (endpoint, bucket and job). Deleting the file loses nothing but time.
All calls block for a moment: make them in a worker thread. A record is on disk when its call returns.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from r2d1.checkpoint import Identity, LocalCheckpoint
from r2d1.digest import digest_of
from r2d1.errors import LockHeld, R2D1Error
from r2d1.keys import STATE_DIR

_SCHEMA = """
CREATE TABLE IF NOT EXISTS done (
    scope TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL, epoch INTEGER NOT NULL,
    prefix TEXT NOT NULL, manifest TEXT NOT NULL, origin TEXT NOT NULL, PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS digests (
    path TEXT NOT NULL, part_size INTEGER NOT NULL, algorithm TEXT NOT NULL,
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
    etag TEXT NOT NULL, size INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (scope, name, key, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owed (scope TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (scope, name)) WITHOUT ROWID;
"""

#: File systems on which SQLite's shared memory (WAL) or its locks cannot be trusted.
_REMOTE_TYPES = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "gpfs", "glusterfs", "beegfs", "afs")


@dataclass(frozen=True, slots=True)
class Done:
    """A checkpoint the bucket has: the local ``state`` it was shipped or pulled in. ``origin``: shipped, pulled."""

    state: str
    epoch: int
    prefix: str
    manifest: str
    origin: str


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A ship begun and not committed, for the local ``state`` it is being made of."""

    ship: str
    owner: str
    state: str


@dataclass(frozen=True, slots=True)
class StoredPart:
    number: int
    etag: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredUpload:
    key: str
    upload_id: str
    part_size: int
    parts: tuple[StoredPart, ...]


def scope_of(where: str, job_id: str) -> str:
    """What binds a record to endpoint, bucket and job."""
    return f"{where} {job_id}"


def state_of(local: LocalCheckpoint) -> str:
    """One digest for everything that tells a local state of a checkpoint from another."""
    files = [[file.path, *_row(file.identity)] for file in local.files]
    return digest_of(json.dumps(files).encode() + b"\n" + local.sidecar.raw)


def _row(identity: Identity) -> tuple[int, int, int, int]:
    return identity.size, identity.mtime_ns, identity.ctime_ns, identity.inode


def state_directory(directory: Path) -> tuple[Path, bool]:
    """Where the state of a watched directory is kept, and whether its file system can be trusted with WAL."""
    if not is_remote_file_system(directory) and os.access(directory, os.W_OK):
        return directory / STATE_DIR, True
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    digest = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:16]
    return Path(base) / "r2d1" / digest, False


def is_remote_file_system(directory: Path) -> bool:
    """Whether a directory lies on a network or FUSE file system (told by Linux; elsewhere taken for local)."""
    real = os.path.realpath(directory)
    best, kind = "", ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                left, _, right = line.partition(" - ")
                point = left.split()[4].encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")
                if (real + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
                    best, kind = point, right.split()[0]
    except OSError:  # not Linux: no mountinfo to tell
        return False
    return kind.startswith(_REMOTE_TYPES)


class Journal:
    """The journal of one directory. Safe to use from several threads and several processes."""

    def __init__(self, directory: Path, *, wal: bool = True) -> None:
        _make_private(directory)
        self.path = directory / "journal.db"
        self._lock = threading.Lock()
        self._db = _open(self.path, wal)

    @classmethod
    def of(cls, directory: Path) -> Journal:
        """Open the journal of a watched directory or of a pull's destination."""
        where, wal = state_directory(directory)
        return cls(where, wal=wal)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _all(self, sql: str, *params: object) -> list[tuple[object, ...]]:
        with self._lock:
            return self._db.execute(sql, params).fetchall()

    def _run(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        with self._lock, self._db:
            for sql, params in statements:
                self._db.execute(sql, params)

    # -- what the bucket has --------------------------------------------------------------------------

    def done(self, scope: str, name: str) -> Done | None:
        rows = self._all(
            "SELECT state, epoch, prefix, manifest, origin FROM done WHERE scope=? AND name=?", scope, name
        )
        return Done(*rows[0]) if rows else None  # type: ignore[arg-type]

    def record_done(self, scope: str, name: str, done: Done) -> None:
        """Remember that the bucket has this state; what was remembered of the ship under way is dropped."""
        values = (scope, name, done.state, done.epoch, done.prefix, done.manifest, done.origin)
        self._run(("INSERT OR REPLACE INTO done VALUES (?,?,?,?,?,?,?)", values), *_end_ship(scope, name))

    def forget_done(self, scope: str, name: str) -> None:
        self._run(("DELETE FROM done WHERE scope=? AND name=?", (scope, name)))

    def all_done(self, scope: str) -> dict[str, Done]:
        rows = self._all("SELECT name, state, epoch, prefix, manifest, origin FROM done WHERE scope=?", scope)
        return {str(name): Done(*rest) for name, *rest in rows}  # type: ignore[arg-type]

    # -- digests of local files -----------------------------------------------------------------------

    def digest(
        self, path: Path, identity: Identity, algorithm: str, part_size: int
    ) -> tuple[str, tuple[str, ...]] | None:
        """The digests of a file in this very state, if they were taken before."""
        rows = self._all(
            "SELECT digest, parts FROM digests WHERE path=? AND part_size=? AND algorithm=?"
            " AND size=? AND mtime_ns=? AND ctime_ns=? AND inode=?",
            os.fspath(path), part_size, algorithm, *_row(identity),
        )  # fmt: skip
        return (str(rows[0][0]), tuple(json.loads(str(rows[0][1])))) if rows else None

    def record_digest(self, path: Path, identity: Identity, part_size: int, digest: str, parts: Sequence[str]) -> None:
        values = (
            os.fspath(path),
            part_size,
            digest.partition(":")[0],
            *_row(identity),
            digest,
            json.dumps(list(parts)),
        )
        self._run(("INSERT OR REPLACE INTO digests VALUES (?,?,?,?,?,?,?,?,?)", values))

    def forget_digests(self, folder: Path) -> None:
        """Drop the digests of a checkpoint folder that was deleted."""
        low = os.fspath(folder) + "/"
        self._run(("DELETE FROM digests WHERE path >= ? AND path < ?", (low, low[:-1] + "0")))

    # -- ships under way ------------------------------------------------------------------------------

    def under_way(self, scope: str, name: str) -> UnderWay | None:
        rows = self._all("SELECT ship, owner, state FROM ships WHERE scope=? AND name=?", scope, name)
        return UnderWay(*rows[0]) if rows else None  # type: ignore[arg-type]

    def begin_ship(self, scope: str, name: str, ship: UnderWay) -> None:
        """Remember a ship before its record is written, so that a crash in between leaves it ours."""
        values = (scope, name, ship.ship, ship.owner, ship.state)
        self._run(*_end_ship(scope, name), ("INSERT INTO ships VALUES (?,?,?,?,?)", values))

    def end_ship(self, scope: str, name: str) -> None:
        self._run(*_end_ship(scope, name))

    def sent_entry(self, scope: str, name: str, ship: str, path: str) -> str | None:
        rows = self._all(
            "SELECT entry FROM sent WHERE scope=? AND name=? AND ship=? AND path=?", scope, name, ship, path
        )
        return str(rows[0][0]) if rows else None

    def record_sent(self, scope: str, name: str, ship: str, path: str, entry: str) -> None:
        self._run(("INSERT OR REPLACE INTO sent VALUES (?,?,?,?,?)", (scope, name, ship, path, entry)))

    def uploads(self, scope: str, name: str) -> list[StoredUpload]:
        """The multipart uploads begun and not known to be finished."""
        rows = self._all("SELECT key, upload_id, part_size FROM uploads WHERE scope=? AND name=?", scope, name)
        return [StoredUpload(*row, self._parts(scope, name, str(row[0]))) for row in rows]  # type: ignore[call-arg,arg-type]

    def _parts(self, scope: str, name: str, key: str) -> tuple[StoredPart, ...]:
        sql = "SELECT number, etag, size, digest FROM parts WHERE scope=? AND name=? AND key=? ORDER BY number"
        return tuple(StoredPart(*row) for row in self._all(sql, scope, name, key))  # type: ignore[arg-type]

    def record_upload(self, scope: str, name: str, key: str, upload_id: str, part_size: int) -> None:
        self._run(
            ("DELETE FROM parts WHERE scope=? AND name=? AND key=?", (scope, name, key)),
            ("INSERT OR REPLACE INTO uploads VALUES (?,?,?,?,?)", (scope, name, key, upload_id, part_size)),
        )

    def record_part(self, scope: str, name: str, key: str, part: StoredPart) -> None:
        values = (scope, name, key, part.number, part.etag, part.size, part.digest)
        self._run(("INSERT OR REPLACE INTO parts VALUES (?,?,?,?,?,?,?)", values))

    def forget_upload(self, scope: str, name: str, key: str) -> None:
        self._run(
            ("DELETE FROM parts WHERE scope=? AND name=? AND key=?", (scope, name, key)),
            ("DELETE FROM uploads WHERE scope=? AND name=? AND key=?", (scope, name, key)),
        )

    def forget_uploads(self, scope: str, name: str) -> None:
        """Drop all uploads of a ship that was given up."""
        self._run(*((f"DELETE FROM {table} WHERE scope=? AND name=?", (scope, name)) for table in ("parts", "uploads")))

    # -- rows owed to D1 ------------------------------------------------------------------------------

    def owe(self, scope: str, name: str) -> None:
        self._run(("INSERT OR IGNORE INTO owed VALUES (?,?)", (scope, name)))

    def paid(self, scope: str, name: str) -> None:
        self._run(("DELETE FROM owed WHERE scope=? AND name=?", (scope, name)))

    def owed(self, scope: str) -> list[str]:
        return [str(row[0]) for row in self._all("SELECT name FROM owed WHERE scope=? ORDER BY name", scope)]


def _end_ship(scope: str, name: str) -> list[tuple[str, tuple[object, ...]]]:
    return [(f"DELETE FROM {table} WHERE scope=? AND name=?", (scope, name)) for table in _SHIP_TABLES]


_SHIP_TABLES = ("ships", "sent", "uploads", "parts")


def _make_private(directory: Path) -> None:
    if directory.is_symlink():
        raise R2D1Error(f"{directory} is a link; r2d1 keeps its state in a folder of its own: remove the link")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _open(path: Path, wal: bool) -> sqlite3.Connection:
    try:
        return _connect(path, wal)
    except sqlite3.DatabaseError as exc:
        if isinstance(exc, sqlite3.OperationalError):
            raise  # locked, full or not permitted: the file itself is sound
        # The journal saves work, it holds no truth: one that cannot be read is put aside, not mourned.
        path.replace(path.with_suffix(".broken"))
        return _connect(path, wal)


def _connect(path: Path, wal: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, check_same_thread=False)
    try:
        db.execute(f"PRAGMA journal_mode={'WAL' if wal else 'DELETE'}")
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    path.chmod(0o600)
    return db


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file, or raise ``LockHeld`` at once naming who has it. The lock dies with the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            owner = os.pread(fd, 100, 0).decode(errors="replace").strip() or "another process"
            raise LockHeld(f"{what} is held by {owner}") from exc
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)
