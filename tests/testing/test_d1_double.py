"""The D1 double is as strict as D1: who may call, what is well formed, limits, types, transactions, faults."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from r2d1.settings import Settings
from r2d1.testing import d1 as faults
from r2d1.testing.d1 import D1Double, Fault
from r2d1.testing.d1_engine import SqlRefused, split_statements
from r2d1.testing.d1_rules import CallLimit
from r2d1.testing.faults import Gate
from tests.tls import Authority


@pytest.fixture
def double() -> Iterator[D1Double]:
    with D1Double() as made:
        yield made


class Caller:
    """A plain HTTP client of the double, without any of r2d1's own understanding."""

    def __init__(self, double: D1Double, http: httpx.Client) -> None:
        self.double = double
        self.http = http
        self.database = f"{double.url}/accounts/{double.account_id}/d1/database/{double.database_id}"
        self.headers = {"Authorization": f"Bearer {double.api_token}"}

    def ask(self, method: str, url: str, **arguments: Any) -> httpx.Response:
        return self.http.request(method, url, **{"headers": self.headers, **arguments})

    def post(self, body: object, verb: str = "query") -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", f"{self.database}/{verb}", content=content)

    def rows(self, sql: str, params: object = None, verb: str = "query") -> Any:
        answer = self.post({"sql": sql, "params": params}, verb)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"][0]["results"]

    def refusal(self, sql: str, params: object = None) -> tuple[int, int, str]:
        return error_of(self.post({"sql": sql, "params": params}))


def error_of(answer: httpx.Response) -> tuple[int, int, str]:
    """Status, code and message of Cloudflare's envelope for a failure."""
    document = answer.json()
    assert document["success"] is False
    assert document["messages"] == []
    (error,) = document["errors"]
    return answer.status_code, error["code"], error["message"]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(trust_env=False, timeout=10) as made:
        yield made


@pytest.fixture
def caller(double: D1Double, http: httpx.Client) -> Caller:
    return Caller(double, http)


def test_good_answer_has_the_documented_shape(caller: Caller) -> None:
    """The envelope, a result a statement with its meta, and the headers of Cloudflare's edge."""
    answer = caller.post({"sql": "SELECT 1 AS one"})
    document = answer.json()
    assert (document["success"], document["errors"], document["messages"]) == (True, [], [])
    (result,) = document["result"]
    assert (result["success"], result["results"]) == (True, [{"one": 1}])
    assert {"changes", "last_row_id", "changed_db", "duration", "served_by"} <= result["meta"].keys()
    assert answer.headers["cf-ray"]
    assert answer.headers["ratelimit"].startswith('"default";r=')


@pytest.mark.parametrize(
    ("authorization", "expected"),
    [
        (None, (400, 9106, "Missing X-Auth-Key, X-Auth-Email or Authorization headers")),
        ("Basic eHg=", (400, 6003, "Invalid request headers")),
        ("Bearer two words", (400, 6003, "Invalid request headers")),
        ("Bearer wrong", (401, 10000, "Authentication error")),
    ],
)
def test_who_may_call(caller: Caller, authorization: str | None, expected: tuple[int, int, str]) -> None:
    """A missing, malformed or unknown token is refused with its own code, before anything else is looked at."""
    caller.headers = {} if authorization is None else {"Authorization": authorization}
    assert error_of(caller.post(b"not even json")) == expected


def test_malformed_authorization_has_an_error_chain(caller: Caller) -> None:
    """Code 6003 carries 6111 behind it, as Cloudflare's does."""
    caller.headers = {"Authorization": "token"}
    chain = caller.post({}).json()["errors"][0]["error_chain"]
    assert chain == [{"code": 6111, "message": "Invalid format for Authorization header"}]


