"""Content digests: ``"blake3:<64 hex>"`` as a value, and the hashing of buffers and files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Protocol

from blake3 import blake3

from r2d1.errors import FormatError

ALGORITHM = "blake3"


class Hasher(Protocol):
    """What ``hashlib`` and ``blake3`` objects have in common."""

    def update(self, data: bytes | bytearray | memoryview, /) -> object: ...

    def hexdigest(self) -> str: ...


#: Algorithms a reader can check; r2d1 itself writes the first one only.
HASHERS: dict[str, Callable[[], Hasher]] = {ALGORITHM: blake3, "sha256": hashlib.sha256}


def new_hasher(algorithm: str = ALGORITHM) -> Hasher:
    """A fresh hasher; ``FormatError`` for an algorithm this version does not know."""
    try:
        return HASHERS[algorithm]()
    except KeyError:
        raise FormatError(
            f"digest algorithm {algorithm!r} is not known to this version of r2d1 (known: {', '.join(HASHERS)})"
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


def split_digest(text: str) -> tuple[str, str]:
    """``"blake3:ab…"`` → ``("blake3", "ab…")``; ``FormatError`` when it is no digest."""
    algorithm, colon, value = text.partition(":")
    if not (algorithm and colon and value) or value.strip("0123456789abcdef"):
        raise FormatError(f"{text!r} is not a digest of the form <algorithm>:<hex>")
    return algorithm, value
