"""SQL statements on an SQLite file that several threads and processes share, without ever blocking the loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

from r2d1.d1_wire import Param, Statement, problems_of
from r2d1.errors import CatalogError, NotSent
from r2d1.events import Teller
from r2d1.retry import Brake, RetryPolicy, retried
from r2d1.tasks import in_thread

T = TypeVar("T")
Rows = list[dict[str, object]]

#: A lock that another process holds is waited for in short turns, so that a cancelled call ends soon.
_TURN_S = 0.25
_PATIENCE = RetryPolicy(attempts=1_000, budget_s=60.0, base_s=0.02, cap_s=0.25)
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


class SqliteDatabase:
    """An SQLite file, held to D1's limits so that what works here works there.

    Each call opens the file anew in a worker thread: no connection crosses threads or forks, and none stays
    open. The rollback journal is kept, as WAL needs memory shared by all who open the file.
    """

    def __init__(self, path: Path, *, tell: Teller | None = None) -> None:
        self._path = path.absolute()
        self._tell = tell or Teller(None)

    @property
    def where(self) -> str:
        return str(self._path)

    async def query(self, sql: str, params: Sequence[Param] = (), *, safe: bool = False) -> Rows:
        """Run one statement that reads. ``safe`` is D1's: here no outcome is ever in doubt."""
        statement = Statement(sql, tuple(params))
        return await self._patiently(self._read, [statement])

    async def batch(self, statements: Sequence[Statement], *, safe: bool = False) -> list[Rows]:
        """Run statements as one transaction; the first failure undoes all. Makes file and folder when missing."""
        return await self._patiently(self._write, statements) if statements else []

    async def aclose(self) -> None:
        """Nothing is kept open."""

    async def _patiently(self, run: Callable[[Sequence[Statement]], T], statements: Sequence[Statement]) -> T:
        for problem in (problem for statement in statements for problem in problems_of(statement)):
            raise CatalogError("SQLite", self.where, reason=problem)
        return await retried(
            lambda: in_thread(self._translated, run, statements), policy=_PATIENCE, brake=Brake(), tell=self._tell
        )

    def _translated(self, run: Callable[[Sequence[Statement]], T], statements: Sequence[Statement]) -> T:
        try:
            return run(statements)
        except (sqlite3.Error, sqlite3.Warning, OSError) as exc:
            is_passing = getattr(exc, "sqlite_errorcode", 0) & 0xFF in _PASSING
            raise (NotSent if is_passing else CatalogError)("SQLite", self.where, reason=str(exc)) from exc

    def _read(self, statements: Sequence[Statement]) -> Rows:
        with self._opened("rw") as db:
            db.execute("PRAGMA query_only = ON")
            return _rows(db, statements[0])

    def _write(self, statements: Sequence[Statement]) -> list[Rows]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened("rwc") as db, db:  # the connection itself commits, or rolls back on an error
            db.execute("BEGIN IMMEDIATE")
            return [_rows(db, statement) for statement in statements]

    @contextmanager
    def _opened(self, mode: str) -> Iterator[sqlite3.Connection]:
        """A connection that is closed again. A file that is only read and not there counts as an empty database."""
        is_there = mode != "rw" or self._path.exists()
        target = f"{self._path.as_uri()}?mode={mode}" if is_there else ":memory:"
        with closing(sqlite3.connect(target, timeout=_TURN_S, isolation_level=None, uri=True)) as db:
            db.text_factory = lambda raw: raw.decode(errors="replace")  # as D1 does with text that is no UTF-8
            yield db


def _rows(db: sqlite3.Connection, statement: Statement) -> Rows:
    cursor = db.execute(statement.sql, tuple(statement.params))
    columns = [column[0] for column in cursor.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in cursor]