def test_where_a_call_may_go(caller: Caller) -> None:
    """Account, database id, route and method are each refused with their own code."""
    base, account, database = caller.double.url, caller.double.account_id, caller.double.database_id
    other = "22222222-2222-3333-4444-555555555555"

    def refusal(method: str, path: str) -> tuple[int, int]:
        return error_of(caller.ask(method, f"{base}/{path}"))[:2]

    assert refusal("POST", f"accounts/{'f' * 32}/d1/database/{database}/query") == (403, 7403)
    assert refusal("POST", f"accounts/{account}/d1/database/by-name/query") == (400, 7400)
    assert refusal("POST", f"accounts/{account}/d1/database/{other}/query") == (404, 7404)
    assert refusal("POST", f"accounts/{account}/d1/database/{database}/dump") == (404, 7000)
    assert refusal("GET", "user/tokens/verify") == (404, 7000)
    assert refusal("GET", f"accounts/{account}/d1/database/{database}/query") == (405, 10405)
    assert refusal("DELETE", f"accounts/{account}/d1/database/{database}") == (405, 10405)
    assert refusal("POST", f"accounts/{account}/d1/database") == (405, 10405)


def test_database_is_described_and_listed(caller: Caller) -> None:
    """GET tells of the database, alone and in the list, where ``name`` filters."""
    described = caller.ask("GET", caller.database).json()["result"]
    assert described["uuid"] == caller.double.database_id
    listing = caller.database.rsplit("/", 1)[0]
    assert caller.ask("GET", listing).json()["result"] == [described]
    assert caller.ask("GET", listing, params={"name": described["name"]}).json()["result"] == [described]
    assert caller.ask("GET", listing, params={"name": "other"}).json()["result"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"sql":',
        b"[]",
        b"null",
        b"{}",
        b'{"sql": 1}',
        b'{"sql": "SELECT 1", "params": {}}',
        b'{"batch": {}}',
        b'{"batch": []}',
        b'{"batch": null}',
        b'{"sql": "SELECT ?", "params": [NaN]}',
        b'{"sql": "SELECT ?", "params": [-Infinity]}',
        b'{"sql": "SELECT ?", "params": [true]}',
        b'{"sql": "SELECT ?", "params": [{"a": 1}]}',
        b'{"sql": "SELECT ?", "params": [[1, 256]]}',
        b'{"sql": "SELECT ?", "params": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
    ],
)
def test_malformed_bodies(caller: Caller, body: bytes) -> None:
    """What is no JSON (NaN included), lacks a field or binds what cannot be bound is 400 with 7400."""
    status, code, message = error_of(caller.post(body))
    assert (status, code) == (400, 7400)
    assert message.startswith("The request is malformed: ")


def test_json_numbers_bind_as_real(caller: Caller) -> None:
    """A number is REAL however it looks: so a TEXT column keeps '5.0'; text and CAST stay exact."""
    sql = "SELECT typeof(?) AS a, typeof(?) AS b, ? || '' AS c, 7 / ? AS d, json_array(?) AS e"
    assert caller.rows(sql, [5, "5", 5, 2, 5]) == [{"a": "real", "b": "text", "c": "5.0", "d": 3.5, "e": "[5.0]"}]
    caller.rows("CREATE TABLE t (i INTEGER, r REAL, x TEXT, u)")
    caller.rows("INSERT INTO t VALUES (?, ?, ?, ?)", [5, 5, 5, 5])
    assert caller.rows("SELECT typeof(i) AS i, typeof(r) AS r, x, typeof(u) AS u FROM t") == [
        {"i": "integer", "r": "real", "x": "5.0", "u": "real"}
    ]
    exact = "SELECT CAST(CAST(? AS INTEGER) AS TEXT) AS a, CAST(? AS INTEGER) AS b"
    assert caller.rows(exact, ["9007199254740993"] * 2) == [{"a": "9007199254740993", "b": 9007199254740992}]
    assert caller.rows("SELECT ? IS NULL AS a", [None]) == [{"a": 1}]


