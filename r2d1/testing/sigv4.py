"""AWS Signature Version 4 as R2 verifies it: header authentication, every deviation a refusal (pure).

The scheme: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html, with S3's
exception that the path is signed as sent. Order and wording of the refusals are R2's. Presigned URLs are not
verified here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from r2d1.testing.refusals import Refused, refused

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
MAX_SKEW_S = 15 * 60
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A key pair, and the session token of a temporary one."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body. ``path`` and ``query`` are as sent; header names are lower case."""

    method: str
    path: str
    query: str
    headers: Sequence[tuple[str, str]]

    def header(self, name: str) -> str | None:
        """A header's value; several of one name are joined by commas."""
        values = [value for key, value in self.headers if key == name]
        return ",".join(values) if values else None

    def query_pairs(self) -> list[tuple[str, str]]:
        """Names and values, percent-decoded once; ``+`` is a plus sign."""
        pairs = (pair.partition("=") for pair in self.query.split("&") if pair)
        return [(unquote(name), unquote(value)) for name, _, value in pairs]


@dataclass(frozen=True, slots=True)
class _Scope:
    access_key: str
    date: str
    region: str
    amz_date: str

    @property
    def text(self) -> str:
        return f"{self.date}/{self.region}/s3/aws4_request"


def verify(head: Head, credentials: Credentials, *, now: float) -> bytes | None:
    """Check who sent a request; the SHA-256 its body must have is returned, ``None`` for an unsigned body."""
    authorization = head.header("authorization")
    if authorization is None:
        if any(name == "X-Amz-Credential" for name, _ in head.query_pairs()):
            raise refused("NotImplemented", "Presigned requests not implemented by this double")
        raise refused("InvalidArgument", "Authorization")
    payload = head.header("x-amz-content-sha256")
    if payload is None:
        raise refused("InvalidRequest", "Missing x-amz-content-sha256")
    amz_date = _checked_date(head, now)
    credential, signed, signature = _fields(authorization)
    scope = _scope(credential, amz_date)
    names = [name.lower() for name in signed.split(";")]
    if scope.access_key != credentials.access_key or "host" not in names:
        raise refused("Unauthorized")
    _check_signature(canonical_request(head, names, payload), scope, credentials, signature)
    _check_token(head, credentials)
    return _body_hash(payload)


def access_key_of(head: Head) -> str:
    """The key id that a request claims, whether or not it is true; empty when there is none."""
    match = re.search(r"Credential=([^,\s]+)", head.header("authorization") or "")
    return "/".join(match[1].split("/")[:-4]) if match else ""


def canonical_request(head: Head, names: Sequence[str], payload: str) -> str:
    """The text whose hash is signed."""
    query = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in head.query_pairs())
    headers = [f"{name}:{' '.join((head.header(name) or '').split())}\n" for name in names]
    return "\n".join(
        [
            head.method,
            head.path,
            "&".join(f"{name}={value}" for name, value in query),
            "".join(headers),
            ";".join(names),
            payload,
        ]
    )


def _checked_date(head: Head, now: float) -> str:
    source = "x-amz-date" if head.header("x-amz-date") is not None else "date"
    text = head.header(source)
    if text is None:
        raise refused("InvalidArgument", "No date provided in x-amz-date nor date header")
    try:
        date = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise refused(
            "InvalidArgument", f"Date provided in '{source}' header ({text}) didn't parse successfully"
        ) from None
    if abs(now - date.timestamp()) > MAX_SKEW_S:
        raise refused("RequestTimeTooSkewed")
    return text


def _fields(authorization: str) -> tuple[str, str, str]:
    scheme, _, rest = authorization.partition(" ")
    pairs = {key.strip(): value.strip() for key, _, value in (item.partition("=") for item in rest.split(","))}
    if scheme != ALGORITHM or not pairs.keys() >= {"Credential", "SignedHeaders", "Signature"}:
        raise refused("InvalidRequest", f"Please use {ALGORITHM}")
    return pairs["Credential"], pairs["SignedHeaders"], pairs["Signature"]


def _scope(credential: str, amz_date: str) -> _Scope:
    parts = credential.split("/")
    if len(parts) < 5:
        raise refused(
            "InvalidArgument",
            f"Credential sigv4 header should have at least 5 slash-separated parts, not {len(parts)}",
        )
    date, region, service, terminator = parts[-4:]
    if service != "s3":
        raise refused("InvalidArgument", f"Credential service should be s3, not {service}")
    if terminator != "aws4_request":
        raise refused("InvalidArgument", f"Credential termination string should be aws4_request, not {terminator}")
    if not amz_date.startswith(date):
        raise refused(
            "InvalidArgument",
            f"Credential signed date {date} does not match {amz_date[:8]} from 'x-amz-date' header",
        )
    return _Scope("/".join(parts[:-4]), date, region, amz_date)


def _check_signature(canonical: str, scope: _Scope, credentials: Credentials, provided: str) -> None:
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    to_sign = f"{ALGORITHM}\n{scope.amz_date}\n{scope.text}\n{digest}"
    key = f"AWS4{credentials.secret_key}".encode()
    for step in (scope.date, scope.region, "s3", "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    expected = hmac.digest(key, to_sign.encode(), "sha256").hex()
    if not hmac.compare_digest(expected.encode(), provided.encode("utf-8", "surrogateescape")):
        raise _mismatch(canonical, to_sign, provided)


def _mismatch(canonical: str, to_sign: str, provided: str) -> Refused:
    fields = {"StringToSign": to_sign, "CanonicalRequest": canonical, "SignatureProvided": provided}
    return refused("SignatureDoesNotMatch", fields=fields)


def _check_token(head: Head, credentials: Credentials) -> None:
    token = head.header("x-amz-security-token")
    if credentials.session_token is None:
        if token is not None:
            raise refused("InvalidArgument", "X-Amz-Security-Token")
    elif token is None or not hmac.compare_digest(token.encode(), credentials.session_token.encode()):
        raise refused("Unauthorized")


def _body_hash(payload: str) -> bytes | None:
    if payload == UNSIGNED:
        return None
    if payload.startswith("STREAMING-"):
        raise refused("NotImplemented", f"Header 'x-amz-content-sha256' with value '{payload}' not implemented")
    if not _HEX_SHA256.fullmatch(payload):
        raise refused("InvalidRequest", "x-amz-content-sha256 must be UNSIGNED-PAYLOAD or a valid sha256 value.")
    return bytes.fromhex(payload)
