"""One signed S3 request and its whole answer, by the standard library alone, so that no client hides anything."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import http.client
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

TIMEOUT_S = 30.0
_REGION = "auto"


@dataclass(frozen=True, slots=True)
class Key:
    """A key pair for signing."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. Header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def ask(
    endpoint: str,
    method: str,
    path: str,
    *,
    key: Key | None,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes | Iterable[bytes] = b"",
    payload: str | None = None,
    age_s: float = 0.0,
) -> Reply:
    """Send one request below ``endpoint`` on a connection of its own; unsigned without ``key``.

    ``path`` is the decoded ``/bucket/key``. ``payload`` is declared in place of the body's hash, ``age_s`` is how
    long ago the request says it was signed. A body that is an iterator is sent in chunks, without a length.
    """
    base = urlsplit(endpoint)
    target = base.path + quote(path, safe="/~")
    asked = "&".join(
        sorted(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in (query or {}).items())
    )
    sent = dict(headers or {})
    if key is not None:
        declared = payload or (hashlib.sha256(body).hexdigest() if isinstance(body, bytes) else "UNSIGNED-PAYLOAD")
        when = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=age_s)
        sent |= {"x-amz-content-sha256": declared, "x-amz-date": f"{when:%Y%m%dT%H%M%SZ}"}
        sent["Authorization"] = _authorization(key, method, target, asked, {**sent, "host": base.netloc})
    return send(base.netloc, method, f"{target}?{asked}" if asked else target, sent, body)


def send(
    netloc: str, method: str, target: str, headers: Mapping[str, str], body: bytes | Iterable[bytes] = b""
) -> Reply:
    """Send one request as it is."""
    connection = http.client.HTTPConnection(netloc, timeout=TIMEOUT_S)
    try:
        connection.request(method, target, body, {**headers, "Connection": "close"})
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, found, answer.read())
    finally:
        connection.close()


def _authorization(key: Key, method: str, path: str, query: str, headers: Mapping[str, str]) -> str:
    """AWS's signature, version 4, over the host and every header there is."""
    signed = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    names = ";".join(sorted(signed))
    lines = [f"{name}:{signed[name]}" for name in sorted(signed)]
    canonical = "\n".join([method, path, query, *lines, "", names, signed["x-amz-content-sha256"]])
    date = signed["x-amz-date"]
    scope = f"{date[:8]}/{_REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    secret = f"AWS4{key.secret_key}".encode()
    for piece in scope.split("/"):
        secret = hmac.digest(secret, piece.encode(), "sha256")
    signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
    return f"AWS4-HMAC-SHA256 Credential={key.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
