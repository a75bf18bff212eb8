"""The D1 client over real sockets, and its pure half: statements, answers, errors, pace."""

from __future__ import annotations

import json
import logging
import random
import ssl
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from r2d1.d1 import D1Client, Pace
from r2d1.d1_wire import Allowance, Reply, Statement, allowance_of, encode, retry_after_of, rows_of
from r2d1.errors import (
    AccessRefused,
    CatalogError,
    Closed,
    ConfigError,
    NotSent,
    RemoteError,
    RemoteUnavailable,
    Throttled,
)
from r2d1.events import Event, Retried, Teller
from r2d1.retry import Brake, RetryPolicy
from r2d1.secret import Secret
from r2d1.testing import d1 as faults
from r2d1.testing.d1 import Answer, D1Double, Fault
from r2d1.testing.d1_rules import CallLimit
from r2d1.testing.faults import Gate
from tests.tls import Authority, connect_proxy

TOKEN = "AbCdEf-0123456789_secret-token-of-this-test"
ONCE = RetryPolicy(attempts=1)
QUICK = RetryPolicy(attempts=4, base_s=0.001, cap_s=0.002, longest_wait_s=0.01)


@pytest.fixture
def double() -> Iterator[D1Double]:
    with D1Double(api_token=TOKEN, calls=CallLimit(1_000_000)) as made:
        made.sql("CREATE TABLE t (n INTEGER)")
        yield made


@pytest.fixture
def told() -> list[Event]:
    return []


@asynccontextmanager
async def client_of(double: D1Double, told: list[Event] | None = None, **changes: Any) -> AsyncIterator[D1Client]:
    arguments: dict[str, Any] = {
        "base_url": double.url,
        "account_id": double.account_id,
        "database_id": double.database_id,
        "api_token": Secret(TOKEN),
        "policy": QUICK,
        "tell": Teller(None if told is None else told.append),
        "brake": Brake(random.Random(1)),
        "rate_per_s": 10_000.0,
    }
    client = D1Client(**(arguments | changes))
    try:
        yield client
    finally:
        await client.aclose()


def retries(told: list[Event]) -> list[Retried]:
    return [event for event in told if isinstance(event, Retried)]


# --- the pure half


def test_one_statement_and_a_batch_have_the_documented_bodies() -> None:
    """One statement travels alone, several as a batch, and texts are UTF-8 as they are."""
    one = Statement("SELECT ?", ["ü🚀", 1.5, None, True])
    assert json.loads(encode([one])) == {"sql": "SELECT ?", "params": ["ü🚀", 1.5, None, 1]}
    assert "ü🚀".encode() in encode([one])
    assert json.loads(encode([one, one])) == {"batch": [{"sql": "SELECT ?", "params": ["ü🚀", 1.5, None, 1]}] * 2}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, "\ud800", b"x", [1]])
def test_values_that_json_or_d1_cannot_carry_are_never_sent(value: Any) -> None:
    """Case 54: NaN, infinities, inexact integers, lone surrogates and other types are refused before the wire."""
    with pytest.raises(ValueError, match="bound value 2"):
        encode([Statement("SELECT ?, ?", [1, value])])


def test_rows_of_a_good_answer() -> None:
    """Rows come a list a statement; a missing or null result counts as no rows."""
    item = {"success": True, "results": [{"a": 1}], "meta": {}}
    assert understood(200, {"success": True, "result": [item, {"success": True}]}) == [[{"a": 1}], []]
    assert understood(200, {"success": True, "result": None}) == []
    assert understood(200, {"success": True}) == []


def understood(status: int, document: object, headers: dict[str, str] | None = None) -> list[list[dict[str, Any]]]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return rows_of(Reply(status, headers or {}, body), operation="D1 query", where="D1 x", now=1_000.0)


def failure(code: int | None, message: str) -> dict[str, Any]:
    return {"success": False, "errors": [{"code": code, "message": message}], "messages": [], "result": None}


