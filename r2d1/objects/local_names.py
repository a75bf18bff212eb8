"""How keys become file names and back: readable, one to one, on file systems that fold case too (pure).

A segment of a key is the name of a file or folder as it is, except:

- ``%`` and control characters are percent-encoded, as are ``.`` and ``..`` and, at the top, ``.r2d1``;
- on a file system that does not tell ``A`` from ``a``, capitals are percent-encoded;
- an empty segment (``a//b``, ``a/``) is ``%``;
- a segment whose name would be too long is its beginning, ``%~`` and a hash, and the whole is noted beside;
- where a key is both an object and a folder (``x`` and ``x/y``), the object's file has a ``%`` at its end.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable
from urllib.parse import quote, unquote

from r2d1.errors import NameRefused

#: The folder at the top of the bucket that holds the store's own files.
OWN = ".r2d1"

#: Marks the file of an object whose plain name is taken by a folder.
MARK = "%"

MAX_KEY_BYTES = 1024

#: File systems take 255 bytes; a mark must still fit.
_MAX_NAME_BYTES = 240
_SHORTENED = "%~"
_UNSAFE = re.compile(r"[%\x00-\x1f\x7f]")


def checked(key: str) -> str:
    """The key in its one spelling (NFC); ``NameRefused`` when it is not one."""
    key = unicodedata.normalize("NFC", key)
    try:
        size = len(key.encode())
    except UnicodeEncodeError as exc:
        raise NameRefused(f"{key!a}: a key must be text that UTF-8 can hold") from exc
    if not 1 <= size <= MAX_KEY_BYTES or "\x00" in key:
        raise NameRefused(f"{key!a}: a key has 1 to {MAX_KEY_BYTES} bytes and no NUL")
    return key


def names_of(key: str, *, folds_case: bool) -> list[str]:
    """The names of the folders and, last, of the file of a key."""
    return [_name_of(segment, folds_case, at == 0) for at, segment in enumerate(key.split("/"))]


def long_segments(key: str, *, folds_case: bool) -> dict[str, str]:
    """The segments whose names are shortened, by name: they must be noted to be read back."""
    names = names_of(key, folds_case=folds_case)
    return {name: segment for name, segment in zip(names, key.split("/"), strict=True) if _SHORTENED in name}


def segment_of(name: str, *, folds_case: bool, at_top: bool, noted: Callable[[str], str | None]) -> str | None:
    """The segment that a folder's (or an unmarked file's) name stands for; None when it is no name of ours.

    ``noted`` gives the segment behind a shortened name, or None.
    """
    name = unicodedata.normalize("NFC", name)
    segment = noted(name) if _SHORTENED in name else _decoded(name)
    try:
        is_ours = segment is not None and _name_of(segment, folds_case, at_top) == name
    except UnicodeEncodeError:
        return None
    return segment if is_ours else None


def _decoded(name: str) -> str:
    return "" if name == MARK else unquote(name, errors="surrogateescape")


def unmarked(name: str) -> str:
    """A file's name without the mark."""
    return name[:-1] if name.endswith(MARK) and name != MARK else name


def _name_of(segment: str, folds_case: bool, at_top: bool) -> str:
    if not segment:
        return MARK
    if segment in (".", "..") or (at_top and segment == OWN):
        return "%2E" + segment[1:]
    name = _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", segment)
    if folds_case:
        name = "".join(quote(char, safe="") if char.casefold() != char else char for char in name)
    if len(name.encode()) <= _MAX_NAME_BYTES:
        return name
    beginning = segment.encode()[:60].decode(errors="ignore")
    readable = "".join(char for char in beginning if char.casefold() == char and not _UNSAFE.match(char))
    return f"{readable}{_SHORTENED}{hashlib.sha256(segment.encode()).hexdigest()[:32]}"
