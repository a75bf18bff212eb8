"""Content digests: ``"blake3:<64 hex>"`` as a value, the hashing of buffers, and the checks that bodies carry."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from blake3 import blake3

from r2d1.errors import FormatError

ALGORITHM = "blake3"


class Hasher(Protocol):
    """What ``hashlib`` and ``blake3`` objects have in common."""

    def update(self, data: bytes | bytearray | memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


_HEX = re.compile("[0-9a-f]+", re.ASCII)
_HEX_LENGTH = 64  # of every known algorithm

#: Algorithms a reader can check; r2d1 itself writes the first one only.
HASHERS: dict[str, Callable[[], Hasher]] = {ALGORITHM: blake3, "sha256": hashlib.sha256}


def new_hasher(algorithm: str = ALGORITHM) -> Hasher:
    """A fresh hasher; ``FormatError`` for an algorithm this version does not know."""
    try:
        return HASHERS[algorithm]()
    except KeyError:
        raise FormatError(
            f"digest algorithm {_brief(algorithm)} is not known to this version of r2d1 (known: {', '.join(HASHERS)})"
        ) from None


def hex_of(blocks: Iterable[bytes | memoryview] | bytes, algorithm: str = ALGORITHM) -> str:
    """The hex digest of a buffer or of blocks of one."""
    hasher = new_hasher(algorithm)
    for block in (blocks,) if isinstance(blocks, bytes) else blocks:
        hasher.update(block)
    return hasher.hexdigest()


def digest_of(data: bytes, algorithm: str = ALGORITHM) -> str:
    """``"<algorithm>:<hex>"`` of a buffer."""
    return f"{algorithm}:{hex_of(data, algorithm)}"


def crc64nvme(block: bytes | bytearray | memoryview, before: int = 0) -> int:
    """The running CRC-64/NVME, which S3 calls ``x-amz-checksum-crc64nvme``; ``before`` is that of the bytes so far."""
    from awscrt import checksums  # loading it costs more than a command that sends nothing should pay

    value: int = checksums.crc64nvme(block, before)
    return value


def split_digest(text: str) -> tuple[str, str]:
    """``"blake3:ab…"`` → ``("blake3", "ab…")``; ``FormatError`` when it is no digest (of a length we know)."""
    algorithm, _, value = text.partition(":")
    if not algorithm or not is_hex(value, algorithm):
        raise FormatError(f"{_brief(text)} is not a digest of the form <algorithm>:<hex>")
    return algorithm, value


def is_hex(value: str, algorithm: str) -> bool:
    """Whether a text can be what ``algorithm`` gives, in lower-case hex; of an unknown one any length may be."""
    return _HEX.fullmatch(value) is not None and (algorithm not in HASHERS or len(value) == _HEX_LENGTH)


def _brief(text: str) -> str:
    return ascii(text[:100])
