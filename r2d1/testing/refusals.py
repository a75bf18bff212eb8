"""R2's refusals: the HTTP status, S3 code and message of every answer that is not a success.

Statuses, codes and messages: https://developers.cloudflare.com/r2/api/error-codes/ and, where that page is
silent, Cloudflare's own local S3 endpoint for R2 (workers-sdk, ``packages/miniflare/src/workers/r2``).
"""

from __future__ import annotations

from collections.abc import Mapping

_MULTIPART = "There was a problem with the multipart upload."

#: Code: (HTTP status, message); the message is what R2 says where nothing more precise is known.
CODES: Mapping[str, tuple[int, str]] = {
    "AccessDenied": (403, "Access Denied"),
    "BadDigest": (400, "The checksum you specified did not match what we received."),
    "EntityTooLarge": (400, "Your proposed upload exceeds the maximum allowed object size."),
    "EntityTooSmall": (400, "Your proposed upload is smaller than the minimum allowed object size."),
    "IncompleteBody": (400, "You did not provide the number of bytes specified by the Content-Length HTTP header."),
    "InternalError": (500, "We encountered an internal error. Please try again."),
    "InvalidArgument": (400, "Invalid Argument"),
    "InvalidDigest": (400, "The checksum or Content-MD5 you specified is not valid."),
    "InvalidMaxKeys": (400, "MaxKeys params must be positive integer <= 1000."),
    "InvalidObjectName": (400, "The specified object name is not valid."),
    "InvalidPart": (400, "One or more of the specified parts could not be found."),
    "InvalidRange": (416, "The requested range is not satisfiable"),
    "InvalidRequest": (400, "The request is not valid."),
    "InvalidStorageClass": (400, "The storage class specified is not valid."),
    "MalformedXML": (
        400,
        "The XML you provided was not well formed or did not validate against our published schema.",
    ),
    "MetadataTooLarge": (400, "Your metadata headers exceed the maximum allowed metadata size."),
    "MissingContentLength": (411, "You must provide the Content-Length HTTP header."),
    "NoSuchBucket": (404, "The specified bucket does not exist."),
    "NoSuchKey": (404, "The specified key does not exist."),
    "NoSuchUpload": (404, "The specified multipart upload does not exist."),
    "NotImplemented": (501, "A header or query parameter you provided is not implemented."),
    "NotModified": (304, "Not Modified"),
    "PreconditionFailed": (412, "At least one of the pre-conditions you specified did not hold."),
    "RequestTimeTooSkewed": (
        403,
        "The difference between the request time and the server's time is too large.",
    ),
    "RouteNotFound": (404, "No route matches this url."),
    "ServiceUnavailable": (503, "Service is unavailable. Please try again."),
    "SignatureDoesNotMatch": (
        403,
        (
            "The request signature we calculated does not match the signature you provided. Check your secret access "
            "key and signing method."
        ),
    ),
    "SlowDown": (503, "Please reduce your request rate."),
    "TooManyRequests": (429, "Reduce your concurrent request rate for the same object."),
    "Unauthorized": (401, "Unauthorized"),
    "XAmzContentSHA256Mismatch": (
        400,
        "The provided 'x-amz-content-sha256' header does not match what was computed.",
    ),
}

UNEVEN_PARTS = "All non-trailing parts must have the same length."
DUPLICATE_PART = _MULTIPART


class Refused(Exception):
    """A rule was broken. ``fields`` are further elements of the error document, in order."""

    def __init__(self, status: int, code: str, message: str, *, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.fields = dict(fields or {})


def refused(code: str, message: str | None = None, *, fields: Mapping[str, str] | None = None) -> Refused:
    """The error to raise for a code of ``CODES``, with R2's own message unless another is given."""
    status, usual = CODES[code]
    return Refused(status, code, usual if message is None else message, fields=fields)
