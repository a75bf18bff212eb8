"""The SQL side of the D1 double: sqlite3 in memory under D1's limits, types and refusals; no other I/O.

Limits are those of developers.cloudflare.com/d1/platform/limits/; types, refusals and texts are what Cloudflare's
own engine (workerd) answers. Not imitated: the " at offset N" within error texts, ``rows_read`` and ``rows_written``,
the time limit of 30 s and the 50 MB for a result. SQL functions are those of the local SQLite.
"""

from __future__ import annotations

import math
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal

#: What a bound value may be: a BLOB travels as a list of byte numbers.
Bound = str | float | bytes | None
Columns = list[str]
Rows = list[list[object]]

_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 2_000_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 100,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 5,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 32,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_PRAGMAS = frozenset(
    {
        *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
        *("foreign_key_list", "foreign_key_check", "foreign_keys", "defer_foreign_keys"),
        *("case_sensitive_like", "ignore_check_constraints", "legacy_alter_table", "recursive_triggers"),
        *("reverse_unordered_selects", "data_version", "quick_check", "optimize"),
    }
)
_FUNCTIONS = frozenset({"sqlite_version", "sqlite_source_id", "sqlite_compileoption_used", "sqlite_compileoption_get"})
_TRANSACTIONS = {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT}
_DENIED = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    *(getattr(sqlite3, f"SQLITE_CREATE_TEMP_{kind}") for kind in ("TABLE", "INDEX", "TRIGGER", "VIEW")),
}
#: Actions whose first argument is the table they touch.
_TABLE_ACTIONS = {
    sqlite3.SQLITE_CREATE_TABLE,
    sqlite3.SQLITE_DROP_TABLE,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_READ,
}
_INTERNAL = "_cf_"
_NO_TRANSACTIONS = (
    "To execute a transaction, please use the state.storage.transaction() or state.storage.transactionSync() APIs "
    "instead of the SQL BEGIN TRANSACTION or SAVEPOINT statements. The JavaScript API is safer because it will "
    "automatically roll back on exceptions, and because it interacts correctly with Durable Objects' automatic "
    "atomic write coalescing."
)
_TOKENS = re.compile(
    r"""(?P<quiet>--[^\n]*|/\*.*?(?:\*/|$)|\s+) | (?P<end>;) | (?P<named>[:@$][A-Za-z_]\w*)
    | '(?:[^']|'')*(?:'|$) | "(?:[^"]|"")*(?:"|$) | `(?:[^`]|``)*(?:`|$) | \[[^\]]*(?:\]|$) | \w+ | .""",
    re.DOTALL | re.VERBOSE,
)


class SqlRefused(Exception):
    """The engine's own words for why it does not run this."""


