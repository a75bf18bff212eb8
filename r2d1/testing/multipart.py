"""R2's rules for joining parts into an object (pure).

Source: https://developers.cloudflare.com/r2/objects/multipart-objects/ and the checksum table of
``/r2/api/s3/api/``.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from r2d1.testing.blob import Blob
from r2d1.testing.bodies import checksum_of
from r2d1.testing.refusals import DUPLICATE_PART, UNEVEN_PARTS, refused
from r2d1.testing.rules import Rules
from r2d1.testing.stored import PartNamed, StoredObject, StoredPart, Upload


def chosen_parts(upload: Upload, named: Sequence[PartNamed], rules: Rules) -> list[StoredPart]:
    """The stored parts that a Complete request names, by number whatever order they were named in."""
    numbers = [part.number for part in named]
    if not numbers:
        raise refused("MalformedXML")
    if len(set(numbers)) != len(numbers):
        raise refused("InvalidPart", DUPLICATE_PART)
    for part in named:
        stored = upload.parts.get(part.number)
        if stored is None or stored.etag != part.etag:
            raise refused("InvalidPart")
        _check_repeated(upload.algorithm, part, stored, rules)
    return [upload.parts[number] for number in sorted(numbers)]


def _check_repeated(algorithm: str | None, part: PartNamed, stored: StoredPart, rules: Rules) -> None:
    """Checksums named at Complete must be those that the parts came with; some stores want them repeated."""
    if any(stored.body.checksums.get(name, value) != value for name, value in part.checksums.items()):
        raise refused("InvalidPart")
    if rules.complete_repeats_checksums and algorithm is not None and algorithm not in part.checksums:
        raise refused(
            "InvalidRequest",
            f"The upload was created with {algorithm} checksums; part {part.number} was named without its own.",
        )


def check_sizes(sizes: Sequence[int], rules: Rules) -> None:
    """What R2 compares at Complete: a least size, all parts equal, the last one no longer than the others."""
    if any(size < rules.min_part_size for size in sizes[:-1]):
        raise refused("EntityTooSmall")
    if rules.equal_parts and len(sizes) > 1 and (len(set(sizes[:-1])) > 1 or sizes[-1] > sizes[0]):
        raise refused("InvalidPart", UNEVEN_PARTS)
    if sum(sizes) > rules.max_object_size:
        raise refused("EntityTooLarge")


def joined(upload: Upload, parts: Sequence[StoredPart], *, now: float) -> StoredObject:
    """The object that the parts make; its ETag is the MD5 of the parts' MD5s and their number."""
    blob = Blob.join(part.body.blob for part in parts)
    md5 = hashlib.md5(b"".join(part.body.md5 for part in parts), usedforsecurity=False)
    return StoredObject(
        key=upload.key,
        blob=blob,
        etag=f"{md5.hexdigest()}-{len(parts)}",
        modified=now,
        kept=upload.kept,
        checksums=_joined_checksum(upload.algorithm, blob, parts),
        part_sizes=tuple(part.size for part in parts),
    )


def _joined_checksum(algorithm: str | None, blob: Blob, parts: Sequence[StoredPart]) -> dict[str, str]:
    """CRC64NVME covers the whole object; of the others R2 keeps a checksum of the parts' checksums."""
    if algorithm is None:
        return {}
    if algorithm == "crc64nvme":
        return {algorithm: checksum_of(algorithm, blob)}
    values = [part.body.checksums[algorithm] for part in parts if algorithm in part.body.checksums]
    if len(values) != len(parts):
        return {}
    raw = b"".join(base64.b64decode(value) for value in values)
    return {algorithm: f"{checksum_of(algorithm, Blob([raw]))}-{len(parts)}"}