def test_values_come_out_as_doubles_do(caller: Caller) -> None:
    """Whole numbers lose their point, large ones their last digits, infinities become null, bytes a list."""
    sql = "SELECT 1.0 AS a, 9223372036854775807 AS b, 1e400 AS c, x'0102' AS d, CAST(x'ff' AS TEXT) AS e, -0.0 AS f"
    assert caller.rows(sql) == [{"a": 1, "b": 9223372036854776000, "c": None, "d": [1, 2], "e": "\ufffd", "f": 0}]
    assert b'"a": 1,' in caller.post({"sql": "SELECT 1.0 AS a, 2 AS b"}).content
    assert caller.rows("SELECT typeof(?) AS a, ? AS b", [[1, 2], [3]]) == [{"a": "blob", "b": [3]}]
    (answer,) = json.loads(caller.post(b'{"sql": "SELECT ? AS a, ? AS b", "params": ["\\ud800", 1e400]}').content)[
        "result"
    ]
    assert answer["results"] == [{"a": "\ufffd\ufffd\ufffd", "b": None}]


def test_raw_keeps_positions(caller: Caller) -> None:
    """``/raw`` has columns and rows, for a name twice and for no rows; ``/query`` collapses a name twice."""
    assert caller.rows("SELECT 1 AS a, 2 AS a", verb="raw") == {"columns": ["a", "a"], "rows": [[1, 2]]}
    assert caller.rows("SELECT 1 AS a WHERE 0", verb="raw") == {"columns": ["a"], "rows": []}
    assert caller.rows("SELECT 1 AS a, 2 AS a") == [{"a": 2}]


@pytest.mark.parametrize(
    ("sql", "params", "words"),
    [
        ("SELECT 1 IN (" + ",".join("?" * 101) + ")", [1] * 101, "too many SQL variables: SQLITE_ERROR"),
        ("SELECT ?101", [1] * 101, "variable number must be between ?1 and ?100: SQLITE_ERROR"),
        ("SELECT ?, ?", [1], "Wrong number of parameter bindings for SQL query."),
        ("SELECT 1", [1], "Wrong number of parameter bindings for SQL query."),
        ("SELECT ?", [1] * 101, "Wrong number of parameter bindings for SQL query."),
        ("SELECT 1 --" + "x" * 99_990, None, "statement too long: SQLITE_TOOBIG"),
        ("SELECT '" + "é" * 50_000 + "'", None, "statement too long: SQLITE_TOOBIG"),
        ("SELECT length(?)", ["x" * 2_000_001], "string or blob too big: SQLITE_TOOBIG"),
        ("INSERT INTO big VALUES (?, ?)", ["x" * 1_000_000] * 2, "string or blob too big: SQLITE_TOOBIG"),
        ("SELECT " + ", ".join("1" * 101), None, "too many columns in result set: SQLITE_ERROR"),
        (" UNION ALL ".join(["SELECT 1"] * 6), None, "too many terms in compound SELECT: SQLITE_ERROR"),
        ("SELECT " + "+".join("1" * 102), None, "Expression tree is too large (maximum depth 100): SQLITE_ERROR"),
        ("SELECT max(" + ",".join("1" * 33) + ")", None, "too many arguments on function max: SQLITE_ERROR"),
        ("SELECT 'a' LIKE ?", ["x" * 51], "LIKE or GLOB pattern too complex: SQLITE_ERROR"),
        ("BEGIN", None, "To execute a transaction, please use"),
        ("commit", None, "To execute a transaction, please use"),
        ("ROLLBACK", None, "To execute a transaction, please use"),
        ("SAVEPOINT a", None, "To execute a transaction, please use"),
        ("RELEASE a", None, "To execute a transaction, please use"),
        ("VACUUM", None, "cannot VACUUM from within a transaction: SQLITE_ERROR"),
        ("ATTACH ':memory:' AS z", None, "not authorized: SQLITE_AUTH"),
        ("CREATE TEMP TABLE z (a)", None, "not authorized: SQLITE_AUTH"),
        ("PRAGMA journal_mode = WAL", None, "not authorized: SQLITE_AUTH"),
        ("PRAGMA user_version", None, "not authorized: SQLITE_AUTH"),
        ("CREATE VIRTUAL TABLE v USING rtree(a, b, c)", None, "not authorized: SQLITE_AUTH"),
        ("CREATE TABLE _cf_mine (a)", None, "not authorized: SQLITE_AUTH"),
        ("SELECT * FROM _cf_METADATA", None, "access to _cf_METADATA.key is prohibited: SQLITE_AUTH"),
        ("SELECT sqlite_version()", None, "not authorized to use function: sqlite_version: SQLITE_ERROR"),
        ("SELECT :a", [1], "named parameters are not supported"),
        ("SELECT nope", None, "no such column: nope: SQLITE_ERROR"),
        ("SELECT * FROM nope", None, "no such table: nope: SQLITE_ERROR"),
        ("SELEC 1", None, 'near "SELEC": syntax error: SQLITE_ERROR'),
        ("SELECT", None, "incomplete input: SQLITE_ERROR"),
        ("SELECT 1 AS a\0", None, "SQL code did not contain a statement."),
        (" -- nothing \n ;", None, "No SQL statements detected."),
        (
            "INSERT INTO k VALUES (1)",
            None,
            "UNIQUE constraint failed: k.a: SQLITE_CONSTRAINT (extended: SQLITE_CONSTRAINT_",
        ),
    ],
)
def test_what_the_engine_refuses(caller: Caller, sql: str, params: list[object] | None, words: str) -> None:
    """Every failure of SQL is 400 with 7500 and the engine's own words: limits, transactions, what is locked away."""
    caller.double.sql("CREATE TABLE big (a, b)")
    caller.double.sql("CREATE TABLE k (a INTEGER PRIMARY KEY)")
    caller.double.sql("INSERT INTO k VALUES (1)")
    status, code, message = caller.refusal(sql, params)
    assert (status, code) == (400, 7500)
    assert message.startswith(words)


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT 1 IN (" + ",".join("?" * 100) + ")", [1] * 100),
        ("SELECT ?1, ?1", [1]),
        ("SELECT 1 --" + "x" * 99_989, None),
        ("SELECT length(?)", ["x" * 2_000_000]),
        ("PRAGMA table_info('k')", None),
        ("PRAGMA foreign_keys = OFF", None),
        ("SELECT name FROM pragma_table_info('k')", None),
        ("EXPLAIN SELECT 1", None),
        ("SELECT count(*) FROM json_each(?)", [json.dumps(list(range(5_000)))]),
        ("SELECT 'a;b', \"abc\" -- ; '", None),
    ],
)
def test_what_the_engine_takes(caller: Caller, sql: str, params: list[object] | None) -> None:
    """Everything up to the very limits, and what D1 documents as allowed, runs."""
    caller.rows(sql, params)