ITEM_FAILED = {"success": True, "errors": [], "result": [{"success": True}, {"success": False, "error": "boom"}]}


@pytest.mark.parametrize(
    ("status", "document", "kind", "words"),
    [
        (400, failure(7500, "too many SQL variables at offset 434: SQLITE_ERROR"), CatalogError, "too many SQL var"),
        (200, failure(7500, "no such column: x: SQLITE_ERROR"), CatalogError, "no such column"),
        (500, failure(7500, "UNIQUE constraint failed: t.n: SQLITE_CONSTRAINT"), CatalogError, "UNIQUE"),
        (400, failure(7500, "no such column: overloaded: SQLITE_ERROR"), CatalogError, "overloaded"),
        (400, failure(7500, "Wrong number of parameter bindings for SQL query."), CatalogError, "Wrong number"),
        (400, failure(7500, "D1 DB exceeded its CPU time limit and was reset."), CatalogError, "CPU"),
        (200, ITEM_FAILED, CatalogError, "boom"),
        (200, {"success": False, "errors": None}, CatalogError, "no reason given"),
        (503, {"success": True, "result": []}, RemoteUnavailable, "503"),
        (400, failure(7400, "failed to decode id"), CatalogError, "must be the database's UUID"),
        (404, failure(7404, "not found"), CatalogError, "Check R2D1_D1_DATABASE_ID"),
        (404, failure(7000, "No route for that URI"), CatalogError, "R2D1_D1_BASE_URL"),
        (302, b"", CatalogError, "R2D1_D1_BASE_URL"),
        (401, failure(10000, "Authentication error"), AccessRefused, "an R2 secret key"),
        (403, failure(10000, "Authentication error"), AccessRefused, "an R2 secret key"),
        (400, failure(6003, "Invalid request headers"), AccessRefused, "R2D1_API_TOKEN"),
        (400, failure(9106, "Missing headers"), AccessRefused, "R2D1_API_TOKEN"),
        (403, failure(7403, "not authorized"), AccessRefused, "D1 Edit"),
        (403, b"<html>challenge</html>", AccessRefused, "not D1's JSON"),
        (429, failure(971, "consider throttling"), Throttled, "1,200 calls"),
        (429, b"<html>1015</html>", Throttled, "not D1's JSON"),
        (429, failure(7500, "D1 DB is overloaded. Too many requests queued."), Throttled, "overloaded"),
        (503, failure(7500, "D1 DB is overloaded. Requests queued for too long."), Throttled, "overloaded"),
        (500, failure(7500, "internal error; reference = abc"), RemoteUnavailable, "reference = abc"),
        (400, failure(7500, "internal error; reference = abc"), RemoteUnavailable, "reference = abc"),
        (400, failure(7500, "Network connection lost."), RemoteUnavailable, "Network connection lost"),
        (400, failure(7500, "D1 DB reset because its code was updated."), RemoteUnavailable, "code was updated"),
        (
            400,
            failure(7500, "D1 DB storage operation exceeded timeout which caused object to be reset."),
            RemoteUnavailable,
            "storage",
        ),
        (
            400,
            failure(7500, "Cannot resolve D1 DB due to transient issue on remote node."),
            RemoteUnavailable,
            "remote node",
        ),
        (
            400,
            failure(7500, "Can't read from request stream because client disconnected."),
            RemoteUnavailable,
            "disconnected",
        ),
        (400, failure(7500, "database is locked: SQLITE_BUSY"), RemoteUnavailable, "locked"),
        (500, b"", RemoteUnavailable, "not D1's JSON"),
        (502, b"<html>bad gateway</html>", RemoteUnavailable, "not D1's JSON"),
        (200, b"<html>sign in to this network</html>", RemoteUnavailable, "not D1's JSON"),
        (200, b"", RemoteUnavailable, "0 bytes"),
        (200, b'{"success": true, "resu', RemoteUnavailable, "not D1's JSON"),
        (200, [1], RemoteUnavailable, "not D1's JSON"),
    ],
)
def test_each_answer_has_its_error(status: int, document: object, kind: type[RemoteError], words: str) -> None:
    """Status, code and message decide the class, and both levels of ``success`` count at any status."""
    with pytest.raises(RemoteError, match=words) as caught:
        understood(status, document, {"cf-ray": "8f1e-AMS"})
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert "D1 query D1 x" in str(caught.value)
    assert "8f1e-AMS" in str(caught.value)


