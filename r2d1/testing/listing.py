"""Pages of a listing: which keys and folders come next, and the token to go on with (pure)."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from r2d1.testing.refusals import refused

#: Sorts behind every key that begins with what it is appended to: the byte never occurs in UTF-8.
_LAST = b"\xff"


@dataclass(frozen=True, slots=True)
class Page:
    """Names in the order of their bytes; ``folders`` are the ones that stand for all keys below a delimiter."""

    keys: tuple[bytes, ...]
    folders: tuple[bytes, ...]
    last: bytes | None
    truncated: bool

    @property
    def token(self) -> str | None:
        """What to send as ``continuation-token`` for the next page."""
        if not self.truncated or self.last is None:
            return None
        kind = b"f" if self.last in self.folders else b"k"
        return base64.urlsafe_b64encode(kind + self.last).decode()


def start_of(order: Sequence[bytes], *, prefix: bytes, start_after: bytes, token: str | None) -> int:
    """The index in ``order`` where a page begins; ``InvalidArgument`` for a token that is none of ours."""
    at = bisect_left(order, prefix)
    if token is not None:
        kind, last = _decoded(token)
        return max(at, bisect_left(order, last + _LAST) if kind == b"f" else bisect_right(order, last))
    return max(at, bisect_right(order, start_after)) if start_after else at


def _decoded(token: str) -> tuple[bytes, bytes]:
    try:
        raw = base64.urlsafe_b64decode(token)
    except (binascii.Error, ValueError):
        raw = b""
    if raw[:1] not in (b"f", b"k"):
        raise refused("InvalidArgument", "The continuation token provided is incorrect")
    return raw[:1], raw[1:]


def page_of(order: Sequence[bytes], at: int, *, prefix: bytes, delimiter: bytes, limit: int) -> Page:
    """At most ``limit`` keys and folders of the sorted ``order`` from index ``at`` on."""
    keys: list[bytes] = []
    folders: list[bytes] = []
    last: bytes | None = None
    while at < len(order) and order[at].startswith(prefix):
        if len(keys) + len(folders) == limit:
            return Page(tuple(keys), tuple(folders), last, truncated=True)
        last = order[at]
        head, found, _ = last[len(prefix) :].partition(delimiter) if delimiter else (b"", b"", b"")
        if found:
            last = prefix + head + delimiter
            folders.append(last)
            at = bisect_left(order, last + _LAST, at)
        else:
            keys.append(last)
            at += 1
    return Page(tuple(keys), tuple(folders), last, truncated=False)