def test_foreign_keys_stay_on(caller: Caller) -> None:
    """Switching foreign keys off is silently ignored."""
    caller.rows("PRAGMA foreign_keys = OFF")
    assert caller.rows("PRAGMA foreign_keys") == [{"foreign_keys": 1}]


def test_batch_is_atomic_tables_too(caller: Caller) -> None:
    """A batch that fails leaves nothing, not even the table it made; one that works gives a result a statement."""
    made = {"sql": "CREATE TABLE t (a)"}
    put = {"sql": "INSERT INTO t VALUES (?)", "params": ["x"]}
    assert error_of(caller.post({"batch": [made, put, {"sql": "SELEC"}]}))[:2] == (400, 7500)
    assert caller.refusal("SELECT * FROM t")[2].startswith("no such table: t")
    answer = caller.post({"batch": [made, put, {"sql": "SELECT a FROM t"}]}).json()
    assert [each["results"] for each in answer["result"]] == [[], [], [{"a": "x"}]]
    assert [each["meta"]["changes"] for each in answer["result"]] == [0, 1, 0]
    assert [each["meta"]["changed_db"] for each in answer["result"]] == [True, True, False]


def test_several_statements_in_one_text(caller: Caller) -> None:
    """Statements joined by semicolons run as one transaction; the values belong to the last."""
    answer = caller.post(
        {"sql": "CREATE TABLE t (a); INSERT INTO t VALUES ('x;y'); SELECT a, ? AS b FROM t;", "params": ["z"]}
    )
    assert answer.json()["result"][2]["results"] == [{"a": "x;y", "b": "z"}]
    assert caller.refusal("SELECT ?; SELECT ?", ["a", "b"])[2].startswith("Wrong number")
    assert error_of(caller.post({"sql": "DROP TABLE t; SELEC"}))[:2] == (400, 7500)
    assert caller.rows("SELECT count(*) AS n FROM t") == [{"n": 1}]


