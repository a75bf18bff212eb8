"""A public bucket's read-only face: what a custom domain or r2.dev answers to anyone, ranges and CORS included (pure).

Sources: https://developers.cloudflare.com/cache/reference/range-requests/ and ``/r2/buckets/public-buckets/``. It
differs from the S3 API: a range that cannot be read, or several of them, give the whole object with 200.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from r2d1.testing.answers import Reply, Request, object_headers
from r2d1.testing.blob import Blob
from r2d1.testing.bodies import Announced, Body
from r2d1.testing.bucket import Bucket
from r2d1.testing.conditions import Conditions, RangeAsked
from r2d1.testing.refusals import Refused
from r2d1.testing.stored import StoredObject

#: First segment of public paths; not a name for a bucket of the double.
PUBLIC = "public"


#: A bucket's CORS policy as R2's dashboard takes it: a list of rules.
Policy = Sequence[Mapping[str, Any]]

#: What the double's bucket allows unless a test says otherwise.
OPEN: Policy = (
    {
        "AllowedOrigins": ["*"],
        "AllowedMethods": ["GET", "HEAD"],
        "AllowedHeaders": ["*"],
        "ExposeHeaders": ["Content-Length", "Content-Range", "ETag"],
    },
)


class PublicService:
    """Serves every object of a bucket to anyone. ``cors`` is the bucket's policy."""

    def __init__(self, model: Bucket) -> None:
        self._model = model
        self.cors = OPEN

    def admit(self, request: Request) -> Announced:
        """Anyone may ask."""
        return Announced()

    def answer(self, request: Request, body: Body) -> Reply:
        reply = self._answer(request)
        return Reply(
            reply.status,
            {**reply.headers, **_cors(self.cors, request)},
            reply.blob,
            reply.start,
            reply.stop,
            reply.code,
        )

    def _answer(self, request: Request) -> Reply:
        if request.method == "OPTIONS":
            return Reply(204)
        if request.method not in ("GET", "HEAD"):
            return _page(405, "MethodNotAllowed")
        try:
            stored = self._model.get(request.key, conditions=Conditions.parse(request.headers))
        except Refused as error:
            return Reply(304, error.fields) if error.status == 304 else _page(error.status, error.code)
        return _found(stored, request.headers.get("range"))


def _found(stored: StoredObject, header: str | None) -> Reply:
    headers = object_headers(stored)
    asked = _range(header)
    if asked is None:
        return Reply(200, headers, stored.blob)
    try:
        start, stop = asked.of(stored.size)
    except Refused:
        reply = _page(416, "InvalidRange")
        return Reply(416, {**reply.headers, "Content-Range": f"bytes */{stored.size}"}, reply.blob, code=reply.code)
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{stored.size}"
    return Reply(206, headers, stored.blob, start, stop)


def _range(header: str | None) -> RangeAsked | None:
    """The one range asked for; anything else is as good as none."""
    try:
        return None if header is None else RangeAsked.parse(header)
    except Refused:
        return None


def _page(status: int, code: str) -> Reply:
    """Errors of public buckets are web pages, not XML."""
    text = f"<!DOCTYPE html><title>{status}</title><h1>{code}</h1>"
    return Reply(status, {"Content-Type": "text/html"}, Blob([text.encode()]), code=code)


def _cors(policy: Policy, request: Request) -> dict[str, str]:
    """CORS headers appear only when an ``Origin`` was sent, and a rule allows it what it asks for."""
    headers = request.headers
    origin = headers.get("origin")
    if origin is None:
        return {}
    is_preflight = request.method == "OPTIONS"
    method = headers.get("access-control-request-method", "GET") if is_preflight else request.method
    wanted = headers.get("access-control-request-headers", "") if is_preflight else ""
    for rule in policy:
        if _allows(rule, origin, method, [name.strip().lower() for name in wanted.split(",") if name.strip()]):
            return _granted(rule, origin, wanted, is_preflight=is_preflight)
    return {}


def _allows(rule: Mapping[str, Any], origin: str, method: str, wanted: Sequence[str]) -> bool:
    allowed = {str(name).lower() for name in rule.get("AllowedHeaders", ())}
    return (
        bool({"*", origin} & set(rule["AllowedOrigins"]))
        and method in rule["AllowedMethods"]
        and ("*" in allowed or allowed.issuperset(wanted))
    )


def _granted(rule: Mapping[str, Any], origin: str, wanted: str, *, is_preflight: bool) -> dict[str, str]:
    granted = {
        "Access-Control-Allow-Origin": "*" if "*" in rule["AllowedOrigins"] else origin,
        "Access-Control-Expose-Headers": ", ".join(rule.get("ExposeHeaders", ())),
        "Vary": "Origin",
    }
    if is_preflight:
        granted["Access-Control-Allow-Methods"] = ", ".join(rule["AllowedMethods"])
        granted["Access-Control-Allow-Headers"] = wanted
        if "MaxAgeSeconds" in rule:
            granted["Access-Control-Max-Age"] = str(rule["MaxAgeSeconds"])
    return {name: value for name, value in granted.items() if value}
