"""What goes to D1's REST API and what comes back: statements within its limits, answers, typed errors (pure)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from r2d1.errors import AccessRefused, CatalogError, RemoteError, RemoteUnavailable, Throttled

Param = str | int | float | None

# D1's limits: developers.cloudflare.com/d1/platform/limits/
MAX_PARAMS = 100
MAX_SQL_BYTES = 100_000
MAX_VALUE_BYTES = 2_000_000  # one text, and also one row
#: Beyond it an integer is no exact JSON number for an engine that computes in doubles.
MAX_EXACT = 2**53 - 1

_ACCESS_CODES = {"10000", "9109", "9106", "9103", "6003", "6111", "7403"}
_THROTTLING = ("overloaded", "too many requests queued", "consider throttling")
#: developers.cloudflare.com/d1/observability/debug-d1/, and what D1 says of its own failures.
_TRANSIENT = (
    "network connection lost",
    "because its code was updated",
    "caused object to be reset",
    "storage operation exceeded timeout",
    "transient issue on remote node",
    "client disconnected",
    "internal error",
)
_TOO_MUCH = ("exceeded its memory limit", "exceeded its cpu time limit")
#: What SQLite says when another attempt may go better.
_PASSING = ("sqlite_busy", "sqlite_locked", "sqlite_nomem", "sqlite_ioerr", "sqlite_interrupt")

_ACCESS_HINT = (
    "R2D1_API_TOKEN must hold a live Cloudflare API token with D1 Edit; an R2 secret key or a global API key is none"
)
_BASE_HINT = "Check R2D1_D1_BASE_URL"
_HINTS = {
    "10000": _ACCESS_HINT,
    "9109": _ACCESS_HINT,
    "9106": _ACCESS_HINT,
    "6003": _ACCESS_HINT,
    "7403": "The token needs the permission D1 Edit for the account in R2D1_ACCOUNT_ID, which must own the database",
    "7404": "Check R2D1_D1_DATABASE_ID and R2D1_ACCOUNT_ID: `wrangler d1 list` shows the ids",
    "7000": _BASE_HINT,
    "7003": _BASE_HINT,
}
_ID_HINT = "R2D1_D1_DATABASE_ID must be the database's UUID, not its name"
_QUOTA_HINT = "All programs of the token share 1,200 calls in 5 minutes"
_RATELIMIT = re.compile(r"\br=(\d{1,9})\s*;\s*t=(\d{1,9})\b")
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement with ``?`` for each bound value. A number binds as REAL on D1: bind text and CAST instead."""

    sql: str
    params: Sequence[Param] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer as it came. Header names are lower case; the bodies hold users' metadata, so no repr."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the server's ``Ratelimit`` header leaves: ``remaining`` calls in the next ``seconds``."""

    remaining: int
    seconds: float


def encode(statements: Sequence[Statement]) -> bytes:
    """The JSON body of a request: one statement, or a batch that runs as one transaction.

    ``ValueError`` says which limit a statement breaks, so that nothing is sent in vain.
    """
    for statement in statements:
        for problem in problems_of(statement):
            raise ValueError(problem)
    bodies = [{"sql": each.sql, "params": [_to_json(value) for value in each.params]} for each in statements]
    document = bodies[0] if len(bodies) == 1 else {"batch": bodies}
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _to_json(value: Param) -> Param:
    return int(value) if isinstance(value, bool) else value  # D1 stores 1 and 0; some of its doors refuse true


def problems_of(statement: Statement) -> Iterator[str]:
    """Every reason why D1 could not take this statement as it is meant."""
    if "\0" in statement.sql:
        yield "a statement cannot hold a NUL character"
    if (size := _utf8_size(statement.sql)) is None:
        yield "the SQL text is not valid Unicode (lone surrogate)"
    elif size > MAX_SQL_BYTES:
        yield f"{size:,} bytes of SQL; D1 takes {MAX_SQL_BYTES:,}"
    if len(statement.params) > MAX_PARAMS:
        yield f"{len(statement.params)} bound values in one statement; D1 takes {MAX_PARAMS}"
    for at, value in enumerate(statement.params, start=1):
        if problem := _problem_of_value(value):
            yield f"bound value {at}: {problem}"


def _problem_of_value(value: object) -> str:
    if isinstance(value, str):
        size = _utf8_size(value)
        if size is None:
            return "not valid Unicode (lone surrogate)"
        return f"{size:,} bytes; D1 takes {MAX_VALUE_BYTES:,}" if size > MAX_VALUE_BYTES else ""
    if isinstance(value, int):
        return "" if abs(value) <= MAX_EXACT else "an integer beyond 2^53-1 must be bound as text and CAST"
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{value} is no JSON number"
    return "" if value is None else f"{type(value).__name__} cannot be bound"


def _utf8_size(text: str) -> int | None:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return None


def rows_of(reply: Reply, *, operation: str, where: str, now: float) -> list[list[dict[str, Any]]]:
    """The rows of each statement of a good answer; a ``RemoteError`` of the right class for any other.

    Good means: status 2xx, ``success`` true at the top, and true for each statement. ``now`` is the wall
    clock in seconds, for a ``Retry-After`` that is a date.
    """
    document = _parsed(reply.body)
    results = _results_of(document)
    is_good = 200 <= reply.status < 300 and document.get("success") is True
    if is_good and all(result.get("success") is True for result in results):
        return [_rows_of_result(result) for result in results]
    raise _failure(reply, document, results, operation=operation, where=where, now=now)


def _parsed(body: bytes) -> dict[str, Any]:
    """The answer's JSON object; empty for an HTML page, an empty or a truncated body."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _results_of(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    result = document.get("result")
    listed = result if isinstance(result, list) else []
    return [each if isinstance(each, dict) else {} for each in listed]