def test_statements_are_cut_where_they_end() -> None:
    """Quotes, comments and trigger bodies may hold semicolons."""
    trigger = "CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT 1; SELECT 2; END"
    sql = f"SELECT ';', \";\", `;`, [;] -- ;\n; /* ; */ {trigger};;  \n SELECT 'it''s;' ; -- end;"
    assert split_statements(sql) == ["SELECT ';', \";\", `;`, [;] -- ;", f"/* ; */ {trigger}", "SELECT 'it''s;'"]


# --- faults


def test_script_befalls_requests_in_order(double: D1Double, caller: Caller) -> None:
    """Each request takes the next fault, then the standing one; the log tells what was sent."""
    double.script(
        faults.throttled("7"), None, faults.html(503), faults.refused(200, 7500, "no"), faults.statement_failed("not")
    )
    double.always(faults.overloaded())
    answers = [caller.post({"sql": "SELECT 1 AS a"}) for _ in range(6)]
    double.always(None)
    answers.append(caller.post({"sql": "SELECT 1 AS a"}))
    assert [answer.status_code for answer in answers] == [429, 200, 503, 200, 200, 429, 200]
    assert answers[0].headers["retry-after"] == "7"
    assert answers[0].json()["errors"][0]["code"] == 971
    assert answers[2].text.startswith("<!DOCTYPE html>")
    assert answers[3].json()["success"] is False
    assert (answers[4].json()["success"], answers[4].json()["result"][0]["success"]) == (True, False)
    assert [logged.status for logged in double.requests] == [answer.status_code for answer in answers]
    assert double.requests[0].body == {"sql": "SELECT 1 AS a"}
    assert double.requests[0].method == "POST"


@pytest.mark.parametrize(
    ("fault", "rows"),
    [(faults.lost_reply(), 1), (faults.dropped(), 0), (faults.cut(10), 1), (faults.cut(0), 1)],
)
def test_cut_connections(double: D1Double, caller: Caller, fault: Fault, rows: int) -> None:
    """A cut call gives no whole answer; whether it was committed is the script's word."""
    double.sql("CREATE TABLE t (a)")
    double.script(fault)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        caller.post({"sql": "INSERT INTO t VALUES (1)"})
    assert double.sql("SELECT count(*) AS n FROM t") == [{"n": rows}]
    assert [logged.status for logged in double.requests] == [None]


def test_held_request_goes_on_when_the_gate_opens(double: D1Double, caller: Caller) -> None:
    """A held call commits only after its gate has opened, and others pass it meanwhile."""
    double.sql("CREATE TABLE t (a)")
    gate = Gate()
    double.script(faults.held(gate))
    held = threading.Thread(target=caller.post, args=({"sql": "INSERT INTO t VALUES (1)"},))
    held.start()
    gate.arrived.wait_blocking(10)
    assert caller.rows("SELECT * FROM t") == []
    gate.release()
    held.join(10)
    double.wait_for_requests(2)
    assert double.sql("SELECT * FROM t") == [{"a": 1}]


def test_held_reply_comes_after_the_commit(double: D1Double, caller: Caller) -> None:
    """A call whose answer is held has already been committed."""
    double.sql("CREATE TABLE t (a)")
    gate = Gate()
    double.script(faults.reply_held(gate))
    held = threading.Thread(target=caller.post, args=({"sql": "INSERT INTO t VALUES (1)"},))
    held.start()
    gate.arrived.wait_blocking(10)
    assert double.sql("SELECT * FROM t") == [{"a": 1}]
    gate.release()
    held.join(10)
    assert not held.is_alive()


