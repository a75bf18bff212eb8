"""Bytes as they were received: pieces in memory or in a spool directory, joined without copying them."""

from __future__ import annotations

import os
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

PIECE = 1 << 20
BLOCK = 256 << 10


class SpooledPiece:
    """A file in the spool directory; it is removed when the last blob that holds it is gone."""

    __slots__ = ("__weakref__", "path", "size")

    def __init__(self, directory: str | Path) -> None:
        handle, name = tempfile.mkstemp(prefix="object-", dir=directory)
        os.close(handle)
        self.path = Path(name)
        self.size = 0
        weakref.finalize(self, self.path.unlink, missing_ok=True)

    def append(self, blocks: Iterable[bytes]) -> None:
        with self.path.open("ab") as file:
            file.writelines(blocks)
            self.size = file.tell()

    def read(self, start: int, stop: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)


@dataclass(frozen=True, slots=True)
class ZeroPiece:
    """Zero bytes that take no memory: huge objects for tests of memory and of ranges."""

    size: int

    def read(self, start: int, stop: int) -> bytes:
        return bytes(stop - start)


Piece = bytes | SpooledPiece | ZeroPiece


def size_of(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.size


class Blob:
    """An immutable sequence of bytes made of pieces."""

    __slots__ = ("_ends", "_pieces", "size")

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._pieces = tuple(piece for piece in pieces if size_of(piece))
        self._ends = tuple(accumulate(size_of(piece) for piece in self._pieces))
        self.size = self._ends[-1] if self._ends else 0

    @classmethod
    def zeros(cls, size: int) -> Blob:
        """``size`` zero bytes without the memory."""
        return cls([ZeroPiece(size)])

    @classmethod
    def join(cls, blobs: Iterable[Blob]) -> Blob:
        """One blob after another; the pieces are shared, not copied."""
        return cls(piece for blob in blobs for piece in blob._pieces)

    def blocks(self, start: int = 0, stop: int | None = None, block_size: int = BLOCK) -> Iterator[bytes | memoryview]:
        """Yield the bytes from ``start`` to ``stop`` (excluded) in blocks of at most ``block_size``."""
        stop = self.size if stop is None else min(stop, self.size)
        while start < stop:
            index = bisect_right(self._ends, start)
            piece, end = self._pieces[index], self._ends[index]
            first = end - size_of(piece)
            upto = min(stop, end, start + block_size)
            if isinstance(piece, bytes):
                yield memoryview(piece)[start - first : upto - first]
            else:
                yield piece.read(start - first, upto - first)
            start = upto

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        return b"".join(self.blocks(start, stop, PIECE))


class BlobWriter:
    """Collects a body: into pieces of a mebibyte, or into one file once it has more than ``spool_above`` bytes."""

    def __init__(self, *, spool_dir: str | Path | None = None, spool_above: int = 16 << 20) -> None:
        self._spool_dir = spool_dir
        self._spool_above = spool_above
        self._pieces: list[bytes] = []
        self._pending: list[bytes | memoryview] = []
        self._pending_size = 0
        self._spooled: SpooledPiece | None = None
        self.size = 0

    def write(self, chunk: bytes | memoryview) -> None:
        """Take bytes that nobody changes any more (a ``memoryview`` is copied)."""
        self._pending.append(chunk if isinstance(chunk, bytes) else bytes(chunk))
        self._pending_size += len(chunk)
        self.size += len(chunk)
        if self._pending_size >= PIECE:
            self._settle()

    def _settle(self) -> None:
        piece = b"".join(self._pending)
        self._pending, self._pending_size = [], 0
        if self._spool_dir is None or (self._spooled is None and self.size <= self._spool_above):
            self._pieces.append(piece)
            return
        if self._spooled is None:
            self._spooled = SpooledPiece(self._spool_dir)
        self._spooled.append([*self._pieces, piece])
        self._pieces = []

    def finish(self) -> Blob:
        """The blob of everything written."""
        if self._pending:
            self._settle()
        return Blob(self._pieces if self._spooled is None else [self._spooled])
