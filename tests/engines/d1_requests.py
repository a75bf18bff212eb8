"""D1 requests whose answers are compared from the double to Cloudflare's engine: the same steps, in the same order."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.engines.servers import ACCOUNT_ID, API_TOKEN, DATABASE_ID
from tests.engines.signed import send

_ABSENT = "99999999-2222-3333-4444-555555555555"
_LONGEST_TOLD = 90
_META = ("changes", "last_row_id", "changed_db")


@dataclass(slots=True)
class Talk:
    """A conversation with one D1 REST API: every call is a request, its answer described under the request's name."""

    base_url: str
    answers: dict[str, str] = field(default_factory=dict)

    def __call__(
        self,
        name: str,
        document: object = None,
        *,
        method: str = "POST",
        verb: str = "query",
        account: str = ACCOUNT_ID,
        database: str = DATABASE_ID,
        authorization: str | None = f"Bearer {API_TOKEN}",
        raw: bytes | None = None,
        meta: Sequence[str] = (),
    ) -> None:
        """Send one request. ``raw`` is sent in place of a JSON document; ``meta`` names what of it is told too."""
        base = urlsplit(self.base_url)
        path = f"{base.path}/accounts/{account}/d1/database/{database}"
        headers = {"Content-Type": "application/json"}
        if authorization is not None:
            headers["Authorization"] = authorization
        body = b"" if method == "GET" else raw if raw is not None else json.dumps(document).encode()
        reply = send(base.netloc, method, f"{path}/{verb}" if verb else path, headers, body)
        self.answers[name] = described(reply.status, reply.body, meta=meta)

    def sql(self, name: str, sql: str, *params: object, **asked: Any) -> None:
        """One statement with its bound values."""
        self(name, {"sql": sql, **({"params": list(params)} if params else {})}, **asked)


def described(status: int, body: bytes, *, meta: Sequence[str] = ()) -> str:
    """An answer in words that do not change from run to run."""
    try:
        document = json.loads(body)
    except ValueError:
        return f"{status} no JSON"
    if not document.get("success"):
        errors = document.get("errors", [])
        return f"{status} {' '.join(str(error['code']) for error in errors)} {errors[0]['message'] if errors else ''}"
    result = document.get("result")
    if not isinstance(result, list) or not all(isinstance(item, dict) and "results" in item for item in result):
        return f"{status} {_brief(result)}"
    told = [" ".join([_brief(item["results"]), *_meta_of(item, meta)]) for item in result]
    return f"{status} {' ; '.join(told)}"


