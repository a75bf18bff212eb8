"""Durable local state in SQLite: what was shipped or pulled, ships under way, rows owed (formats §6).

Every record is bound to a scope (endpoint, bucket and job). Deleting the file loses nothing but time.
All calls block for a moment: make them in a worker thread. A record outlives the process as soon as its call
returns; a power cut may take the last ones along, which costs time like a deleted file.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TypeVar

from r2d1.checkpoint import Identity, LocalCheckpoint
from r2d1.digest import digest_of
from r2d1.errors import NoSpace
from r2d1.journal_file import cannot_write, in_memory, open_journal, translated
from r2d1.localstate import private_folder, state_directory
from r2d1.objects import BodyCheck

_NAME_END = re.compile(rb"[/\0]")
_LONGEST_WHY = 1000  # characters

T = TypeVar("T")


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
class Parked:
    """Why a checkpoint that was tried is not in the bucket. ``state`` is that of ``state_of`` without ctime.

    ``at`` is the moment of the last attempt, in seconds since the epoch; ``times`` counts those of this state.
    """

    state: str
    why: str
    at: float
    times: int = 1

    def __str__(self) -> str:
        moment = datetime.fromtimestamp(self.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"tried {self.times} time{'s' * (self.times != 1)}, the last at {moment}: {self.why}"


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part the store has taken. ``check`` is the one it carried, which Complete must repeat."""

    number: int
    etag: str
    size: int
    digest: str
    check: BodyCheck | None = None


@dataclass(frozen=True, slots=True)
class StoredUpload:
    key: str
    upload_id: str
    part_size: int
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True)
class Sent:
    """A file that a ship has sent: its path there and what is remembered of it, its path here and its digests.

    ``joined`` is the key of the upload that it was joined from, which is over.
    """

    path: str
    entry: str
    local: Path
    identity: Identity
    part_size: int
    digest: str
    parts: tuple[str, ...]
    joined: str | None = None


def scope_of(where: str, job_id: str) -> str:
    """What binds a record to endpoint, bucket and job. Neither holds a line end, so no two scopes look alike."""
    return f"{where}\n{job_id}"


def state_of(local: LocalCheckpoint, *, ctime: bool = True) -> str:
    """One digest for everything that tells a local state of a checkpoint from another."""
    identities = [(file.path, file.identity if ctime else replace(file.identity, ctime_ns=0)) for file in local.files]
    files = [[path, *_row(identity)] for path, identity in identities]
    return digest_of(json.dumps(files).encode() + b"\n" + local.sidecar.raw)


def _sealed(local: LocalCheckpoint) -> tuple[str, str]:
    """The sidecar's own identity, and the state it stands for; links and modes, which move ctimes, change neither."""
    size, mtime_ns, _, inode = _row(local.sidecar_identity)
    return json.dumps([size, mtime_ns, inode, digest_of(local.sidecar.raw)]), state_of(local, ctime=False)


def _row(identity: Identity) -> tuple[int, int, int, int]:
    """An identity as SQLite's signed integers hold it: network file systems have inodes of 64 bits without a sign."""
    inode = identity.inode if identity.inode < 2**63 else identity.inode - 2**64
    return identity.size, identity.mtime_ns, identity.ctime_ns, inode


