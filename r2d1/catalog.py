"""The catalog: the documented table ``checkpoints``, in D1 or in its embedded twin, an SQLite file."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Protocol, cast

from r2d1.d1 import RATE_PER_S, D1Client
from r2d1.d1_wire import MAX_EXACT, MAX_PARAMS, MAX_VALUE_BYTES, Param, Statement
from r2d1.errors import CatalogError
from r2d1.events import Teller
from r2d1.retry import Brake, RetryPolicy
from r2d1.settings import Settings
from r2d1.sqlite_database import SqliteDatabase

#: The documented table, word for word: programs of others read it.
DDL = """CREATE TABLE IF NOT EXISTS checkpoints (
    job_id    TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    timestamp REAL    NOT NULL,   -- doubles as heartbeat
    r2_prefix TEXT    NOT NULL,
    metadata  TEXT    DEFAULT '{}',
    PRIMARY KEY (job_id, name)
);"""
CREATE = Statement(DDL)

_COLUMNS = ("job_id", "name", "epoch", "timestamp", "r2_prefix", "metadata")
#: D1 binds a JSON number as REAL; text and CAST store an integer, whatever type the column was given.
_PLACES = "(?, ?, CAST(? AS INTEGER), ?, ?, ?)"
_UPDATES = ", ".join(f"{column} = excluded.{column}" for column in _COLUMNS[2:])
_SELECT = (
    "SELECT job_id, name, epoch, timestamp, r2_prefix, metadata FROM checkpoints "
    "WHERE job_id = ? AND typeof(epoch) IN ('integer', 'real') AND epoch BETWEEN 0 AND 9007199254740991 "
    "ORDER BY epoch DESC, timestamp DESC, name LIMIT CAST(? AS INTEGER)"
)
_DELETE = "DELETE FROM checkpoints WHERE job_id = ? AND name IN"
_ROWS_A_STATEMENT = MAX_PARAMS // len(_COLUMNS)
#: What one request carries at most, so that it ends well within D1's 30 s for a call.
_ROWS_A_REQUEST = 1_000
_BYTES_A_REQUEST = 4_000_000
#: Room in D1's 2,000,000 bytes for a row's own administration.
_MAX_ROW_BYTES = MAX_VALUE_BYTES - 1_000

_QUOTED = re.compile(
    r"""'[^']*(?:'|$) | "[^"]*(?:"|$) | `[^`]*(?:`|$) | \[[^\]]*(?:\]|$) | --[^\n]* | /\*.*?(?:\*/|$)""",
    re.DOTALL | re.VERBOSE,
)
_READING = re.compile(r"\s*(SELECT|WITH|VALUES|EXPLAIN)\b", re.IGNORECASE)
_WRITING = re.compile(r"\b(INSERT|UPDATE|DELETE|REPLACE\s+INTO)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint as the table tells of it, a copy of its head.

    ``epoch`` is 0 to 2^53-1, ``timestamp`` finite seconds since 1970, ``r2_prefix`` the key prefix without a
    slash at its end, ``metadata`` the sidecar's as strict JSON text. Rows that are read may come from the 0.2
    line: their ``metadata`` is whatever text lies there (``"{}"`` for none), a fractional epoch is cut.
    """

    job_id: str
    name: str
    epoch: int
    timestamp: float
    r2_prefix: str
    metadata: str = "{}"


class Catalog(Protocol):
    """Where rows are kept. Every call is idempotent; held to one contract suite, ``tests/contract/catalog.py``.

    Errors: ``CatalogError`` for what can never go in (SQL, limits), else those of ``RemoteError``'s tree.
    ``where`` names the database in messages and holds no secret.
    """

    @property
    def where(self) -> str: ...

    async def ensure(self) -> None:
        """Create the documented table when it is missing."""

    async def put(self, rows: Sequence[Row]) -> None:
        """Write all rows, each in place of the one with its job and name; create the table when it is missing.

        Many rows travel in several transactions: after an error some may be written, and putting all again
        is right. Columns that others added to the table keep their values.
        """

    async def remove(self, job_id: str, names: Sequence[str]) -> None:
        """Delete the rows of these names; one that is absent counts as deleted."""

    async def rows(self, job_id: str, *, limit: int | None = None) -> list[Row]:
        """The rows of a job: epoch descending, timestamp descending, name. No table means no rows.

        Rows whose epoch is not a number from 0 to 2^53-1 are left out.
        """

    async def query(self, sql: str, params: Sequence[object] = ()) -> list[dict[str, object]]:
        """Run one reading statement with ``?`` for each bound value; ``CatalogError`` for one that writes."""

    async def aclose(self) -> None:
        """Release connections. Safe to call twice."""


class Database(Protocol):
    """What the table's statements run on: the D1 client, the SQLite file, the double's rules in a simulation."""

    @property
    def where(self) -> str: ...

    async def query(self, sql: str, params: Sequence[Param] = (), *, safe: bool = False) -> list[dict[str, object]]: ...

    async def batch(self, statements: Sequence[Statement], *, safe: bool = False) -> list[list[dict[str, object]]]: ...

    async def aclose(self) -> None: ...


class TableCatalog:
    """The ``Catalog`` over any ``Database``. All its statements may run twice, and say so (``safe``)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def where(self) -> str:
        return self._database.where

    async def ensure(self) -> None:
        await self._database.batch([CREATE], safe=True)

    async def put(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if problem := problem_of(row):
                raise CatalogError("put row", self.where, reason=f"{row.name!a}: {problem}")
        for chunk in chunks_of(rows):
            await self._database.batch([CREATE, *upserts(chunk)], safe=True)

    async def remove(self, job_id: str, names: Sequence[str]) -> None:
        for at in range(0, len(names), _ROWS_A_REQUEST):
            try:
                await self._database.batch(deletes(job_id, names[at : at + _ROWS_A_REQUEST]), safe=True)
            except CatalogError as error:
                if not is_missing_table(error):
                    raise

    async def rows(self, job_id: str, *, limit: int | None = None) -> list[Row]:
        most = str(MAX_EXACT if limit is None else max(0, limit))
        try:
            found = await self._database.query(_SELECT, [job_id, most], safe=True)
        except CatalogError as error:
            if is_missing_table(error):
                return []
            raise
        return [row for each in found if (row := row_from(each)) is not None]

    async def query(self, sql: str, params: Sequence[object] = ()) -> list[dict[str, object]]:
        if not is_reading(sql):
            raise CatalogError("query", self.where, reason="only statements that read (SELECT, WITH, VALUES, EXPLAIN)")
        values = cast("Sequence[Param]", params)  # the database looks at each
        return await self._database.query(sql, values, safe=True)

    async def aclose(self) -> None:
        await self._database.aclose()


class D1Catalog(TableCatalog):
    """The table in a D1 database."""

    def __init__(self, client: D1Client) -> None:
        super().__init__(client)


class SqliteCatalog(TableCatalog):
    """The embedded twin: the same table in an SQLite file that many processes may share, made by the first write."""

    def __init__(self, path: Path, *, tell: Teller | None = None) -> None:
        super().__init__(SqliteDatabase(path, tell=tell))


def open_catalog(
    settings: Settings, *, tell: Teller, policy: RetryPolicy, brake: Brake | None = None, rate_per_s: float = RATE_PER_S
) -> Catalog | None:
    """The catalog that the settings ask for; ``None`` is R2-only mode, which one notice says (this, or theirs).

    The embedded store keeps its catalog beside its objects. ``rate_per_s`` bounds the calls to D1. Nothing is
    opened or sent yet.
    """
    if settings.store_dir is not None:
        return SqliteCatalog(settings.store_dir / ".r2d1" / "catalog.db", tell=tell)
    account_id, database_id, api_token = settings.account_id, settings.database_id, settings.api_token
    if not (account_id and database_id and api_token):
        if text := r2_only(settings):
            tell.notice("info", text, once="r2-only")
        return None
    client = D1Client(
        base_url=settings.d1_base_url,
        account_id=account_id,
        database_id=database_id,
        api_token=api_token,
        policy=policy,
        tell=tell,
        brake=brake,
        ssl_context=settings.ssl_context,
        proxy=settings.proxy_for(settings.d1_base_url),
        rate_per_s=rate_per_s,
    )
    return D1Catalog(client)


def r2_only(settings: Settings) -> str:
    """What to say of settings without D1; empty when there is one, or when their own notices say that half is there."""
    if settings.store_dir is not None or settings.has_d1 or settings.api_token or settings.database_id:
        return ""
    gaps = "; ".join(map(str, settings.missing_d1()))
    return f"R2-only mode: checkpoints are shipped and pulled, no D1 rows are written (not set: {gaps})"


def problem_of(row: Row) -> str:
    """Why the table cannot hold this row; empty if it can."""
    texts = (row.job_id, row.name, row.r2_prefix, row.metadata)
    if isinstance(row.epoch, bool) or not isinstance(row.epoch, int) or not 0 <= row.epoch <= MAX_EXACT:
        return f"epoch {row.epoch!r} is not an integer from 0 to 2^53-1"
    if not math.isfinite(row.timestamp):
        return f"timestamp {row.timestamp} is not a finite number"
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError:
        return "a text holds a lone surrogate"
    return f"{size:,} bytes; D1 takes rows below {MAX_VALUE_BYTES:,}" if size > _MAX_ROW_BYTES else ""


def chunks_of(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Cut rows into what one request carries."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        weight = 4 * len(row.metadata)  # UTF-8 takes at most four bytes a character
        if chunk and (len(chunk) >= _ROWS_A_REQUEST or size + weight > _BYTES_A_REQUEST):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += weight
    if chunk:
        yield chunk


def upserts(rows: Sequence[Row]) -> list[Statement]:
    """Statements that write the rows, each in place of the one with its job and name."""
    groups = (rows[at : at + _ROWS_A_STATEMENT] for at in range(0, len(rows), _ROWS_A_STATEMENT))
    return [_upsert(group) for group in groups]


def _upsert(rows: Sequence[Row]) -> Statement:
    # Only our own column names are put into the text; every value is bound.
    sql = (
        f"INSERT INTO checkpoints ({', '.join(_COLUMNS)}) VALUES {', '.join([_PLACES] * len(rows))} "  # noqa: S608
        f"ON CONFLICT (job_id, name) DO UPDATE SET {_UPDATES}"
    )
    return Statement(sql, [value for row in rows for value in _values_of(row)])


def _values_of(row: Row) -> tuple[Param, ...]:
    job_id, name, epoch, timestamp, r2_prefix, metadata = astuple(row)
    return job_id, name, str(epoch), float(timestamp), r2_prefix, metadata


def deletes(job_id: str, names: Sequence[str]) -> list[Statement]:
    """Statements that delete the rows of these names."""
    width = MAX_PARAMS - 1
    groups = [names[at : at + width] for at in range(0, len(names), width)]
    return [Statement(f"{_DELETE} ({', '.join('?' * len(group))})", [job_id, *group]) for group in groups]


def row_from(found: Mapping[str, object]) -> Row | None:
    """A row as it lies in the table; ``None`` for one without usable name. Others write there too, so be lenient."""
    job_id, name, epoch, prefix = (found.get(column) for column in ("job_id", "name", "epoch", "r2_prefix"))
    if not isinstance(job_id, str) or not isinstance(name, str) or not isinstance(epoch, (int, float)):
        return None
    metadata = found.get("metadata")
    return Row(
        job_id=job_id,
        name=name,
        epoch=int(epoch),
        timestamp=_seconds(found.get("timestamp")),
        r2_prefix=prefix if isinstance(prefix, str) else "",
        metadata=metadata if isinstance(metadata, str) else "{}",
    )


def _seconds(value: object) -> float:
    """A timestamp, 0 for what is none: it only orders rows of one epoch."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


def is_reading(sql: str) -> bool:
    """Whether this is one statement that can only read: its first word and, outside of quotes, no word that writes."""
    bare = _QUOTED.sub(" ", sql).rstrip("; \t\r\n")
    return ";" not in bare and _READING.match(bare) is not None and _WRITING.search(bare) is None


def is_missing_table(error: CatalogError) -> bool:
    return "no such table: checkpoints" in error.reason
