"""A request's body on its way in: hashed as it comes, and held to what the headers announced of it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from awscrt import checksums

from r2d1.testing.blob import Blob, BlobWriter
from r2d1.testing.refusals import refused

CHECKSUM_HEADER = "x-amz-checksum-"
#: Headers that begin like a checksum and are none.
_NOT_VALUES = {"algorithm", "mode", "type"}


class Hasher(Protocol):
    def update(self, data: bytes | memoryview, /) -> object: ...

    def digest(self) -> bytes: ...


class Crc:
    """A cyclic redundancy check with the interface of ``hashlib``; ``width`` is in bytes."""

    def __init__(self, step: Callable[[bytes | memoryview, int], int], width: int) -> None:
        self._step = step
        self._width = width
        self._value = 0

    def update(self, data: bytes | memoryview, /) -> None:
        self._value = self._step(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._width, "big")


#: The checksums R2 knows, by the ends of their headers' names.
ALGORITHMS: Mapping[str, Callable[[], Hasher]] = {
    "crc32": lambda: Crc(zlib.crc32, 4),
    "crc32c": lambda: Crc(checksums.crc32c, 4),
    "crc64nvme": lambda: Crc(checksums.crc64nvme, 8),
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
}


def checksum_of(algorithm: str, blob: Blob) -> str:
    """The checksum of a whole blob, base64."""
    hasher = ALGORITHMS[algorithm]()
    for block in blob.blocks(block_size=1 << 20):
        hasher.update(block)
    return base64.b64encode(hasher.digest()).decode()


@dataclass(frozen=True, slots=True)
class Announced:
    """What the headers of a request say of its body. Values are raw bytes; ``sha256`` is the signed literal hash."""

    content_md5: bytes | None = None
    algorithm: str | None = None
    checksum: bytes | None = None
    sha256: bytes | None = None

    @classmethod
    def parse(cls, headers: Mapping[str, str], *, sha256: bytes | None = None) -> Announced:
        """Read ``Content-MD5`` and ``x-amz-checksum-*``; R2 takes one of them at a time."""
        found = {
            name.removeprefix(CHECKSUM_HEADER): value
            for name, value in headers.items()
            if name.startswith(CHECKSUM_HEADER) and name.removeprefix(CHECKSUM_HEADER) not in _NOT_VALUES
        }
        md5 = headers.get("content-md5")
        if len(found) + (md5 is not None) > 1:
            raise refused("InvalidRequest", "You can only specify one non-default checksum at a time.")
        if not found:
            return cls(content_md5=None if md5 is None else _decoded(md5, 16), sha256=sha256)
        ((algorithm, value),) = found.items()
        if algorithm not in ALGORITHMS:
            name = CHECKSUM_HEADER + algorithm
            raise refused("NotImplemented", f"Header '{name}' with value '{value}' not implemented")
        return cls(algorithm=algorithm, checksum=_decoded(value, len(ALGORITHMS[algorithm]().digest())), sha256=sha256)


def _decoded(value: str, size: int) -> bytes:
    """Base64 of exactly ``size`` bytes."""
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != size:
        raise refused("InvalidDigest")
    return raw


@dataclass(frozen=True, slots=True)
class Body:
    """A body that has arrived and is what was announced. ``checksums`` holds base64 by algorithm, at most one."""

    blob: Blob
    md5: bytes
    checksums: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, data: bytes | Blob) -> Body:
        """A body without a request around it."""
        blob = data if isinstance(data, Blob) else Blob([data])
        hasher = hashlib.md5(usedforsecurity=False)
        for block in blob.blocks(block_size=1 << 20):
            hasher.update(block)
        return cls(blob, hasher.digest())


class BodyReader:
    """Takes a body chunk by chunk. ``verify=False`` believes whatever arrives."""

    def __init__(self, announced: Announced, writer: BlobWriter, *, verify: bool = True) -> None:
        self._announced = announced
        self._writer = writer
        self._verify = verify
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha256 = hashlib.sha256() if announced.sha256 is not None else None
        self._checksum = ALGORITHMS[announced.algorithm]() if announced.algorithm else None

    @property
    def size(self) -> int:
        return self._writer.size

    def write(self, chunk: bytes | memoryview) -> None:
        self._md5.update(chunk)
        for hasher in (self._sha256, self._checksum):
            if hasher is not None:
                hasher.update(chunk)
        self._writer.write(chunk)

    def finish(self) -> Body:
        """The body; ``BadDigest`` or ``XAmzContentSHA256Mismatch`` when it is not the one announced."""
        if self._verify:
            self._check()
        kept = {}
        if self._announced.algorithm and self._checksum is not None:
            kept[self._announced.algorithm] = base64.b64encode(self._checksum.digest()).decode()
        return Body(self._writer.finish(), self._md5.digest(), kept)

    def _check(self) -> None:
        announced = self._announced
        if self._sha256 is not None and self._sha256.digest() != announced.sha256:
            raise refused("XAmzContentSHA256Mismatch")
        if announced.content_md5 is not None and self._md5.digest() != announced.content_md5:
            raise _bad_digest("MD5", announced.content_md5, self._md5.digest())
        if self._checksum is not None and self._checksum.digest() != announced.checksum:
            raise _bad_digest(str(announced.algorithm).upper(), announced.checksum or b"", self._checksum.digest())


def _bad_digest(name: str, said: bytes, found: bytes) -> Exception:
    return refused(
        "BadDigest",
        f"The {name} checksum you specified did not match what we received.\n"
        f"You provided a {name} checksum with value: {said.hex()}\nActual {name} was: {found.hex()}",
    )