class Journal:
    """The journal of one directory. Safe to use from several threads and several processes."""

    def __init__(self, directory: Path, *, wal: bool = True) -> None:
        self.path = directory / "journal.db"
        self._lock = threading.Lock()
        try:
            private_folder(directory)
            self._db = open_journal(self.path, wal)
        except NoSpace as full:  # not even for the folder or for a lock
            self._db = in_memory(self.path, full)

    @classmethod
    def of(cls, directory: Path) -> Journal:
        """Open the journal of a watched directory or of a pull's destination."""
        where, wal = state_directory(directory)
        return cls(where, wal=wal)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _all(self, sql: str, *params: object) -> list[tuple[object, ...]]:
        with self._lock, translated(self.path):
            return self._kept(lambda: self._db.execute(sql, params).fetchall())

    def _run(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        with self._lock, translated(self.path):
            self._kept(lambda: self._write(statements))

    def _write(self, statements: Sequence[tuple[str, tuple[object, ...]]]) -> None:
        with self._db:
            for sql, params in statements:
                self._db.execute(sql, params)

    def _kept(self, step: Callable[[], T]) -> T:
        """A full disk must not keep a checkpoint from the bucket: what comes is remembered until the process ends.

        Reading needs room as well: for the memory that the readers and writers of a WAL share.
        """
        try:
            return step()
        except sqlite3.OperationalError as exc:
            if not cannot_write(exc, self.path):
                raise
            full, self._db = self._db, in_memory(self.path, exc, self._db)
            full.close()
            return step()

    # -- what the bucket has --------------------------------------------------------------------------

    def done(self, scope: str, name: str) -> Done | None:
        rows = self._all(
            "SELECT state, epoch, prefix, manifest, origin FROM done WHERE scope=? AND name=?", scope, name
        )
        return Done(*rows[0]) if rows else None  # type: ignore[arg-type]

    def record_done(self, scope: str, name: str, done: Done, local: LocalCheckpoint | None = None) -> None:
        """Remember that the bucket has this state; what was remembered of its ship, and of failures, is dropped.

        ``local`` is that state itself, for ``is_outdated``.
        """
        values = (scope, name, done.state, done.epoch, done.prefix, done.manifest, done.origin)
        insert = ("INSERT OR REPLACE INTO done VALUES (?,?,?,?,?,?,?)", values)
        sealed = _forget(scope, name, "sealed")
        if local is not None:
            sealed.append(("INSERT INTO sealed VALUES (?,?,?,?)", (scope, name, *_sealed(local))))
        self._run(insert, *sealed, *_end_ship(scope, name), *_forget(scope, name, "parked"))

    def is_outdated(self, scope: str, name: str, local: LocalCheckpoint) -> bool:
        """Whether its sidecar is the very file that stood beside other files when the bucket got them.

        It vouches for those and not for what lies there now, whatever the times say: clocks are set back.
        """
        sidecar, files = _sealed(local)
        rows = self._all("SELECT sidecar, files FROM sealed WHERE scope=? AND name=?", scope, name)
        return bool(rows) and rows[0][0] == sidecar and rows[0][1] != files

    def forget_done(self, scope: str, name: str) -> None:
        self._run(*_forget(scope, name, "done", "sealed"))

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
            os.fsencode(path), part_size, algorithm, *_row(identity),
        )  # fmt: skip
        return (str(rows[0][0]), tuple(json.loads(str(rows[0][1])))) if rows else None

    def record_digest(self, path: Path, identity: Identity, part_size: int, digest: str, parts: Sequence[str]) -> None:
        self._run(_digest_row(path, identity, part_size, digest, parts))

    def trim_done(self, scope: str, here: Collection[str], *, keep: int) -> None:
        """Drop the oldest of what was shipped or pulled and is not ``here`` any more, beyond the newest ``keep``.

        A record is asked for when its checkpoint lies on the disk, so one of a deleted checkpoint is for its return.
        """
        sql = (
            "DELETE FROM done WHERE scope=? AND name NOT IN (SELECT value FROM json_each(?)) AND name IN"
            " (SELECT name FROM done WHERE scope=? ORDER BY epoch DESC, name LIMIT -1 OFFSET ?)"
        )
        orphans = "DELETE FROM sealed WHERE scope=? AND name NOT IN (SELECT name FROM done WHERE scope=?)"
        self._run((sql, (scope, json.dumps(list(here)), scope, keep)), (orphans, (scope, scope)))

    def forget_digests(self, folder: Path) -> None:
        """Drop the digests of a checkpoint folder that was deleted."""
        low = os.fsencode(folder)
        self._run(("DELETE FROM digests WHERE path > ? AND path < ?", (low + b"/", low + b"0")))  # "0" follows "/"

    def forget_gone(self, directory: Path) -> None:
        """Drop the digests of whatever a directory held and does not hold any more.

        That is safe at any time: a file that comes back is hashed again. It takes a step for each name, not each file.
        """
        base = os.fsencode(directory) + b"/"
        low, end = base, base[:-1] + b"0"  # "0" follows "/"
        sql = "SELECT path FROM digests WHERE path >= ? AND path < ? ORDER BY path LIMIT 1"
        while rows := self._all(sql, low, end):
            low, name, after = _top_range(base, rows[0][0])  # type: ignore[arg-type]
            if not os.path.lexists(base + name):
                self._run(("DELETE FROM digests WHERE path >= ? AND path < ?", (low, after)))
            low = after

    # -- ships under way ------------------------------------------------------------------------------

    def under_way(self, scope: str, name: str) -> UnderWay | None:
        rows = self._all("SELECT ship, owner, state FROM ships WHERE scope=? AND name=?", scope, name)
        return UnderWay(*rows[0]) if rows else None  # type: ignore[arg-type]

    def names_under_way(self, scope: str) -> list[str]:
        return [str(row[0]) for row in self._all("SELECT name FROM ships WHERE scope=? ORDER BY name", scope)]

    def begin_ship(self, scope: str, name: str, ship: UnderWay) -> None:
        """Remember a ship before its record is written, so that a crash in between leaves it ours."""
        values = (scope, name, ship.ship, ship.owner, ship.state)
        self._run(*_end_ship(scope, name), ("INSERT INTO ships VALUES (?,?,?,?,?)", values))

    def end_ship(self, scope: str, name: str) -> None:
        self._run(*_end_ship(scope, name))

    def sent_entries(self, scope: str, name: str, ship: str) -> dict[str, str]:
        """What is remembered of the files that a ship has sent, by path."""
        rows = self._all("SELECT path, entry FROM sent WHERE scope=? AND name=? AND ship=?", scope, name, ship)
        return {str(path): str(entry) for path, entry in rows}

    def record_sent(self, scope: str, name: str, ship: str, files: Sequence[Sent]) -> None:
        """Remember files that a ship has sent, and their digests, and forget their uploads, all at once."""
        sent = "INSERT OR REPLACE INTO sent VALUES (?,?,?,?,?)"
        self._run(
            *chain.from_iterable(_forget_upload(scope, name, file.joined) for file in files if file.joined),
            *((sent, (scope, name, ship, file.path, file.entry)) for file in files),
            *(_digest_row(file.local, file.identity, file.part_size, file.digest, file.parts) for file in files),
        )

    def uploads(self, scope: str, name: str) -> list[StoredUpload]:
        """The multipart uploads begun and not known to be finished."""
        rows = self._all("SELECT key, upload_id, part_size FROM uploads WHERE scope=? AND name=?", scope, name)
        return [StoredUpload(*row, self._parts(scope, name, str(row[0]))) for row in rows]  # type: ignore[call-arg,arg-type]

    def _parts(self, scope: str, name: str, key: str) -> tuple[StoredPart, ...]:
        sql = "SELECT number, etag, size, digest, checked FROM parts WHERE scope=? AND name=? AND key=? ORDER BY number"
        return tuple(_stored_part(*row) for row in self._all(sql, scope, name, key))  # type: ignore[arg-type]

    def record_upload(self, scope: str, name: str, key: str, upload_id: str, part_size: int) -> None:
        self._run(
            ("DELETE FROM parts WHERE scope=? AND name=? AND key=?", (scope, name, key)),
            ("INSERT OR REPLACE INTO uploads VALUES (?,?,?,?,?)", (scope, name, key, upload_id, part_size)),
        )

    def record_part(self, scope: str, name: str, key: str, part: StoredPart) -> None:
        checked = f"{part.check.algorithm}:{part.check.value}" if part.check else ""
        values = (scope, name, key, part.number, part.etag, part.size, part.digest, checked)
        self._run(("INSERT OR REPLACE INTO parts VALUES (?,?,?,?,?,?,?,?)", values))

    def forget_upload(self, scope: str, name: str, key: str) -> None:
        self._run(*_forget_upload(scope, name, key))

    def forget_uploads(self, scope: str, name: str) -> None:
        """Drop all uploads of a ship that was given up."""
        self._run(*_forget(scope, name, "parts", "uploads"))

    # -- what the store would not take ----------------------------------------------------------------

    def record_parked(self, scope: str, name: str, parked: Parked) -> None:
        """Remember why a checkpoint was not taken, on one line that is cut to a thousand characters."""
        why = " ".join(parked.why.encode("utf-8", "backslashreplace").decode().split())[:_LONGEST_WHY]
        values = (scope, name, parked.state, why, parked.at, parked.times)
        self._run(("INSERT OR REPLACE INTO parked VALUES (?,?,?,?,?,?)", values))

    def forget_parked(self, scope: str, names: Collection[str]) -> None:
        self._run(*chain.from_iterable(_forget(scope, name, "parked") for name in names))

    def all_parked(self, scope: str) -> dict[str, Parked]:
        rows = self._all("SELECT name, state, why, at, times FROM parked WHERE scope=?", scope)
        return {str(name): Parked(*rest) for name, *rest in rows}  # type: ignore[arg-type]

    # -- rows owed to D1 ------------------------------------------------------------------------------

    def owe(self, scope: str, name: str) -> None:
        self._run(("INSERT OR IGNORE INTO owed VALUES (?,?)", (scope, name)))

    def paid(self, scope: str, name: str) -> None:
        self._run(("DELETE FROM owed WHERE scope=? AND name=?", (scope, name)))

    def owed(self, scope: str) -> list[str]:
        return [str(row[0]) for row in self._all("SELECT name FROM owed WHERE scope=? ORDER BY name", scope)]


