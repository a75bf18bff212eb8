"""What an S3 server's refusal means to r2d1: status and code in, one of our errors with one hint out (pure).

Codes and their meaning: https://developers.cloudflare.com/r2/api/error-codes/ and, for other S3 servers,
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from r2d1.errors import (
    AccessRefused,
    BodyRefused,
    BucketNotFound,
    NotSupported,
    ObjectNotFound,
    PreconditionFailed,
    RangeRefused,
    RemoteError,
    RemoteUnavailable,
    Throttled,
    UploadNotFound,
)

CHECK_NETWORK = "Check the network, the proxy and the endpoint"
_CREDENTIALS = "Check the R2 access key and secret key: `r2d1 secrets` shows where each comes from"
_ENDPOINT = "Something other than an S3 server may be answering: check R2D1_ACCOUNT_ID or R2D1_R2_ENDPOINT_URL"
_TEMPORARY = "The temporary credentials are over or not valid here: get new ones, or remove R2D1_SESSION_TOKEN"
#: The answer to a HEAD has no body, and so no code: a wrong secret key looks like a token that may not.
_BARE_403 = (
    "The secret key may be wrong, or the token may lack Object Read & Write on this bucket: `r2d1 doctor` tells which"
)
_BODY = "The bytes that arrived are not those announced; they are sent again"

_BY_CODE: dict[str, type[RemoteError]] = {
    **dict.fromkeys(("NoSuchKey", "NoSuchObject", "NotFound"), ObjectNotFound),
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "ExpiredRequest", "TokenRefreshRequired"), AccessRefused),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed"), AccessRefused),
    **dict.fromkeys(("SlowDown", "TooManyRequests", "RequestLimitExceeded", "Throttling"), Throttled),
    # Another request on the key was in the way and ours had no effect: repeating it is all there is to do.
    **dict.fromkeys(("ConditionalRequestConflict", "OperationAborted"), Throttled),
    **dict.fromkeys(("BadDigest", "IncompleteBody", "ClientDisconnect"), BodyRefused),
    **dict.fromkeys(("XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "RequestTimeout"), BodyRefused),
    "NoSuchBucket": BucketNotFound,
    "NoSuchUpload": UploadNotFound,
    "NotImplemented": NotSupported,
    "PreconditionFailed": PreconditionFailed,
    "InvalidRange": RangeRefused,
}

_BY_STATUS: dict[int, type[RemoteError]] = {
    401: AccessRefused,
    403: AccessRefused,
    405: NotSupported,
    408: BodyRefused,
    412: PreconditionFailed,
    416: RangeRefused,
    429: Throttled,
    501: NotSupported,
    507: RemoteError,
}

_HINTS: dict[str | int, str] = {
    "SignatureDoesNotMatch": f"The secret key does not belong to the access key. {_CREDENTIALS}",
    "RequestTimeTooSkewed": "The clock of this machine is off by more than 15 minutes: set it",
    "ExpiredToken": _TEMPORARY,
    "InvalidToken": _TEMPORARY,
    "ExpiredRequest": "The request was too old when it arrived: check the clock of this machine",
    "ObjectLockedByBucketPolicy": "A bucket lock protects this key: change the rule, or use another prefix",
    "NotEntitled": "The account has no R2 subscription: enable R2 in the dashboard",
    "NoSuchBucket": "No such bucket at this endpoint: check R2D1_R2_BUCKET, the account id and R2D1_R2_JURISDICTION",
    "NoSuchUpload": "The upload was completed, aborted, or ended by the bucket's rule (7 days)",
    "InvalidPart": "All parts but the last must have the same size, and each ETag must be the one the store gave",
    "EntityTooSmall": "All parts but the last must have at least 5 MiB",
    "EntityTooLarge": "The object or part is larger than the store takes",
    "InvalidDigest": "The checksum header is malformed",
    "RouteNotFound": _ENDPOINT,
    301: "The bucket lives behind another endpoint: check R2D1_R2_JURISDICTION and R2D1_R2_ENDPOINT_URL",
    307: "The bucket lives behind another endpoint: check R2D1_R2_JURISDICTION and R2D1_R2_ENDPOINT_URL",
    401: f"The access key is unknown to this account, or a checksum or streaming header was refused. {_CREDENTIALS}",
    403: "The credentials do not permit this: the token needs Object Read & Write on this bucket",
    404: _ENDPOINT,
    405: "The store does not implement this request",
    411: "The store wants a Content-Length that something on the way removed: check the proxy",
    413: "The object or part is larger than the store (or a proxy before it) takes",
    416: "The object is shorter than expected",
    429: "Fewer requests are wanted; r2d1 slows down",
    501: "The client sends a header or query that the store does not implement; credentials are not the cause",
    507: "The store is full or a quota is reached: make room",
    525: "Cloudflare could not reach the store through TLS",
}

#: The status that belongs to the code of a key that DeleteObjects could not delete.
_DELETE_STATUS = {"AccessDenied": 403, "InternalError": 500, "SlowDown": 503, "ServiceUnavailable": 503}


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is not a success. ``code`` is the S3 code, or None when the answer carried none.

    ``headers`` have lower-case names.
    """

    status: int
    code: str | None = None
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def error_for(operation: str, subject: str, refusal: Refusal) -> RemoteError:
    """The error for a refusal of ``operation`` (S3's name of it) on ``subject`` (a key or a bucket)."""
    kind = _kind_of(operation, refusal)
    return kind(
        operation,
        subject,
        reason=refusal.message,
        status=refusal.status,
        code=refusal.code,
        request_id=refusal.headers.get("cf-ray") or refusal.headers.get("x-amz-request-id"),
        retry_after=retry_after_of(refusal.headers.get("retry-after")),
        hint=_hint_for(kind, refusal),
    )


