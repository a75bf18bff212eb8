"""The seam's values as S3 parameters, and S3's answers as the seam's values (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from r2d1.errors import PreconditionFailed, RangeRefused, RemoteError, RemoteUnavailable
from r2d1.objects import Attributes, BodyCheck, ByteRange, ObjectInfo, Part

Answer = Mapping[str, Any]

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
_CHECK_PARAMS = {"crc64nvme": "ChecksumCRC64NVME", "md5": "ContentMD5"}

#: What an S3 server always says, one of these at least. Without it somebody else is answering, and a page of a
#: captive portal must not pass for an empty listing.
_ALWAYS_SAID = {
    "CompleteMultipartUpload": ("ETag",),
    "CreateMultipartUpload": ("UploadId",),
    "GetObject": ("ETag",),
    "HeadObject": ("ETag",),
    "ListMultipartUploads": ("IsTruncated", "Bucket"),  # rclone's server says the first only when it is true
    "ListObjectsV2": ("IsTruncated",),
    "ListParts": ("IsTruncated", "Bucket"),
    "PutObject": ("ETag",),
    "UploadPart": ("ETag",),
}


def require_s3(operation: str, subject: str, answer: Answer) -> None:
    """Raise ``RemoteError`` when an answer lacks what S3 always says, or says an ETag that no request can repeat."""
    said = _ALWAYS_SAID.get(operation)
    if said is not None and all(answer.get(name) is None for name in said):
        raise unreadable(operation, subject, f"an answer without {said[0]}")
    for one in (answer, *(answer.get("Contents") or ()), *(answer.get("Parts") or ())):
        tag = etag(one)
        if not (tag.isascii() and tag.isprintable()):
            raise unreadable(operation, subject, f"an ETag that is no printable ASCII: {tag[:40]!a}")


def unreadable(operation: str, subject: str, reason: str) -> RemoteError:
    hint = "The endpoint is no S3 server, or a proxy before it changes answers: check R2D1_R2_ENDPOINT_URL"
    return RemoteError(operation, subject, reason=reason, hint=hint)


def placed(key: str, answer: Answer, span: ByteRange) -> tuple[int, int]:
    """``(bytes to pass over, size of the object)`` of the answer to a ranged GET.

    206 carries Content-Range. Some stores send 200 with the right bytes and Content-Range, some ignore the
    range and send 200 with everything. ``RangeRefused`` when the object ends before the span does.
    """
    match = _CONTENT_RANGE.fullmatch(answer.get("ContentRange") or "")
    if match is None and answer["ResponseMetadata"]["HTTPStatusCode"] == 206:
        raise unreadable("GetObject", key, "a 206 answer without a readable Content-Range")
    start, last, size = (0, 0, length("GetObject", key, answer)) if match is None else map(int, match.groups())
    if size < span.stop:
        reason = f"bytes {span.start} to {span.stop} were asked for, the object has {size}"
        raise RangeRefused("GetObject", key, status=416, reason=reason)
    if match is not None and (start, last + 1) != (span.start, span.stop):
        reason = f"bytes {span.start} to {span.stop} were asked for, {start} to {last + 1} came"
        raise unreadable("GetObject", key, reason)
    return (span.start if match is None else 0), size


def require_all(key: str, came: int, expected: int) -> None:
    """Raise ``RemoteUnavailable`` for a body that ended early."""
    if came != expected:
        raise RemoteUnavailable("GetObject", key, reason=f"the answer ended after {came} of {expected} bytes")


def length(operation: str, key: str, answer: Answer) -> int:
    if answer.get("ContentLength") is None:
        raise unreadable(operation, key, "an answer without Content-Length")
    return int(answer["ContentLength"])


def info(key: str, size: int, answer: Answer) -> ObjectInfo:
    modified = answer.get("LastModified")
    metadata = {name.lower(): value for name, value in answer.get("Metadata", {}).items()}
    return ObjectInfo(key, size, etag(answer), modified.timestamp() if modified else 0.0, metadata)


def etag(answer: Answer) -> str:
    return str(answer.get("ETag") or "").removeprefix("W/").strip('"')


def attribute_params(attributes: Attributes) -> dict[str, Any]:
    params = {
        "ContentType": attributes.content_type,
        "CacheControl": attributes.cache_control,
        "Metadata": dict(attributes.metadata),
    }
    return {name: value for name, value in params.items() if value}


def condition_params(*, if_none_match: bool, if_match: str | None = None) -> dict[str, str]:
    params = {"IfNoneMatch": "*"} if if_none_match else {}
    return params if if_match is None else {**params, "IfMatch": f'"{if_match}"'}


def check_params(check: BodyCheck | None) -> dict[str, str]:
    return {} if check is None else {_CHECK_PARAMS[check.algorithm]: check.value}


def part_params(part: Part) -> dict[str, Any]:
    """A part as Complete names it; a checksum that it carried is repeated."""
    crc = check_params(part.check) if part.check and part.check.algorithm == "crc64nvme" else {}
    return {"PartNumber": part.number, "ETag": f'"{part.etag}"', **crc}


def listed_part(entry: Answer) -> Part:
    crc = entry.get("ChecksumCRC64NVME")
    check = BodyCheck("crc64nvme", crc) if crc else None
    return Part(int(entry["PartNumber"]), etag(entry), int(entry["Size"]), check)


@dataclass(slots=True)
class Landing:
    """Where the bytes of a ranged GET belong; ``info`` is what the answer's head said of the object."""

    key: str
    span: ByteRange
    if_match: str | None
    info: ObjectInfo | None = None

    def place(self, answer: Answer) -> tuple[int, int]:
        """``(bytes of the body to pass over, bytes wanted)``, or the error that the head calls for."""
        require_s3("GetObject", self.key, answer)
        skip, total = placed(self.key, answer, self.span)
        found = info(self.key, total, answer)
        if self.if_match is not None and found.etag != self.if_match:
            raise PreconditionFailed("GetObject", self.key, status=412, reason=f"the ETag is {found.etag}")
        self.info = found
        return skip, self.span.size
