"""What a bucket enforces: R2's limits and manners, each of which a test can loosen or tighten."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MIB = 1 << 20
GIB = 1 << 30


class Conditional(Enum):
    """What a store does with ``If-Match`` and ``If-None-Match`` on writes; R2 honours them."""

    HONOURED = "honoured"
    IGNORED = "ignored"
    PUT_ONLY = "honoured by PutObject, ignored by CompleteMultipartUpload"
    REFUSED = "answered with 501"
    NOT_MODIFIED = "a condition that fails is answered with 304"


#: Bucket-level operations that an R2 token for objects may not call.
BUCKET_LEVEL = frozenset({"ListBuckets", "HeadBucket", "GetBucketLocation", "CreateBucket", "DeleteBucket"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Limits in bytes, counts and seconds; the defaults are R2's own.

    Source: https://developers.cloudflare.com/r2/platform/limits/ and ``/r2/objects/multipart-objects/``.
    ``forbidden`` and ``missing`` name S3 operations (``"ListParts"``) that answer 403 and 501.
    """

    min_part_size: int = 5 * MIB
    max_part_size: int = 5 * GIB - 5 * MIB
    max_object_size: int = 5 * 1024 * GIB - 5 * GIB
    max_parts: int = 10_000
    equal_parts: bool = True
    write_interval_s: float = 1.0
    upload_lifetime_s: float = 7 * 86_400.0
    max_key_bytes: int = 1024
    max_metadata_bytes: int = 8192
    page_size: int = 1000
    conditions: Conditional = Conditional.HONOURED
    verify_bodies: bool = True
    complete_repeats_checksums: bool = False
    forbidden: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    @classmethod
    def r2(cls) -> Rules:
        """Everything R2 enforces, one write per key and second included."""
        return cls()

    @classmethod
    def lenient(cls) -> Rules:
        """R2's rules without those that make small, quick tests slow: parts of any size, no pause between writes."""
        return cls(min_part_size=1, write_interval_s=0.0)

    @classmethod
    def object_token(cls) -> Rules:
        """R2 as a token sees it that may read and write objects, and nothing of the bucket itself."""
        return cls(forbidden=BUCKET_LEVEL | {"ListMultipartUploads"})