def test_text_of_a_server_cannot_steer_a_terminal() -> None:
    """Control characters in a message are replaced, and its length is bounded."""
    with pytest.raises(CatalogError) as caught:
        understood(400, failure(7500, "\x1b[2J\r\n" + "x" * 10_000))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "17"}, 17.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:17:00 GMT"}, 20.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({}, None),
    ],
)
def test_retry_after_as_seconds_and_as_date(headers: dict[str, str], seconds: float | None) -> None:
    """``Retry-After`` is understood in both forms; a date counts from the answer's own, else from our clock."""
    assert retry_after_of(headers, now=1_000.0) == seconds


@pytest.mark.parametrize(
    ("header", "allowance"),
    [
        ('"default";r=50;t=30', Allowance(50, 30)),
        ('"default";r=1000;t=300, "burst";r=2;t=60', Allowance(2, 60)),
        ("limit=100", None),
        ("", None),
    ],
)
def test_ratelimit_header(header: str, allowance: Allowance | None) -> None:
    """The tightest policy of a ``Ratelimit`` header counts."""
    assert allowance_of({"ratelimit": header}) == allowance


def sent_at(pace: Pace, calls: int, now: float = 0.0) -> list[float]:
    """When calls that all want to start at once are let go."""
    return [now + pace.reserve(now) for _ in range(calls)]


def test_pace_stays_below_the_account_limit() -> None:
    """After a small burst calls go at the rate, and no five minutes see 1,200 of them, idle spells included."""
    times = sent_at(Pace(3.0, burst=4), 2_000)
    assert times[:4] == [0.0] * 4
    assert times[4] == pytest.approx(1 / 3)
    assert max(sum(start <= at < start + 300 for at in times) for start in range(0, 400, 20)) < 1_000
    rested = Pace(3.0, burst=4)
    sent_at(rested, 4)
    assert sent_at(rested, 5, now=1_000.0) == pytest.approx([1_000.0] * 4 + [1_000 + 1 / 3])


def test_pace_slows_down_before_nothing_is_left() -> None:
    """What the server still allows is spread over its window, without bursts; afterwards the old rate holds again."""
    pace = Pace(3.0, burst=4)
    pace.heed(Allowance(remaining=11, seconds=30.0), now=0.0)
    assert sent_at(pace, 4) == pytest.approx([0.0, 3.0, 6.0, 9.0])
    assert sent_at(pace, 4, now=100.0) == [100.0] * 4


def test_pace_waits_for_the_next_window() -> None:
    """With one call left none is made until the window ends; plenty left changes nothing."""
    pace = Pace(3.0, burst=4)
    pace.heed(Allowance(remaining=1_100, seconds=30.0), now=0.0)
    assert sent_at(pace, 2) == [0.0, 0.0]
    pace.heed(Allowance(remaining=1, seconds=30.0), now=0.0)
    assert sent_at(pace, 1)[0] == pytest.approx(30.0)
    hostile = Pace(3.0)
    hostile.heed(Allowance(remaining=0, seconds=1e9), now=0.0)
    assert sent_at(hostile, 1)[0] == pytest.approx(300.0)


# --- over a socket


async def test_queries_share_one_connection(double: D1Double) -> None:
    """A query gives its rows, a batch a list for each statement, and all travel over one kept-alive connection."""
    async with client_of(double) as client:
        assert await client.query("SELECT ? AS a, ? AS b", ["x", 1.5]) == [{"a": "x", "b": 1.5}]
        done = await client.batch(
            [Statement("INSERT INTO t VALUES (CAST(? AS INTEGER))", ["7"]), Statement("SELECT n FROM t")]
        )
        assert done == [[], [{"n": 7}]]
        assert await client.batch([]) == []
        for _ in range(5):
            await client.query("SELECT 1")
    assert double.connections == 1
    path = f"/client/v4/accounts/{double.account_id}/d1/database/{double.database_id}/query"
    assert [(logged.method, logged.path) for logged in double.requests] == [("POST", path)] * 7


