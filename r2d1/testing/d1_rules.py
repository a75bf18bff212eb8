"""The rules of D1's REST API: who may call, what is well formed, what is answered. No sockets, no clock.

Codes and texts are those that Cloudflare's API is publicly known to give; the SQL side is ``d1_engine.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from r2d1.testing.d1_engine import Bound, D1Engine, Query, Result, SqlRefused, bound, split_statements

ACCOUNT_ID = "0123456789abcdef0123456789abcdef"
DATABASE_ID = "11111111-2222-3333-4444-555555555555"
API_TOKEN = "token-of-the-d1-double-no-secret"  # noqa: S105 - it opens nothing but the double

_PATH = re.compile(r"/client/v4/accounts/([^/]+)/d1/database(?:/([^/]+)(?:/(query|raw))?)?")
_BEARER = re.compile(r"Bearer ([\x21-\x7e]+)")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MALFORMED = "The request is malformed: "


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: a JSON document, or a body that is none."""

    status: int
    document: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""

    @property
    def body(self) -> bytes:
        return self.raw if self.document is None else json.dumps(self.document, ensure_ascii=False).encode()


class Refused(Exception):
    """A request that the rules turn away; ``answer`` is what the caller gets."""

    def __init__(self, status: int, code: int, message: str, **extra: object) -> None:
        super().__init__(f"{status} {code} {message}")
        self.answer = refusal(status, code, message, **extra)


def refusal(status: int, code: int, message: str, **extra: object) -> Answer:
    """Cloudflare's envelope for a failure. ``extra`` goes into the error, as ``error_chain`` does."""
    error = {"code": code, "message": message, **extra}
    document = {"success": False, "errors": [error], "messages": [], "result": []}
    return Answer(status, document, {"cf-d1": f"err={code}"} if 7400 <= code < 7600 else {})


class D1Rules:
    """One account with one database, answering as the REST API does.

    ``answer`` takes a request apart and never raises for what a client did wrong. ``sql`` is the test's own
    way in: it plants and looks at rows past all doors.
    """

    def __init__(
        self, *, account_id: str = ACCOUNT_ID, database_id: str = DATABASE_ID, api_token: str = API_TOKEN
    ) -> None:
        self.account_id = account_id
        self.database_id = database_id
        self.api_token = api_token
        self._engine = D1Engine()

    def answer(
        self, method: str, path: str, *, authorization: str | None, body: bytes = b"", name: str | None = None
    ) -> Answer:
        """Answer one request. ``path`` begins with ``/client/v4``; ``name`` is the listing's query parameter."""
        try:
            self._check_token(authorization)
            return self._route(method, path, body, name)
        except Refused as refused:
            return refused.answer

    def sql(self, text: str, params: Sequence[object] = ()) -> list[dict[str, object]]:
        """Run one statement as the database's owner and return its rows; ``SqlRefused`` as the engine says."""
        (result,) = self._engine.run([Query(text, tuple(bound(value) for value in params))])
        return [dict(zip(result.columns, row, strict=True)) for row in result.rows]

    def close(self) -> None:
        self._engine.close()

    def _check_token(self, authorization: str | None) -> None:
        if authorization is None:
            raise Refused(400, 9106, "Missing X-Auth-Key, X-Auth-Email or Authorization headers")
        given = _BEARER.fullmatch(authorization)
        if given is None:
            chain = [{"code": 6111, "message": "Invalid format for Authorization header"}]
            raise Refused(400, 6003, "Invalid request headers", error_chain=chain)
        if given[1] != self.api_token:
            raise Refused(401, 10000, "Authentication error")

    def _route(self, method: str, path: str, body: bytes, name: str | None) -> Answer:
        found = _PATH.fullmatch(path)
        if found is None:
            raise Refused(404, 7000, "No route for that URI")
        account_id, database_id, verb = found.groups()
        if account_id != self.account_id:
            raise Refused(403, 7403, "The given account is not valid or is not authorized to access this service")
        if database_id is None:
            return self._listing(method, name)
        self._check_database(database_id)
        if verb is None:
            return _success(self._description()) if method == "GET" else _not_allowed()
        return self._queried(body, raw=verb == "raw") if method == "POST" else _not_allowed()

    def _check_database(self, database_id: str) -> None:
        if not _UUID.fullmatch(database_id):
            raise Refused(400, 7400, f"{_MALFORMED}failed to decode id")
        if database_id.lower() != self.database_id.lower():
            raise Refused(404, 7404, f"The database {database_id} could not be found")

    def _listing(self, method: str, name: str | None) -> Answer:
        if method != "GET":
            _not_allowed()
        listed = [each for each in [self._description()] if name in (None, each["name"])]
        paging = {"page": 1, "per_page": 100, "count": len(listed), "total_count": len(listed)}
        return _success(listed, result_info=paging)

    def _description(self) -> dict[str, Any]:
        return {"uuid": self.database_id, "name": "double", "version": "production", "running_in_region": "LOCAL"}

    def _queried(self, body: bytes, *, raw: bool) -> Answer:
        queries = [query for item in _items_of(body) for query in _expanded(item)]
        try:
            results = self._engine.run(queries)
        except SqlRefused as exc:
            raise Refused(400, 7500, str(exc)) from exc
        return _success([_rendered(result, raw=raw) for result in results])


