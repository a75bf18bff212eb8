"""Tokenizers: texts to ids without special tokens, shifted by three, each document closed by the end token."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from r2d1.datasets.layout import MAX_TOKEN_ID
from r2d1.datasets.manifest import TokenizerPin
from r2d1.datasets.mixes import TokenizerEntry
from r2d1.errors import ConfigError, FormatError, IntegrityError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Ids 0, 1 and 2 are PAD, MASK and CLS; every id of a tokenizer is shifted past them.
SHIFT = 3
TOKENIZER_FILE = "tokenizer.json"
#: What ends a document of a ``tokenizer.json`` whose registry entry names no ``end_token``.
USUAL_END = "<|endoftext|>"
_BYTES_DEFINITION = "ht-byte-tokenizer-v1|vocab=259|bytes=0..255|bos=256|eos=257|pad=258"
_BYTES_END = 257


class DocumentTokenizer(Protocol):
    """What turns documents into ids."""

    pin: TokenizerPin

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.uint16]]:
        """Shifted ids of each UTF-8 text, the end token last.

        ``UnicodeDecodeError`` for what is not UTF-8, ``OverflowError`` for an id above 65535.
        """


class ByteTokenizer:
    """256 bytes, BOS 256, EOS 257, PAD 258, before the shift."""

    pin = TokenizerPin("ht-byte-259", hashlib.sha256(_BYTES_DEFINITION.encode()).hexdigest())

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.uint16]]:
        """The bytes themselves are the ids."""
        return [_closed(np.frombuffer(text, dtype=np.uint8), _BYTES_END) for text in texts]


class FileTokenizer:
    """A Hugging Face ``tokenizer.json`` that has the pinned hash; its truncation and padding are switched off."""

    def __init__(self, path: Path, entry: TokenizerEntry) -> None:
        """``IntegrityError`` for another file, ``ConfigError`` when it is missing or has no end token."""
        self.pin = TokenizerPin(entry.id, entry.sha256)
        self._tokenizer = _read_tokenizer(path, entry)
        name = entry.end_token or USUAL_END
        end = self._tokenizer.token_to_id(name)
        if end is None:
            raise ConfigError(
                f"{path} has no token {name!r} to end a document with;"
                f" name the right one as end_token of tokenizer {entry.id} in the registry"
            )
        self._end = int(end)

    def encode(self, texts: Sequence[bytes]) -> list[NDArray[np.uint16]]:
        """All texts in one batch, on the library's threads."""
        decoded = [text.decode() for text in texts]
        # encode_batch_fast leaves out the offsets into the text, which nobody reads here
        encodings = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        return [_closed(np.array(encoding.ids, dtype=np.int64), self._end) for encoding in encodings]


def _closed(ids: NDArray[Any], end: int) -> NDArray[np.uint16]:
    top = max(int(ids.max(initial=0)), end) + SHIFT
    if top > MAX_TOKEN_ID:
        raise OverflowError(f"token id {top} (after the shift by {SHIFT}) is above {MAX_TOKEN_ID}")
    closed = np.empty(len(ids) + 1, dtype="<u2")
    closed[:-1] = ids
    closed[-1] = end
    closed += SHIFT
    return closed


def _read_tokenizer(path: Path, entry: TokenizerEntry) -> Any:
    try:
        from tokenizers import Tokenizer  # the byte tokenizer does without it
    except ModuleNotFoundError as exc:
        raise ConfigError("a tokenizer.json needs the library tokenizers: pip install r2d1[datasets]") from exc
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{path} cannot be read ({exc.strerror}); put {entry.filename} of {entry.repo}"
            f" at revision {entry.revision} there"
        ) from exc
    if (found := hashlib.sha256(data).hexdigest()) != entry.sha256:
        raise IntegrityError(f"{path} has the sha256 {found}, the registry pins {entry.sha256} for {entry.id}")
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as exc:  # the library raises plain Exception for whatever it cannot read
        raise FormatError(f"{path} cannot be read as a tokenizer: {exc}") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@lru_cache(maxsize=2)
def open_tokenizer(cache: Path, entry: TokenizerEntry | None) -> DocumentTokenizer:
    """The tokenizer of a mix: ``<cache>/tokenizer.json`` held to its pin, or the byte tokenizer for ``None``."""
    return ByteTokenizer() if entry is None else FileTokenizer(cache / TOKENIZER_FILE, entry)