async def test_batch_is_one_transaction(double: D1Double) -> None:
    """When a later statement of a batch fails, the earlier ones are undone."""
    async with client_of(double) as client:
        with pytest.raises(CatalogError, match="no such table: nowhere") as caught:
            await client.batch([Statement("INSERT INTO t VALUES (1)"), Statement("INSERT INTO nowhere VALUES (1)")])
    assert double.sql("SELECT * FROM t") == []
    assert caught.value.attempts == 1


@pytest.mark.parametrize(
    "fault", [faults.lost_reply(), faults.dropped(), faults.cut(20), faults.empty(), faults.html(502)]
)
async def test_answer_in_doubt_is_tried_again_only_when_safe(double: D1Double, told: list[Event], fault: Fault) -> None:
    """Case 49: after a lost, cut or empty answer only a call that may run twice is repeated."""
    async with client_of(double, told) as client:
        double.script(fault)
        with pytest.raises(RemoteUnavailable):
            await client.query("INSERT INTO t VALUES (1)")
        assert len(double.requests) == 1
        double.script(fault)
        assert await client.query("SELECT 1 AS a", safe=True) == [{"a": 1}]
    assert len(double.requests) == 3
    assert [retry.attempt for retry in retries(told)] == [1]


async def test_lost_reply_then_internal_error_leaves_one_row(double: D1Double) -> None:
    """Case 49: committed but unanswered, then 500 with code 7500 before the commit, then both: one row, right values."""
    upsert = Statement(
        "INSERT INTO k VALUES (?, CAST(? AS INTEGER)) ON CONFLICT (id) DO UPDATE SET n = excluded.n", ["a", "7"]
    )
    double.sql("CREATE TABLE k (id TEXT PRIMARY KEY, n INTEGER)")
    broken = faults.refused(500, 7500, "internal error; reference = 1")
    async with client_of(double) as client:
        for script in ([faults.lost_reply()], [broken], [faults.lost_reply(), broken, faults.lost_reply()]):
            double.script(*script)
            await client.batch([upsert, Statement("SELECT 1")], safe=True)
    assert double.sql("SELECT * FROM k") == [{"id": "a", "n": 7}]
    assert len({json.dumps(logged.body) for logged in double.requests}) == 1


async def test_what_never_arrived_is_always_tried_again(double: D1Double, told: list[Event]) -> None:
    """A refused connection and a throttled call had no effect, so even a call that is not safe is repeated."""
    async with client_of(double, told) as client:
        double.script(faults.throttled(), faults.overloaded())
        await client.query("INSERT INTO t VALUES (1)")
        assert len(retries(told)) == 2
        double.stop()
        with pytest.raises(NotSent, match="4 attempts") as caught:
            await client.query("INSERT INTO t VALUES (2)")
        assert "R2D1_D1_BASE_URL" in str(caught.value)
        double.start()
        await client.query("INSERT INTO t VALUES (3)")
    assert double.sql("SELECT n FROM t") == [{"n": 1}, {"n": 3}]


async def test_permanent_refusals_are_not_repeated(double: D1Double, told: list[Event]) -> None:
    """Wrong SQL, an unknown database and a refused token are asked once."""
    async with client_of(double, told) as client:
        with pytest.raises(CatalogError, match="syntax error"):
            await client.query("SELEC 1", safe=True)
    async with client_of(double, told, api_token=Secret("another-token-0123456789")) as client:
        with pytest.raises(AccessRefused, match="10000"):
            await client.query("SELECT 1", safe=True)
    async with client_of(double, told, account_id="f" * 32) as client:
        with pytest.raises(AccessRefused, match="D1 Edit"):
            await client.query("SELECT 1", safe=True)
    async with client_of(double, told, database_id="22222222-2222-3333-4444-555555555555") as client:
        with pytest.raises(CatalogError, match="could not be found"):
            await client.query("SELECT 1", safe=True)
    async with client_of(double, told, database_id="by-its-name") as client:
        with pytest.raises(CatalogError, match="UUID, not its name"):
            await client.query("SELECT 1", safe=True)
    assert len(double.requests) == 5
    assert told == []