def _success(result: object, **more: object) -> Answer:
    return Answer(200, {"success": True, "errors": [], "messages": [], "result": result, **more})


def _not_allowed() -> NoReturn:
    raise Refused(405, 10405, "Method not allowed for this authentication scheme")


def _items_of(body: bytes) -> list[Any]:
    """The one statement or the batch of a request's body."""
    try:
        document = json.loads(body.decode("utf-8-sig", errors="replace"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise Refused(400, 7400, f"{_MALFORMED}{exc}") from exc
    if not isinstance(document, dict) or "batch" not in document:
        return [document]
    batch = document["batch"]
    if not isinstance(batch, list) or not batch:
        raise Refused(400, 7400, f"{_MALFORMED}batch is not a list of queries")
    return batch


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def _expanded(item: Any) -> list[Query]:
    """The statements of one ``sql`` text; the bound values belong to the last of them."""
    if not isinstance(item, dict) or not isinstance(item.get("sql"), str):
        raise Refused(400, 7400, f"{_MALFORMED}missing field `sql`")
    params = item.get("params")
    if params is not None and not isinstance(params, list):
        raise Refused(400, 7400, f"{_MALFORMED}params is not an array")
    statements = split_statements(bound_text(item["sql"]))
    if not statements:
        raise Refused(400, 7500, "No SQL statements detected.")
    values = tuple(_bound_at(at, value) for at, value in enumerate(params or ()))
    return [*(Query(sql) for sql in statements[:-1]), Query(statements[-1], values)]


def bound_text(text: str) -> str:
    """A text as it reaches the engine: U+FFFD for what is no Unicode."""
    return text.encode(errors="surrogatepass").decode(errors="replace")


def _bound_at(at: int, value: object) -> Bound:
    try:
        return bound(value)
    except TypeError as exc:
        raise Refused(400, 7400, f"{_MALFORMED}params[{at}] has an unsupported type") from exc


def _rendered(result: Result, *, raw: bool) -> dict[str, Any]:
    """One statement's result as ``/query`` (a name twice collapses) or ``/raw`` (by position) gives it."""
    rows: object = {"columns": result.columns, "rows": result.rows}
    if not raw:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    meta = {
        "served_by": "r2d1.testing",
        "served_by_primary": True,
        "duration": 0,
        "changes": result.changes,
        "last_row_id": result.last_row_id,
        "changed_db": result.changed_db,
        "total_attempts": 1,
    }
    return {"results": rows, "success": True, "meta": meta}


@dataclass(slots=True)
class CallLimit:
    """The account's limit: ``calls`` in ``window_s`` seconds; beyond it all are refused until the window ends."""

    calls: int = 1_200
    window_s: float = 300.0
    _ends: float = float("-inf")
    _left: int = 0

    def take(self, now: float) -> tuple[bool, dict[str, str]]:
        """Count one call at ``now`` (any steady clock): whether it is allowed, and the headers to send."""
        if now >= self._ends:
            self._ends, self._left = now + self.window_s, self.calls
        is_allowed = self._left > 0
        self._left = max(0, self._left - 1)
        seconds = str(max(1, round(self._ends - now)))
        headers = {"Ratelimit": f'"default";r={self._left};t={seconds}'}
        headers["Ratelimit-Policy"] = f'"default";q={self.calls};w={self.window_s:g}'
        return is_allowed, headers if is_allowed else {**headers, "Retry-After": seconds}