def _forget_upload(scope: str, name: str, key: str) -> Sequence[tuple[str, tuple[object, ...]]]:
    where = (scope, name, key)
    return [(f"DELETE FROM {table} WHERE scope=? AND name=? AND key=?", where) for table in ("parts", "uploads")]  # noqa: S608 - ours


def _digest_row(
    path: Path, identity: Identity, part_size: int, digest: str, parts: Sequence[str]
) -> tuple[str, tuple[object, ...]]:
    algorithm = digest.partition(":")[0]
    values = (os.fsencode(path), part_size, algorithm, *_row(identity), digest, json.dumps(list(parts)))
    return "INSERT OR REPLACE INTO digests VALUES (?,?,?,?,?,?,?,?,?)", values


def _top_range(base: bytes, path: bytes) -> tuple[bytes, bytes, bytes]:
    """The name below ``base`` that a path begins with, between the range of all paths that do: its start, its end.

    What follows a name is ``/``, or NUL where a pull of a prefix bound the file to its object.
    """
    found = _NAME_END.search(path, len(base))
    if found is None:
        return path, path[len(base) :], path + b"\0"
    start = found.start()
    return path[: start + 1], path[len(base) : start], path[:start] + bytes([path[start] + 1])


def _stored_part(number: int, etag: str, size: int, digest: str, checked: str) -> StoredPart:
    algorithm, _, value = checked.partition(":")
    return StoredPart(number, etag, size, digest, BodyCheck(algorithm, value) if checked else None)


def _end_ship(scope: str, name: str) -> list[tuple[str, tuple[object, ...]]]:
    return _forget(scope, name, "ships", "sent", "uploads", "parts")


def _forget(scope: str, name: str, *tables: str) -> list[tuple[str, tuple[object, ...]]]:
    return [(f"DELETE FROM {table} WHERE scope=? AND name=?", (scope, name)) for table in tables]  # noqa: S608 - ours