async def test_success_is_checked_at_both_levels(double: D1Double) -> None:
    """A 200 that says false, at the top or for the statement, is an error."""
    async with client_of(double) as client:
        double.script(
            faults.refused(200, 7500, "no such table: x: SQLITE_ERROR"), faults.statement_failed("went wrong")
        )
        with pytest.raises(CatalogError, match="no such table"):
            await client.query("SELECT 1")
        with pytest.raises(CatalogError, match="went wrong"):
            await client.query("SELECT 1")


async def test_retry_after_is_waited_for(double: D1Double, told: list[Event]) -> None:
    """Case 56: the pause is the server's own, capped by the policy, and attempts are few."""
    policy = RetryPolicy(attempts=3, base_s=0.0001, cap_s=0.0001, longest_wait_s=0.05)
    double.always(faults.throttled("120"))
    async with client_of(double, told, policy=policy) as client:
        with pytest.raises(Throttled, match="971") as caught:
            await client.query("SELECT 1", safe=True)
    assert caught.value.retry_after == 120.0
    assert [retry.delay for retry in retries(told)] == [0.05, 0.05]
    assert len(double.requests) == 3


async def test_throttling_slows_every_call_of_the_client(double: D1Double) -> None:
    """Case 56: while one call is told to wait, another call of the same client does not go out either."""
    policy = RetryPolicy(attempts=2, budget_s=1_000.0, longest_wait_s=600.0)
    told_to_wait = anyio.Event()
    tell = Teller(lambda _: told_to_wait.set())
    double.script(faults.throttled("600"))
    async with client_of(double, policy=policy, tell=tell) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.query, "SELECT 1")
        await told_to_wait.wait()
        with anyio.move_on_after(0.2) as waited:
            await client.query("SELECT 2")
        tasks.cancel_scope.cancel()
    assert waited.cancelled_caught
    assert len(double.requests) == 1


async def test_client_paces_itself(double: D1Double) -> None:
    """After its small burst the client waits for its own rate before it sends."""
    async with client_of(double, rate_per_s=0.001) as client:
        for _ in range(4):
            await client.query("SELECT 1")
        with anyio.move_on_after(0.3) as waited:
            await client.query("SELECT 1")
    assert waited.cancelled_caught
    assert len(double.requests) == 4


async def test_client_stops_before_the_allowance_is_used_up() -> None:
    """The ``Ratelimit`` header is read: with one call left the client sends no more, so it never meets a 429."""
    with D1Double(api_token=TOKEN, calls=CallLimit(4, window_s=300.0)) as double:
        async with client_of(double) as client:
            with anyio.move_on_after(0.3) as waited:
                for _ in range(10):
                    await client.query("SELECT 1")
        assert waited.cancelled_caught
        assert {logged.status for logged in double.requests} == {200}
        assert len(double.requests) < 4


async def test_hanging_call_ends_by_our_own_time_out(double: D1Double) -> None:
    """Case 50: a call that hangs ends by the client's time-out, and the next one goes well."""
    gate = Gate()
    double.script(faults.held(gate))
    async with client_of(double, timeout_s=0.3) as client:
        with pytest.raises(RemoteUnavailable, match=r"no whole answer within 0\.3 s") as caught:
            await client.query("INSERT INTO t VALUES (1)")
        assert caught.value.ambiguous
        assert await client.query("SELECT 1 AS a", safe=True) == [{"a": 1}]
        gate.release()


