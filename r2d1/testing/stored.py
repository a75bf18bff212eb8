"""What a bucket holds: objects, parts that have arrived, open uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from r2d1.testing.blob import Blob
from r2d1.testing.bodies import Body


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept with an object: system headers (lower-case names) and ``x-amz-meta-*`` without the prefix."""

    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object. ``key`` is the spelling last written; ``modified`` is in seconds, with milliseconds."""

    key: str
    blob: Blob
    etag: str
    modified: float
    kept: Kept = field(default_factory=Kept)
    checksums: Mapping[str, str] = field(default_factory=dict)
    part_sizes: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return self.blob.size


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part that has arrived."""

    number: int
    body: Body
    modified: float

    @property
    def etag(self) -> str:
        return self.body.md5.hex()

    @property
    def size(self) -> int:
        return self.body.blob.size


@dataclass(slots=True)
class Upload:
    """An open multipart upload. ``algorithm`` names the checksum that its parts carry."""

    upload_id: str
    key: str
    started: float
    kept: Kept
    algorithm: str | None
    parts: dict[int, StoredPart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartNamed:
    """A line of a Complete request: number, ETag without quotes, checksums (base64) by algorithm."""

    number: int
    etag: str
    checksums: Mapping[str, str] = field(default_factory=dict)