def _meta_of(item: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [f"{name}={json.dumps(item['meta'].get(name))}" for name in names]


def _brief(value: object) -> str:
    if isinstance(value, dict) and "uuid" in value:
        value = {name: value[name] for name in ("uuid",)}
    if isinstance(value, list) and value and isinstance(value[0], dict) and "uuid" in value[0]:
        value = [{"uuid": each["uuid"]} for each in value]
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_TOLD else f"{text[:_LONGEST_TOLD]}… ({len(text)} characters)"


def doors(talk: Talk) -> None:
    """Who may ask, and for what. The front of the engine is this repository's Worker, by public reports alone."""
    talk.sql("no Authorization", "SELECT 1", authorization=None)
    talk.sql("Authorization without Bearer", "SELECT 1", authorization=API_TOKEN)
    talk.sql("another token", "SELECT 1", authorization="Bearer another")
    talk.sql("another account", "SELECT 1", account="f" * 32)
    talk.sql("a database id that is none", "SELECT 1", database="checkpoints")
    talk.sql("an unknown database", "SELECT 1", database=_ABSENT)
    talk("GET the database", method="GET", verb="")
    talk("GET /query", method="GET")
    talk("a verb that is none", {"sql": "SELECT 1"}, verb="ask")


def documents(talk: Talk) -> None:
    """What a request may hold."""
    talk("no JSON", raw=b"SELECT 1")
    talk("no sql", {"params": []})
    talk("an empty sql", {"sql": " ; "})
    talk("params of a wrong type", {"sql": "SELECT ?", "params": "x"})
    talk("params: null", {"sql": "SELECT 1 AS one", "params": None})
    talk.sql("a bool", "SELECT ?", True)
    talk.sql("an object", "SELECT ?", {"a": 1})
    talk("an empty batch", {"batch": []})
    talk("NaN in the JSON", raw=b'{"sql": "SELECT ?", "params": [NaN]}')
    talk("a lone surrogate", raw=b'{"sql": "SELECT ? AS x", "params": ["a\\ud800b"]}')
    talk("a NUL in a text", {"sql": "SELECT length(?) AS n", "params": ["a\0b"]})


def values(talk: Talk) -> None:
    """How values come in and go out."""
    kinds = "SELECT typeof(?1) AS kind, ?1 AS value"
    for name, value in (
        ("5", 5),
        ("1.5", 1.5),
        ("a text", "text"),
        ("null", None),
        ("bytes", [0, 255]),
        ("2^53-1", 2**53 - 1),
        ("2^53+1", 2**53 + 1),
        ("2^63-1", 2**63 - 1),
    ):
        talk.sql(f"bound: {name}", kinds, value)
    talk("bound: 1e400", raw=json.dumps({"sql": kinds, "params": [1]}).replace("[1]", "[1e400]").encode())
    talk.sql("CAST('9007199254740993' AS INTEGER)", "SELECT CAST(? AS INTEGER) AS n", "9007199254740993")
    talk.sql("CAST(a big integer AS TEXT)", "SELECT CAST(9007199254740993 AS TEXT) AS n")
    talk.sql("7 / 2 with bound values", "SELECT ? / ? AS n", 7, 2)
    talk.sql("infinity", "SELECT 9e999 AS n")
    talk.sql("one name twice", "SELECT 1 AS a, 2 AS a")
    talk.sql("one name twice, /raw", "SELECT 1 AS a, 2 AS a", verb="raw")
    talk.sql("no rows", "SELECT 1 AS a WHERE 0")
    talk.sql("no rows, /raw", "SELECT 1 AS a WHERE 0", verb="raw")


def statements(talk: Talk) -> None:
    """Statements that write, several at once, and transactions."""
    talk.sql("DROP TABLE IF EXISTS", "DROP TABLE IF EXISTS answers")
    table = "CREATE TABLE answers (a INTEGER PRIMARY KEY, b TEXT NOT NULL, c REAL, UNIQUE (b))"
    talk.sql("CREATE TABLE", table, meta=["changes", "changed_db"])
    talk.sql("INSERT", "INSERT INTO answers VALUES (7, 'seven', 1)", meta=_META)
    talk.sql("SELECT", "SELECT * FROM answers", meta=["changes", "changed_db"])
    talk.sql("INSERT .. RETURNING", "INSERT INTO answers VALUES (8, 'eight', 2) RETURNING a, typeof(c) AS c")
    talk.sql("a key twice", "INSERT INTO answers VALUES (7, 'x', 1)")
    talk.sql("a unique value twice", "INSERT INTO answers VALUES (9, 'seven', 1)")
    talk.sql("NULL where none may be", "INSERT INTO answers VALUES (9, NULL, 1)")
    upsert = "INSERT INTO answers VALUES (7, 'new', 3) ON CONFLICT (a) DO UPDATE SET b = excluded.b"
    talk.sql("upsert", upsert, meta=["changes", "changed_db"])
    talk.sql("two statements", "SELECT 1 AS a; SELECT 2 AS b")
    talk.sql("two statements, a value for the last", "SELECT 1 AS a; SELECT ? AS b", 3)
    insert = {"sql": "INSERT INTO answers VALUES (?, ?, 0)", "params": [20, "twenty"]}
    talk("a batch", {"batch": [insert, {"sql": "SELECT count(*) AS n FROM answers"}]})
    talk("a batch whose last fails", {"batch": [{**insert, "params": [21, "x"]}, {"sql": "SELECT nope"}]})
    talk.sql("the rows after it", "SELECT a FROM answers ORDER BY a")
    talk("a batch with CREATE that fails", {"batch": [{"sql": "CREATE TABLE gone (x)"}, {"sql": "SELECT nope"}]})
    talk.sql("the table after it", "SELECT * FROM gone")
    talk.sql("an array literal as text", "SELECT json_array(?, ?) AS j", 1, "1")
    talk.sql("json_each", "SELECT value FROM json_each(?)", "[1,2,3]")


def limits(talk: Talk) -> None:
    """What the engine refuses, and how it says so."""
    talk.sql("a word that is none", "SELEC 1")
    talk.sql("half a statement", "SELECT 1 FROM")
    talk.sql("an unknown table", "SELECT * FROM elsewhere")
    talk.sql("an unknown column", "SELECT nope FROM answers")
    talk.sql("too few values", "SELECT ?, ?", 1)
    talk.sql("too many values", "SELECT ?", 1, 2)
    talk.sql("101 values", "SELECT " + ", ".join("?" * 101), *range(101))
    talk.sql("?101", "SELECT ?101", *range(101))
    talk.sql("a named value", "SELECT :name", 1)
    talk.sql("a statement of 100,001 bytes", "SELECT 1 --" + "x" * 99_990)
    talk.sql("a text of 3,000,000 bytes", "SELECT length(?) AS n", "x" * 3_000_000)
    talk.sql("101 columns", "SELECT " + ", ".join(f"{n} AS c{n}" for n in range(101)))
    talk.sql("a LIKE pattern of 51 bytes", "SELECT 'x' LIKE ?", "%" * 51)
    talk.sql("six SELECTs in one", " UNION ALL ".join(["SELECT 1"] * 6))
    talk.sql("BEGIN", "BEGIN")
    talk.sql("SAVEPOINT", "SAVEPOINT s")
    talk.sql("PRAGMA user_version", "PRAGMA user_version")
    talk.sql("PRAGMA table_info", "PRAGMA table_info(answers)")
    talk.sql("ATTACH", "ATTACH 'x' AS y")
    talk.sql("a temporary table", "CREATE TEMP TABLE t (x)")
    talk.sql("a table of the engine's own", "SELECT * FROM _cf_METADATA")
    talk.sql("sqlite_version()", "SELECT sqlite_version()")
    talk.sql("VACUUM", "VACUUM")
    talk.sql("DROP TABLE", "DROP TABLE answers")


#: Title of a table → the steps that fill it.
SCENES: Mapping[str, Callable[[Talk], None]] = {
    "Doors": doors,
    "Documents": documents,
    "Values": values,
    "Statements and transactions": statements,
    "Limits and refusals": limits,
}

_OFFSET = re.compile(r" at offset \d+")


def without_offsets(answer: str) -> str:
    """The answer less SQLite's " at offset N", which Python's sqlite3 does not tell."""
    return _OFFSET.sub("", answer)


def answers_of(base_url: str) -> dict[str, dict[str, str]]:
    """Every scene's answers by one API."""
    found = {}
    for title, scene in SCENES.items():
        talk = Talk(base_url)
        scene(talk)
        found[title] = talk.answers
    return found