async def test_trickling_answer_ends_by_the_same_time_out(double: D1Double) -> None:
    """An answer that comes byte by byte does not outlive the time-out for the whole."""
    double.script(faults.trickled(0.05))
    async with client_of(double, policy=ONCE, timeout_s=0.3) as client:
        with pytest.raises(RemoteUnavailable, match="no whole answer"):
            await client.query("SELECT 1")


async def test_cancelling_stops_a_hanging_call(double: D1Double) -> None:
    """A cancelled call lets go at once, and the client stays usable."""
    gate = Gate()
    double.script(faults.held(gate))
    async with client_of(double) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.query, "SELECT 1")
            await gate.arrived.wait()
            tasks.cancel_scope.cancel()
        assert await client.query("SELECT 1 AS a") == [{"a": 1}]
        gate.release()


async def test_answer_beyond_all_bounds_is_given_up(double: D1Double) -> None:
    """An answer longer than any result D1 gives is not gathered in memory."""
    double.script(Fault(answer=Answer(200, raw=bytes(65 * 2**20))))
    async with client_of(double, policy=ONCE) as client:
        with pytest.raises(CatalogError, match="longer than 67,108,864 bytes"):
            await client.query("SELECT 1")


async def test_redirects_are_not_followed(double: D1Double) -> None:
    """A redirect is an error, and whoever it points to gets neither the request nor the token."""
    with D1Double() as other:
        double.script(faults.refused(307, 0, "moved", headers={"Location": f"{other.url}/elsewhere"}))
        async with client_of(double) as client:
            with pytest.raises(CatalogError, match="307"):
                await client.query("SELECT 1", safe=True)
        assert list(other.requests) == []


async def test_environment_changes_nothing(double: D1Double, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Case 80: proxies, certificates and netrc of the environment have no say."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login intruder password x\n")
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("SSL_CERT_FILE", "/nope")
    monkeypatch.setenv("NETRC", str(netrc))
    async with client_of(double) as client:
        assert await client.query("SELECT 1 AS a") == [{"a": 1}]


async def test_closed_client_says_so(double: D1Double) -> None:
    """A client that was closed refuses calls; closing again is fine."""
    async with client_of(double) as client:
        await client.query("SELECT 1")
        await client.aclose()
        with pytest.raises(Closed):
            await client.query("SELECT 1")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"api_token": Secret(f"{TOKEN}\n")}, "R2D1_API_TOKEN"),
        ({"api_token": Secret("")}, "R2D1_API_TOKEN: it is empty"),
        ({"database_id": "../../user/tokens"}, "R2D1_D1_DATABASE_ID"),
        ({"account_id": "a/b"}, "R2D1_ACCOUNT_ID"),
        ({"base_url": f"ftp://{TOKEN}"}, "R2D1_D1_BASE_URL"),
        ({"base_url": ""}, "R2D1_D1_BASE_URL"),
    ],
)
async def test_settings_that_cannot_be_right(double: D1Double, changes: dict[str, Any], words: str) -> None:
    """What is malformed is named before anything is sent, and its value is not shown."""
    with pytest.raises(ConfigError, match=words) as caught:
        async with client_of(double, **changes):
            pass
    assert TOKEN not in str(caught.value)


@pytest.fixture
def unfiltered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP library's loggers as they are without what other rooms of r2d1 keep out of them."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("httpx", "httpcore")):
            monkeypatch.setattr(logging.getLogger(name), "filters", [])