def _rows_of_result(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = result.get("results")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _failure(
    reply: Reply,
    document: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    *,
    operation: str,
    where: str,
    now: float,
) -> RemoteError:
    code, message = _said(document, results)
    kind = _class_of(reply.status, code, message)
    if not document:
        kind_of_body = reply.headers.get("content-type", "no content type")
        message = f"the answer is not D1's JSON ({kind_of_body}, {len(reply.body)} bytes)"
        kind = RemoteUnavailable if 200 <= reply.status < 300 else kind
    return kind(
        operation,
        where,
        reason=printable(message),
        status=reply.status,
        code=code,
        request_id=reply.headers.get("cf-ray"),
        retry_after=retry_after_of(reply.headers, now=now),
        hint=_hint_for(kind, reply.status, code, message),
    )


def _said(document: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> tuple[str | None, str]:
    """Code and message of the first error, at the top or of a statement."""
    errors = document.get("errors")
    listed = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    if listed:
        code = listed[0].get("code")
        return None if code is None else str(code), "; ".join(str(error.get("message", "")) for error in listed)
    for number, result in enumerate(results, start=1):
        if result.get("success") is not True:
            return None, str(result.get("error") or f"statement {number} did not succeed")
    return None, "no success, and no reason given"


def _class_of(status: int, code: str | None, message: str) -> type[RemoteError]:
    said = message.lower()
    if status == 429 or code in ("971", "1015"):
        return Throttled
    if status in (401, 403) or code in _ACCESS_CODES:
        return AccessRefused
    if "sqlite_" in said:  # before the phrases below: its text repeats names of the statement
        return RemoteUnavailable if _has(said, _PASSING) else CatalogError
    if _has(said, _TOO_MUCH):
        return CatalogError
    if _has(said, _THROTTLING):
        return Throttled
    is_passing = status >= 500 or status == 408 or _has(said, _TRANSIENT)
    return RemoteUnavailable if is_passing else CatalogError


def _has(said: str, phrases: Sequence[str]) -> bool:
    return any(phrase in said for phrase in phrases)


def _hint_for(kind: type[RemoteError], status: int, code: str | None, message: str) -> str:
    if code == "7400":
        return _ID_HINT if "decode id" in message else ""
    if code in _HINTS:
        return _HINTS[code]
    if kind is AccessRefused:
        return _ACCESS_HINT
    if kind is Throttled:
        return _QUOTA_HINT
    is_astray = status in (404, 405) or (status < 400 and code is None)
    return _BASE_HINT if is_astray else ""


def printable(text: str) -> str:
    """A server's text made safe for a terminal and a log line."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text)[:_LONGEST_REASON]


def retry_after_of(headers: Mapping[str, str], *, now: float) -> float | None:
    """``Retry-After`` in seconds, given as seconds or as a date (measured against the answer's own ``Date``)."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdecimal():
        return float(value[:9])
    at = _timestamp_of(value)
    if at is None:
        return None
    since = _timestamp_of(headers.get("date", ""))
    return max(0.0, at - (now if since is None else since))


def _timestamp_of(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def allowance_of(headers: Mapping[str, str]) -> Allowance | None:
    """The tightest of the policies in ``Ratelimit: "default";r=50;t=30``, if there is any."""
    found = [Allowance(int(r), float(t)) for r, t in _RATELIMIT.findall(headers.get("ratelimit", ""))]
    return min(found, key=lambda each: each.remaining / max(each.seconds, 1.0), default=None)