@dataclass(frozen=True, slots=True)
class Query:
    """One statement and the values for its ``?``."""

    sql: str
    params: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What one statement gave: rows by position, and what it changed."""

    columns: Columns
    rows: Rows
    changes: int
    last_row_id: int
    changed_db: bool


class D1Engine:
    """One database. Calls from several threads come one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_own = True  # the authorizer lets our own statements through
        self._refusal = ""
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=0)
        self._db.text_factory = lambda raw: raw.decode(errors="replace")
        self._db.execute("PRAGMA foreign_keys = ON")
        self._db.execute("CREATE TABLE _cf_METADATA (key INTEGER PRIMARY KEY, value BLOB)")
        for limit, value in _LIMITS.items():
            self._db.setlimit(limit, value)
        self._db.set_authorizer(self._authorize)

    def run(self, queries: Sequence[Query]) -> list[Result]:
        """Run all statements as one transaction; ``SqlRefused`` leaves everything as it was, tables too."""
        with self._lock:
            self._own("BEGIN")
            try:
                results = [self._run(query) for query in queries]
                self._own("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._own("ROLLBACK")
        return results

    def close(self) -> None:
        self._db.close()

    def _run(self, query: Query) -> Result:
        if len(query.sql.encode(errors="replace")) > _LIMITS[sqlite3.SQLITE_LIMIT_SQL_LENGTH]:
            raise SqlRefused("statement too long: SQLITE_TOOBIG")
        if any(match["named"] for match in _TOKENS.finditer(query.sql)):
            raise SqlRefused("named parameters are not supported: use ? or ?NNN")
        before, schema = self._db.total_changes, self._own("PRAGMA schema_version")
        with self._translated():
            cursor = self._db.execute(query.sql, query.params)
            rows = [[_to_json(value) for value in row] for row in cursor]
        changes = self._db.total_changes - before
        return Result(
            columns=[column[0] for column in cursor.description or ()],
            rows=rows,
            changes=changes,
            last_row_id=self._own("SELECT last_insert_rowid()"),
            changed_db=changes > 0 or self._own("PRAGMA schema_version") != schema,
        )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The texts of D1's engine in place of Python's exceptions."""
        self._refusal, self._is_own = "", False
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning) as exc:
            raise SqlRefused(self._refusal or _text_of(exc)) from exc
        finally:
            self._is_own = True

    def _own(self, sql: str) -> int:
        row = self._db.execute(sql).fetchone()
        return int(row[0]) if row else 0

    def _authorize(self, action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if self._is_own or not self._is_denied(action, first or "", second or ""):
            return sqlite3.SQLITE_OK
        if action in _TRANSACTIONS:
            self._refusal = _NO_TRANSACTIONS
        return sqlite3.SQLITE_DENY

    @staticmethod
    def _is_denied(action: int, first: str, second: str) -> bool:
        if action in _TRANSACTIONS or action in _DENIED:
            return True
        if action == sqlite3.SQLITE_PRAGMA:
            return first.lower() not in _PRAGMAS
        if action == sqlite3.SQLITE_FUNCTION:
            return second.lower() in _FUNCTIONS
        if action == sqlite3.SQLITE_CREATE_VTABLE:
            return second.lower() not in ("fts5", "fts5vocab")
        return action in _TABLE_ACTIONS and first.lower().startswith(_INTERNAL)


def _text_of(exc: sqlite3.Error | sqlite3.Warning) -> str:
    """An error as D1 words it: SQLite's text, then the code's name, then the extended code's where it differs."""
    if "number of bindings" in str(exc):
        return "Wrong number of parameter bindings for SQL query."
    if "null character" in str(exc):
        return "SQL code did not contain a statement."
    extended: str = getattr(exc, "sqlite_errorname", "SQLITE_TOOBIG" if "too big" in str(exc) else "SQLITE_ERROR")
    name = "_".join(extended.split("_")[:2])
    return f"{exc}: {name}" + (f" (extended: {extended})" if extended != name else "")


def _to_json(value: object) -> object:
    """A stored value as it comes out: every number went through a double, a BLOB is a list of bytes."""
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, int):
        return value if abs(value) <= 2**53 else int(Decimal(repr(float(value))))
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(Decimal(repr(value))) if value.is_integer() and abs(value) < 1e21 else value
    return value


def bound(value: object) -> Bound:
    """A JSON value as it is bound: a number is REAL whatever it looks like. ``TypeError`` for a type D1 refuses."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode(errors="surrogatepass").decode(errors="replace")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _to_double(value)
    if isinstance(value, list) and all(type(each) is int and 0 <= each <= 255 for each in value):
        return bytes(value)
    raise TypeError(type(value).__name__)


def _to_double(value: float) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def split_statements(sql: str) -> list[str]:
    """The statements of a text, cut at each ``;`` outside of quotes, comments and trigger bodies; no empty ones."""
    found: list[str] = []
    start, has_words = 0, False
    for match in _TOKENS.finditer(sql):
        if match["end"] and (not has_words or sqlite3.complete_statement(sql[start : match.end()])):
            found += [sql[start : match.start()].strip()] if has_words else []
            start, has_words = match.end(), False
        elif not match["quiet"] and not match["end"]:
            has_words = True
    return found + ([sql[start:].strip()] if has_words else [])