@pytest.mark.usefixtures("unfiltered")
async def test_token_never_shows(double: D1Double, caplog: pytest.LogCaptureFixture, told: list[Event]) -> None:
    """Case 126: with DEBUG on and every kind of failure, no log, event, repr, error or trace with locals has the token."""
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    gate = Gate()
    kinds = [
        *(faults.refused(status, 7500, f"echo {TOKEN}") for status in (200, 400, 401, 403, 429, 500)),
        *(faults.html(403), faults.lost_reply(), faults.dropped(), faults.cut(5), faults.held(gate)),
    ]
    async with client_of(double, told, policy=RetryPolicy(attempts=2, base_s=0.001), timeout_s=0.3) as client:
        for fault in kinds:
            double.script(fault, fault)
            with pytest.raises(RemoteError) as caught:
                await client.query("SELECT ?", ["x"], safe=True)
            seen += shown(caught.value)
        gate.release()
        double.stop()
        with pytest.raises(NotSent) as caught:
            await client.query("SELECT 1")
        seen += [*shown(caught.value), repr(client), repr(vars(client)), repr(client.__dict__["_http"])]
    assert len(caplog.records) > 20
    everything = "\n".join([*seen, *map(repr, told), caplog.text, *(repr(vars(record)) for record in caplog.records)])
    assert TOKEN not in everything


def shown(error: BaseException) -> list[str]:
    """All that a report may print of an error: its texts, and its frames below the test's own with their locals."""
    assert error.__traceback__ is not None
    assert error.__context__ is None or error.__context__.__traceback__ is None
    trace = traceback.TracebackException(type(error), error, error.__traceback__.tb_next, capture_locals=True)
    return [str(error), repr(error), repr(vars(error)), "".join(trace.format())]


# --- TLS and proxies


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def test_private_authority_is_trusted_when_given(authority: Authority) -> None:
    """Case 85: with the private authority's certificate in the context, built on demand, TLS works."""
    with D1Double(api_token=TOKEN, ssl_context=authority.server_context()) as double:
        async with client_of(double, ssl_context=authority.client_context) as client:
            assert await client.query("SELECT 1 AS a") == [{"a": 1}]


async def test_unknown_authority_is_named_once(authority: Authority, told: list[Event]) -> None:
    """A certificate that is not trusted is no passing failure, and the hint names the setting."""
    with D1Double(api_token=TOKEN, ssl_context=authority.server_context()) as double:
        async with client_of(double, told, ssl_context=ssl.create_default_context()) as client:
            with pytest.raises(RemoteError, match="R2D1_CA_BUNDLE"):
                await client.query("SELECT 1", safe=True)
    assert told == []


async def test_call_goes_through_a_connect_proxy(authority: Authority) -> None:
    """Case 85: the proxy sees a CONNECT to the server and nothing of the call."""
    with D1Double(api_token=TOKEN, ssl_context=authority.server_context()) as double:
        async with (
            connect_proxy(user="me", password="pass-word-of-proxy") as proxy,
            client_of(double, ssl_context=authority.client_context, proxy=proxy.url) as client,
        ):
            assert await client.query("SELECT 1 AS a") == [{"a": 1}]
    assert proxy.asked == [f"CONNECT {double.url.split('/')[2]} HTTP/1.1"]
    assert TOKEN.encode() not in proxy.seen


async def test_proxy_that_refuses_is_no_secret_spilled(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """A proxy that says no leaves the call unsent; its password is in no error and no log."""
    caplog.set_level(logging.DEBUG)
    with D1Double(api_token=TOKEN, ssl_context=authority.server_context()) as double:
        async with (
            connect_proxy(user="me", password="pass-word-of-proxy") as proxy,
            client_of(
                double,
                ssl_context=authority.client_context,
                proxy=proxy.url.replace("me:pass", "you:pass"),
                policy=ONCE,
            ) as client,
        ):
            with pytest.raises(NotSent, match="407") as caught:
                await client.query("SELECT 1")
        assert list(double.requests) == []
    assert "pass-word-of-proxy" not in "".join([*shown(caught.value), caplog.text, repr(vars(client))])


async def test_proxy_that_is_none_is_a_setting_to_mend(double: D1Double) -> None:
    """A proxy URL that cannot be used is named without its value."""
    async with client_of(double, proxy="socks9://user:pass-word@[::") as client:
        with pytest.raises(ConfigError, match="HTTPS_PROXY") as caught:
            await client.query("SELECT 1")
    assert "pass-word" not in "".join(shown(caught.value))
