"""Whether the D1 token may read and write, tried on a table of the doctor's own that no statement leaves behind."""

from __future__ import annotations

import secrets
import time

import anyio

from r2d1.d1 import D1Client
from r2d1.d1_wire import Statement
from r2d1.doctor.finding import Finding, Status, failed
from r2d1.errors import RemoteError
from r2d1.events import Teller
from r2d1.retry import RetryPolicy
from r2d1.settings import Settings

_TABLES = "SELECT count(*) AS tables FROM sqlite_master WHERE type = 'table' AND name = 'checkpoints'"


async def check_d1(settings: Settings, tell: Teller, policy: RetryPolicy) -> list[Finding]:
    """Read, then write; skipped where D1 is not configured."""
    if settings.store_dir is not None:
        return [Finding("d1", Status.SKIPPED, "the embedded store has a catalog of its own")]
    if not settings.has_d1:
        missing = "; ".join(map(str, settings.missing_d1()))
        return [Finding("d1", Status.SKIPPED, f"not configured, no rows are written: {missing}")]
    client = _client(settings, tell, policy)
    try:
        read = await _read(client)
        if read.status is Status.FAILED:
            return [read, Finding("d1 write", Status.SKIPPED, "nothing is written where reading fails")]
        return [read, await _write(client)]
    finally:
        with anyio.CancelScope(shield=True):
            await client.aclose()


def _client(settings: Settings, tell: Teller, policy: RetryPolicy) -> D1Client:
    assert settings.account_id is not None
    assert settings.database_id is not None
    assert settings.api_token is not None
    return D1Client(
        base_url=settings.d1_base_url,
        account_id=settings.account_id,
        database_id=settings.database_id,
        api_token=settings.api_token,
        policy=policy,
        tell=tell,
        ssl_context=settings.ssl_context,
        proxy=settings.proxy_for(settings.d1_base_url),
    )


async def _read(client: D1Client) -> Finding:
    began = time.monotonic()
    try:
        rows = await client.query(_TABLES, safe=True)
    except RemoteError as error:
        return failed("d1 read", str(error), error.hint)
    took = 1000 * (time.monotonic() - began)
    has_table = any(row.get("tables") for row in rows)
    table = (
        "" if has_table else "; the table checkpoints is not there yet (`r2d1 init`, or the first courier, makes it)"
    )
    return Finding("d1 read", Status.OK, f"{client.where} answers in {took:.0f} ms{table}")


async def _write(client: D1Client) -> Finding:
    """Make a table, fill it, read it and drop it, in one transaction."""
    table = f"r2d1_doctor_{secrets.token_hex(6)}"
    statements = [
        Statement(f"CREATE TABLE {table} (word TEXT)"),
        Statement(f"INSERT INTO {table} VALUES (?)", ("written",)),  # noqa: S608 - the name is our own
        Statement(f"SELECT word FROM {table}"),  # noqa: S608
        Statement(f"DROP TABLE {table}"),
    ]
    try:
        results = await client.batch(statements)
    except RemoteError as error:
        return failed("d1 write", str(error), error.hint)
    if results[2] != [{"word": "written"}]:
        return failed("d1 write", "a row that was written did not come back in the same transaction")
    return Finding("d1 write", Status.OK, "a row was written, read and removed")
