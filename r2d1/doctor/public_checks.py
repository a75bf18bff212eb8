"""What anybody gets from the public base: a range of the temporary object, and the headers that browsers need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from r2d1.bases import Answer, BaseReader, open_reader
from r2d1.doctor.finding import Finding, Status, failed
from r2d1.errors import ConfigError, ObjectNotFound, R2D1Error, RemoteError
from r2d1.events import Teller
from r2d1.objects import ByteRange
from r2d1.retry import Brake, RetryPolicy, retried
from r2d1.setting_rules import web_url
from r2d1.settings import Settings

_SPAN = ByteRange(2000, 2016)
_EXPOSED = ("content-range", "content-length", "etag")
_TRIES = RetryPolicy(attempts=3, budget_s=15.0, base_s=0.3, cap_s=2.0)


async def check_public(settings: Settings, key: str, body: bytes, *, cors_origin: str | None) -> list[Finding]:
    """Read 16 bytes of ``key`` as anybody could; with ``cors_origin`` as a page of that origin would."""
    if settings.public_base is None:
        return [_no_base(settings), *_not_asked(cors_origin, "there is no public base to ask")]
    try:
        async with open_reader(settings.public_base, settings=settings, connections=1) as reader:
            found = [*_notes(settings.public_base), await _range(reader, key, body)]
            return [*found, await _cors(reader, key, cors_origin)] if cors_origin else found
    except R2D1Error as error:
        return [failed("public range", str(error)), *_not_asked(cors_origin, "the public base cannot be asked")]


def _no_base(settings: Settings) -> Finding:
    if settings.store_dir is not None:
        return Finding("public range", Status.SKIPPED, "a directory has no public base")
    hint = "Set R2D1_R2_PUBLIC_BASE (or R2_PUBLIC_BASE) to the custom domain or r2.dev URL of the bucket"
    return failed("public range", "there is no public base", hint)


def _not_asked(cors_origin: str | None, why: str) -> list[Finding]:
    return [Finding("cors", Status.SKIPPED, f"{why} about pages of {cors_origin}")] if cors_origin else []


def checked_origin(origin: str) -> str:
    """An origin as browsers send it; ``ConfigError`` for anything else, which no server could allow."""
    problem = web_url(origin) if origin else "it is empty"
    parts = urlsplit("" if problem else origin)
    if problem or f"{parts.scheme}://{parts.netloc}" != origin:
        raise ConfigError(f"{origin!a} is no origin of web pages: give scheme and host, such as https://app.example")
    return origin


def _notes(base: str) -> list[Finding]:
    host = urlsplit(base).hostname or ""
    if not host.endswith(".r2.dev"):
        return []
    return [Finding("public base", Status.NOTE, "r2.dev URLs are slowed down and not cached; use a custom domain")]


async def _range(reader: BaseReader, key: str, body: bytes) -> Finding:
    try:
        answer = await retried(lambda: reader.read_range(key, _SPAN), policy=_TRIES, brake=Brake(), tell=Teller(None))
    except ObjectNotFound as error:
        hint = "Is it the base of this bucket, and is public access switched on?"
        return failed("public range", f"{error.subject}: {error.status}", hint)
    except RemoteError as error:
        return failed("public range", str(error), error.hint)
    if answer.status != 206:
        hint = "Readers then load whole shards; look for a rule or worker before the bucket that drops ranges"
        return failed("public range", f"{reader.url_of(key)} ignores Range and answers {answer.status}, not 206", hint)
    if answer.data != body[_SPAN.start : _SPAN.stop]:
        return failed("public range", f"{reader.url_of(key)} gives other bytes than were written")
    return Finding("public range", Status.OK, f"{reader.base.url} gives ranges: 206 with the right bytes")


async def _cors(reader: BaseReader, key: str, origin: str) -> Finding:
    try:
        answer = await reader.read_range(key, _SPAN, origin=origin)
        asked = await reader.preflight(key, origin=origin)
    except RemoteError as error:
        return failed("cors", str(error), error.hint)
    if problems := [*_answer_problems(answer, origin), *_preflight_problems(asked, origin)]:
        policy = json.dumps(cors_policy(origin), indent=2)
        hint = "Paste this policy in the bucket's settings (CORS policy); it takes up to 30 s to apply"
        return Finding("cors", Status.FAILED, "; ".join(problems), hint, policy)
    return Finding("cors", Status.OK, f"pages of {origin} may read ranges and their headers")


def cors_policy(origin: str) -> list[dict[str, object]]:
    """The policy that lets pages of ``origin`` read, as the dashboard takes it."""
    return [
        {
            "AllowedOrigins": [origin],
            "AllowedMethods": ["GET", "HEAD"],
            "AllowedHeaders": ["Range"],
            "ExposeHeaders": ["Content-Range", "Content-Length", "ETag"],
            "MaxAgeSeconds": 86400,
        }
    ]


def _answer_problems(answer: Answer, origin: str) -> list[str]:
    problems = _origin_problems(answer.headers, origin, "an answer")
    exposed = _names(answer.headers.get("access-control-expose-headers", ""))
    hidden = [name for name in _EXPOSED if name not in exposed and "*" not in exposed]
    if hidden and not problems:
        problems.append(f"Access-Control-Expose-Headers lacks {', '.join(hidden)}")
    return problems


def _preflight_problems(answer: Answer, origin: str) -> list[str]:
    if answer.status not in (200, 204):
        return [f"the preflight request is answered with {answer.status}"]
    problems = _origin_problems(answer.headers, origin, "the preflight answer")
    allowed = _names(answer.headers.get("access-control-allow-headers", ""))
    if not problems and not {"range", "*"} & allowed:
        problems.append("Access-Control-Allow-Headers lacks Range")
    return problems


def _origin_problems(headers: Mapping[str, str], origin: str, what: str) -> list[str]:
    said = headers.get("access-control-allow-origin")
    if said in ("*", origin):
        return []
    return [f"{what} has no Access-Control-Allow-Origin" if said is None else f"{what} allows {said!a}, not {origin}"]


def _names(value: str) -> set[str]:
    return {name.strip().lower() for name in value.split(",") if name.strip()}
