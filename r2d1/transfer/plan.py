"""Planning of parts and ranges; pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from r2d1.objects import ByteRange, Part

_MD5_HEX = re.compile(r"[0-9a-f]{32}", re.ASCII)


def plan_ranges(size: int, part_size: int) -> list[ByteRange]:
    """Cover ``size`` bytes with consecutive ranges of ``part_size``; only the last one may be shorter."""
    if part_size < 1:
        raise ValueError(f"a part has at least one byte, not {part_size}")
    return [ByteRange(at, min(at + part_size, size)) for at in range(0, size, part_size)]


def expected_etag(parts: Sequence[Part]) -> str | None:
    """The ETag that S3 and R2 give the joined object (MD5 over the parts' MD5s), or None if the parts' are no MD5s."""
    if not all(_MD5_HEX.fullmatch(part.etag) for part in parts):
        return None
    joined = b"".join(bytes.fromhex(part.etag) for part in sorted(parts, key=lambda part: part.number))
    return f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"
