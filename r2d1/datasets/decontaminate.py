"""Decontamination: dropping every row that has 13 consecutive words of a reference text (formats.md §9, step 2).

Words are hashed by NumPy for whole batches, which only finds candidates; what is dropped is decided by
a 128-bit hash of the 13 words themselves. The reference table lives in files that every process maps.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

#: Consecutive words that make a row and a reference text meet.
WORDS = 13

_NOT_WORD = re.compile(r"\W+")
_SPACE = 32
#: Everything ASCII that is no word character becomes a space, letters become lower case.
_ASCII = bytes(ord(chr(c).lower()) if chr(c).isalnum() or chr(c) == "_" else _SPACE for c in range(128)) + bytes(128)
#: Texts are hashed in pieces of about this many bytes, which fit a processor's cache with their powers.
_PIECE_SIZE = 2**19

_U64 = np.ndarray[Any, np.dtype[np.uint64]]
_BYTE_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
_WORD_BASE = 0xD6E8FEB86659FD93


def normalized(text: bytes) -> bytes:
    """The words of a UTF-8 text with one or more spaces between them; ``UnicodeDecodeError`` when it is not UTF-8.

    NFKC, then lower case; what is neither alphanumeric nor ``_`` separates words: a word character of Python's
    ``re`` is exactly that.
    """
    if text.isascii():
        return text.translate(_ASCII)
    return _NOT_WORD.sub(" ", unicodedata.normalize("NFKC", text.decode()).lower()).encode()


def words_of(text: str) -> list[str]:
    """The words of a text, as decontamination sees them."""
    return normalized(text.encode()).decode().split()


def strong_hash(words: bytes) -> bytes:
    """16 bytes that stand for some words: BLAKE2b over them, joined by one space."""
    return hashlib.blake2b(b" ".join(words.split()), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Shingles:
    """All runs of 13 words in some texts: fast hash, text, and the bytes of ``buffer`` from first to last word."""

    buffer: bytes
    hashes: _U64
    texts: np.ndarray[Any, np.dtype[np.int64]]
    starts: np.ndarray[Any, np.dtype[np.int64]]
    ends: np.ndarray[Any, np.dtype[np.int64]]

    def words(self, at: int) -> bytes:
        """The 13 words of one shingle."""
        return self.buffer[int(self.starts[at]) : int(self.ends[at])]


def shingles_of(texts: Sequence[bytes]) -> Iterator[Shingles]:
    """The shingles of texts, in blocks; ``texts`` of a block are numbers into the sequence given."""
    pieces: list[bytes] = []
    owners: list[int] = []
    size = 0
    for number, text in enumerate(texts):
        for piece in _pieces(normalized(text)):
            pieces.append(piece)
            owners.append(number)
            size += len(piece) + 1
            if size >= _PIECE_SIZE:
                yield _hash_pieces(pieces, owners)
                pieces, owners, size = [], [], 0
    if pieces:
        yield _hash_pieces(pieces, owners)


def _pieces(text: bytes) -> Iterator[bytes]:
    """Cut a long text between words; each piece begins with the last 12 words of the one before."""
    at = 0
    while len(text) - at > _PIECE_SIZE:
        end = text.rfind(b" ", at, at + _PIECE_SIZE)
        head = text[at : max(end, at)].rsplit(None, WORDS - 1)
        if len(head) < WORDS:
            break  # words of a size that no language has: take the rest whole
        yield text[at:end]
        at += len(head[0])
    yield text[at:]


def _hash_pieces(pieces: Sequence[bytes], owners: Sequence[int]) -> Shingles:
    buffer = b" ".join(pieces)
    data = np.frombuffer(buffer, dtype=np.uint8)
    inside = np.concatenate(([False], data != _SPACE, [False]))
    starts = np.flatnonzero(inside[1:-1] & ~inside[:-2])
    ends = np.flatnonzero(inside[1:-1] & ~inside[2:]) + 1
    bounds = np.cumsum([0] + [len(piece) + 1 for piece in pieces])
    piece = np.searchsorted(bounds, starts, side="right") - 1
    count = max(0, len(starts) - WORDS + 1)
    whole = np.flatnonzero(piece[:count] == piece[WORDS - 1 :])
    hashes = _hash_shingles(_hash_words(data, starts, ends), count)[whole]
    numbers = np.asarray(owners, dtype=np.int64)[piece[whole]]
    return Shingles(buffer, hashes, numbers, starts[whole], ends[whole + WORDS - 1])


def _hash_words(data: np.ndarray[Any, np.dtype[np.uint8]], starts: Any, ends: Any) -> _U64:
    """Polynomial hashes of the words, by prefix sums modulo 2**64: the sum of ``byte * base**place``."""
    powers, inverse = _powers(max(2 * _PIECE_SIZE, 1 << len(data).bit_length()))
    prefix = np.zeros(len(data) + 1, dtype=np.uint64)
    np.cumsum(data.astype(np.uint64) * powers[: len(data)], out=prefix[1:])
    return _mixed((prefix[ends] - prefix[starts]) * inverse[starts])


def _hash_shingles(words: _U64, count: int) -> _U64:
    total = np.zeros(count, dtype=np.uint64)
    for at in range(WORDS):
        total = total * np.uint64(_WORD_BASE) + words[at : at + count]
    return _mixed(total)


def _mixed(values: _U64) -> _U64:
    values = (values ^ (values >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return values ^ (values >> np.uint64(29))


@lru_cache(maxsize=2)
def _powers(size: int) -> tuple[_U64, _U64]:
    """The first ``size`` powers of the base and of its inverse modulo 2**64."""
    tables = []
    for base in (_BYTE_BASE, pow(_BYTE_BASE, -1, 2**64)):
        table = np.full(size, base, dtype=np.uint64)
        table[0] = 1
        tables.append(np.multiply.accumulate(table))
    return tables[0], tables[1]


class ReferenceTable:
    """Every shingle of the reference texts: sorted fast hashes, strong hashes, and a bitmap that says no early."""

    def __init__(self, directory: Path) -> None:
        """Map the table that ``write_table`` wrote into ``directory``."""
        self._fast = _mapped(directory / "fast.u64", np.dtype("<u8"))
        self._strong = _mapped(directory / "strong.16", np.dtype("V16"))
        self._bitmap = _mapped(directory / "bitmap.u8", np.dtype(np.uint8))
        self._shift = np.uint64(64 - (8 * max(1, len(self._bitmap))).bit_length() + 1)

    def __len__(self) -> int:
        return len(self._fast)

    def meets(self, texts: Sequence[bytes]) -> list[bool]:
        """For each UTF-8 text, whether it has 13 consecutive words that a reference text has."""
        found = [False] * len(texts)
        if len(self):
            for block in shingles_of(texts):
                self._mark(block, found)
        return found

    def _mark(self, block: Shingles, found: list[bool]) -> None:
        places = (block.hashes >> self._shift).astype(np.int64)
        bits = (self._bitmap[places >> 3] >> (places & 7).astype(np.uint8)) & 1
        candidates = np.flatnonzero(bits)
        left = np.searchsorted(self._fast, block.hashes[candidates], side="left")
        right = np.searchsorted(self._fast, block.hashes[candidates], side="right")
        hits = np.flatnonzero(left < right)
        for at, text in zip(hits.tolist(), block.texts[candidates[hits]].tolist(), strict=True):
            if not found[text]:
                strong = strong_hash(block.words(int(candidates[at])))
                found[text] = any(row.tobytes() == strong for row in self._strong[left[at] : right[at]])


def _mapped(path: Path, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if not path.stat().st_size:
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def write_table(directory: Path, blocks: Iterator[dict[str, np.ndarray[Any, Any]]], count: int, memory: int) -> None:
    """Write a table of ``count`` shingles, given sorted by ``fast`` with ``high`` and ``low`` of the strong hash.

    The bitmap has 16 bits a shingle, but at most ``memory`` bytes.
    """
    bits = max(1024, min(16 * count, 8 * memory)).bit_length() - 1
    bitmap = np.zeros((1 << bits) // 8 if count else 0, dtype=np.uint8)
    with (directory / "fast.u64").open("wb") as fast, (directory / "strong.16").open("wb") as strong:
        for block in blocks:
            hashes = block["fast"].astype("<u8")
            fast.write(hashes.tobytes())
            strong.write(np.stack([block["high"], block["low"]], axis=1).astype(">u8").tobytes())
            places = (hashes >> np.uint64(64 - bits)).astype(np.int64)
            np.bitwise_or.at(bitmap, places >> 3, np.left_shift(1, places & 7).astype(np.uint8))
    (directory / "bitmap.u8").write_bytes(bitmap.tobytes())
