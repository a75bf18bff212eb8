"""Which S3 operation a request is, and R2's screening of its headers and parameters (pure).

Source: the tables of https://developers.cloudflare.com/r2/api/s3/api/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from r2d1.testing.refusals import Refused, refused

#: Operations this double answers; those R2 knows besides are refused with 501 here.
IMPLEMENTED = frozenset(
    {
        "AbortMultipartUpload",
        "CompleteMultipartUpload",
        "CreateMultipartUpload",
        "DeleteObject",
        "DeleteObjects",
        "GetBucketLocation",
        "GetObject",
        "HeadBucket",
        "HeadObject",
        "ListBuckets",
        "ListMultipartUploads",
        "ListObjects",
        "ListObjectsV2",
        "ListParts",
        "PutObject",
        "UploadPart",
    }
)
WITH_BODY = frozenset({"CompleteMultipartUpload", "DeleteObjects", "PutObject", "UploadPart"})

_OBJECT_SUBRESOURCES = {
    "acl": "Acl",
    "attributes": "Attributes",
    "legal-hold": "LegalHold",
    "retention": "Retention",
    "tagging": "Tagging",
    "torrent": "Torrent",
}
_LIST_PARAMS = {
    "ListObjects": {"delimiter", "encoding-type", "marker", "max-keys", "prefix"},
    "ListObjectsV2": {
        "continuation-token",
        "delimiter",
        "encoding-type",
        "fetch-owner",
        "list-type",
        "max-keys",
        "prefix",
        "start-after",
    },
    "ListMultipartUploads": {"encoding-type", "key-marker", "max-uploads", "prefix", "upload-id-marker", "uploads"},
}

_EVERYWHERE = ("x-amz-expected-bucket-owner", "x-amz-request-payer", "x-amz-trailer")
_ON_WRITES = (
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write",
    "x-amz-grant-write-acp",
    "x-amz-object-lock-legal-hold",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-bucket-key-enabled",
    "x-amz-server-side-encryption-context",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-tagging",
    "x-amz-website-redirect-location",
)
_ON_DELETES = ("x-amz-bypass-governance-retention", "x-amz-mfa")
_CANNED_ACLS = frozenset(
    {
        "authenticated-read",
        "aws-exec-read",
        "bucket-owner-full-control",
        "bucket-owner-read",
        "private",
        "public-read",
        "public-read-write",
    }
)
_WRITES = frozenset({"CreateMultipartUpload", "PutObject"})


def whole_number(text: str | None) -> int | None:
    """The number that a text of ASCII digits stands for, ``None`` for any other text."""
    if text is None or not text.isascii() or not text.isdigit():
        return None
    return int(text[-18:])


@dataclass(frozen=True, slots=True)
class Target:
    """What a path names; ``key`` is empty for the bucket, both are for the account."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, path: str) -> Target:
        """Read ``/bucket/key``; the key is percent-decoded once, and ``+`` is a plus sign."""
        bucket, _, key = path.removeprefix("/").partition("/")
        try:
            return cls(unquote(bucket, errors="strict"), unquote(key, errors="strict"))
        except UnicodeDecodeError:
            raise refused("InvalidObjectName") from None


def operation_of(method: str, target: Target, query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    """The name of the S3 operation, implemented or not; ``RouteNotFound`` for none."""
    if not target.bucket:
        name = {"GET": "ListBuckets"}.get(method)
    elif not target.key:
        name = _bucket_operation(method, query)
    else:
        name = _object_operation(method, query, headers)
    if name is None:
        raise refused("RouteNotFound")
    return name


def _bucket_operation(method: str, query: Mapping[str, str]) -> str | None:
    if method == "GET":
        if "uploads" in query:
            return "ListMultipartUploads"
        if "location" in query:
            return "GetBucketLocation"
        return "ListObjectsV2" if query.get("list-type") == "2" else "ListObjects"
    if method == "POST":
        return "DeleteObjects" if "delete" in query else "PostObject"
    if method in ("PUT", "DELETE") and query:
        return f"{method.title()}Bucket{next(iter(query)).title()}"
    return {"HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket"}.get(method)


def _object_operation(method: str, query: Mapping[str, str], headers: Mapping[str, str]) -> str | None:
    for name, title in _OBJECT_SUBRESOURCES.items():
        if name in query and method in ("GET", "PUT"):
            return f"{method.title()}Object{title}"
    if method == "PUT":
        return _put_operation(query, headers)
    if method == "POST":
        return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload"
    if method == "GET" and "uploadId" in query:
        return "ListParts"
    if method == "DELETE":
        return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
    return {"GET": "GetObject", "HEAD": "HeadObject"}.get(method)


def _put_operation(query: Mapping[str, str], headers: Mapping[str, str]) -> str:
    is_part = "uploadId" in query or "partNumber" in query
    if "x-amz-copy-source" in headers:
        return "UploadPartCopy" if is_part else "CopyObject"
    return "UploadPart" if is_part else "PutObject"


def screen(operation: str, query: Mapping[str, str], headers: Mapping[str, str]) -> None:
    """Refuse what R2 says it does not implement; other ``x-amz-*`` headers are ignored."""
    if operation not in IMPLEMENTED:
        raise refused("NotImplemented", f"{operation} not implemented")
    for name in _unsupported(operation):
        if name in headers:
            raise _header(name, headers[name])
    if "aws-chunked" in headers.get("content-encoding", "").lower():
        raise _header("content-encoding", headers["content-encoding"])
    if operation in _WRITES:
        _screen_write(headers)
    known = _LIST_PARAMS.get(operation)
    for name in query if known else ():
        if known and name not in known and name != "x-id":
            raise refused("NotImplemented", f"ListObjects search parameter {name} not implemented")
    if query.get("encoding-type", "url") != "url":
        raise refused("NotImplemented", f'Unrecognized encoding-type "{query["encoding-type"]}" not implemented')


def _unsupported(operation: str) -> tuple[str, ...]:
    if operation in _WRITES or operation == "UploadPart":
        return _EVERYWHERE + _ON_WRITES
    return _EVERYWHERE + (_ON_DELETES if operation.startswith("Delete") else ())


def _screen_write(headers: Mapping[str, str]) -> None:
    encryption = headers.get("x-amz-server-side-encryption", "AES256")
    if encryption != "AES256":
        raise _header("x-amz-server-side-encryption", encryption)
    acl = headers.get("x-amz-acl", "private")
    if acl not in _CANNED_ACLS:
        raise _header("x-amz-acl", acl)
    if headers.get("x-amz-storage-class", "STANDARD") not in ("STANDARD", "STANDARD_IA"):
        raise refused("InvalidStorageClass")
    algorithm = headers.get("x-amz-checksum-algorithm")
    kind = headers.get("x-amz-checksum-type")
    if algorithm and kind and (kind == "FULL_OBJECT") != (algorithm.upper() == "CRC64NVME"):
        raise _header("x-amz-checksum-type", kind)


def _header(name: str, value: str) -> Refused:
    return refused("NotImplemented", f"Header '{name}' with value '{value}' not implemented")