def _kind_of(operation: str, refusal: Refusal) -> type[RemoteError]:
    if (known := _BY_CODE.get(refusal.code or "")) is not None:
        return known
    if refusal.code == "InvalidArgument" and "x-amz-security-token" in refusal.message.lower():
        return AccessRefused
    if refusal.status == 404 and refusal.code is None:
        return _kind_of_bare_404(operation)
    if (by_status := _BY_STATUS.get(refusal.status)) is not None:
        return by_status
    return RemoteUnavailable if refusal.status >= 500 else RemoteError


def _kind_of_bare_404(operation: str) -> type[RemoteError]:
    """A HEAD has no body to carry a code. Anything else without one is not an S3 server speaking.

    A page of some web server must not pass for an absent checkpoint.
    """
    return ObjectNotFound if operation == "HeadObject" else RemoteError


def _hint_for(kind: type[RemoteError], refusal: Refusal) -> str:
    if (by_code := _HINTS.get(refusal.code or "")) is not None:
        return by_code
    if kind is AccessRefused and refusal.status == 400:
        return _TEMPORARY
    if kind is BodyRefused:
        return _BODY
    if kind is ObjectNotFound:
        return ""
    if (by_status := _HINTS.get(refusal.status)) is not None:
        return _BARE_403 if (refusal.status, refusal.code) == (403, None) else by_status
    return "The store has trouble of its own; trying again later may help" if refusal.status >= 500 else ""


def retry_after_of(value: str | None) -> float | None:
    """Seconds to wait by a ``Retry-After`` header, which holds seconds or a date; None when it says nothing."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def require_deleted(answer: Mapping[str, Any]) -> None:
    """Raise for the first key that DeleteObjects could not delete; one that is absent counts as deleted."""
    for failed in answer.get("Errors", []):
        code = str(failed.get("Code"))
        refusal = Refusal(_DELETE_STATUS.get(code, 400), code, str(failed.get("Message") or ""))
        error = error_for("DeleteObjects", str(failed.get("Key")), refusal)
        if not isinstance(error, ObjectNotFound):
            raise error