def test_delayed_and_trickled_answers_are_whole(double: D1Double, caller: Caller) -> None:
    """A late and a slow answer are right in the end."""
    double.script(faults.delayed(0.01), faults.trickled(0.0001))
    assert caller.rows("SELECT 1 AS a") == [{"a": 1}]
    assert caller.rows("SELECT 2 AS a") == [{"a": 2}]


def test_stop_lets_held_requests_go(double: D1Double, caller: Caller) -> None:
    """Stopping with a held call does not hang."""
    gate = Gate()
    double.script(faults.held(gate))
    failed: list[Exception] = []

    def ask() -> None:
        try:
            caller.post({"sql": "SELECT 1"})
        except httpx.HTTPError as exc:
            failed.append(exc)

    held = threading.Thread(target=ask)
    held.start()
    gate.arrived.wait_blocking(10)
    double.stop()
    held.join(10)
    assert not held.is_alive()


def test_stopped_double_refuses_and_comes_back(double: D1Double, caller: Caller) -> None:
    """After a stop nobody listens; a start brings the same port and the same rows back."""
    double.sql("CREATE TABLE t (a)")
    url = double.url
    double.stop()
    double.stop()
    with pytest.raises(httpx.ConnectError):
        caller.post({"sql": "SELECT 1"})
    double.start()
    assert double.url == url
    assert caller.rows("SELECT * FROM t") == []
    with pytest.raises(RuntimeError, match="runs already"):
        double.start()


def test_port_that_is_taken_is_an_error() -> None:
    """A double that cannot listen says so in ``start``, and leaves no thread."""
    double = D1Double()
    with double:
        port = int(double.url.split(":")[2].split("/")[0])
        double.stop()
        with socket.create_server(("127.0.0.1", port)):
            with pytest.raises(OSError, match="in use"):
                double.start()
            assert not [thread for thread in threading.enumerate() if thread.name == "d1-double"]


def test_account_limit(http: httpx.Client) -> None:
    """Beyond the limit every call is refused with 971 until the window ends, and the headers count down to it."""
    with D1Double(calls=CallLimit(2, window_s=1_000.0)) as double:
        caller = Caller(double, http)
        answers = [caller.post({"sql": "SELECT 1"}) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == ["r=1", "r=0", "r=0", "r=0"]
    assert int(answers[3].headers["retry-after"]) <= 1_000
    assert "retry-after" not in answers[1].headers


def test_account_limit_begins_anew() -> None:
    """A new window gives all calls back."""
    limit = CallLimit(1, window_s=10.0)
    assert [limit.take(now)[0] for now in (0.0, 5.0, 10.0, 11.0, 20.0)] == [True, False, True, False, True]


def test_settings_find_the_double(double: D1Double) -> None:
    """The variables it offers are all that D1 needs."""
    settings = Settings.from_env(environ=double.settings_env())
    assert settings.missing_d1() == []
    assert settings.d1_base_url == double.url


def test_planting_past_the_doors(double: D1Double) -> None:
    """``sql`` needs no request, binds as the API does, and says what the engine says."""
    double.sql("CREATE TABLE t (a)")
    double.sql("INSERT INTO t VALUES (?)", ["x"])
    assert double.sql("SELECT * FROM t") == [{"a": "x"}]
    with pytest.raises(SqlRefused, match="no such table"):
        double.sql("SELECT * FROM u")
    assert list(double.requests) == []


def test_double_speaks_tls() -> None:
    """With a server's TLS context the double is an https endpoint."""
    authority = Authority()
    with D1Double(ssl_context=authority.server_context()) as double:
        assert double.url.startswith("https://")
        context = authority.client_context()
        assert isinstance(context, ssl.SSLContext)
        with httpx.Client(trust_env=False, verify=context) as http:
            assert Caller(double, http).rows("SELECT 1 AS a") == [{"a": 1}]


def test_log_holds_no_token(double: D1Double, caller: Caller) -> None:
    """The request log keeps paths, bodies and statuses, and no header."""
    caller.post({"sql": "SELECT 1"})
    assert double.api_token not in repr(list(double.requests))
