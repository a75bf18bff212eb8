"""A public bucket's read-only face: what a custom domain or r2.dev answers to anyone, ranges and CORS included (pure).

Sources: https://developers.cloudflare.com/cache/reference/range-requests/ and ``/r2/buckets/public-buckets/``. It
differs from the S3 API: a range that cannot be read, or several of them, give the whole object with 200.
"""

from __future__ import annotations

from r2d1.testing.answers import Reply, Request, object_headers
from r2d1.testing.blob import Blob
from r2d1.testing.bodies import Announced, Body
from r2d1.testing.bucket import Bucket
from r2d1.testing.conditions import Conditions, RangeAsked
from r2d1.testing.refusals import Refused
from r2d1.testing.stored import StoredObject

#: First segment of public paths; not a name for a bucket of the double.
PUBLIC = "public"


class PublicService:
    """Serves every object of a bucket to anyone."""

    def __init__(self, model: Bucket) -> None:
        self._model = model

    def admit(self, request: Request) -> Announced:
        """Anyone may ask."""
        return Announced()

    def answer(self, request: Request, body: Body) -> Reply:
        reply = self._answer(request)
        return Reply(reply.status, {**reply.headers, **_cors(request)}, reply.blob, reply.start, reply.stop, reply.code)

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


def _cors(request: Request) -> dict[str, str]:
    """CORS headers appear only when an ``Origin`` was sent."""
    if "origin" not in request.headers:
        return {}
    headers = {
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Expose-Headers": "Content-Length, Content-Range, ETag",
        "Vary": "Origin",
    }
    if request.method == "OPTIONS":
        headers["Access-Control-Allow-Methods"] = "GET, HEAD"
        headers["Access-Control-Allow-Headers"] = request.headers.get("access-control-request-headers", "range")
    return headers
