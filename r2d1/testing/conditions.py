"""Conditional requests and ranges: what the headers ask for, decided without I/O.

Sources: RFC 9110 sections 13 and 14, https://developers.cloudflare.com/r2/api/s3/conditional-operations/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from r2d1.testing.refusals import refused

_ETAG = re.compile(r'(?:W/)?"([^"]*)"|([^",\s]+)')
_RANGE = re.compile(r"bytes=(?:(\d{1,19})-(\d{1,19})?|-(\d{1,19}))", re.ASCII)


def _etags(value: str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return tuple(quoted or bare for quoted, bare in _ETAG.findall(value))


def _seconds(value: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date; one that cannot be read is ignored, as RFC 9110 wants it."""
    try:
        return None if value is None else parsedate_to_datetime(value).timestamp()
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Conditions:
    """The four conditional headers. ETags come without quotes, ``"*"`` included; times in seconds since the epoch."""

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None
    if_modified_since: float | None = None
    if_unmodified_since: float | None = None

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Conditions:
        return cls(
            if_match=_etags(headers.get("if-match")),
            if_none_match=_etags(headers.get("if-none-match")),
            if_modified_since=_seconds(headers.get("if-modified-since")),
            if_unmodified_since=_seconds(headers.get("if-unmodified-since")),
        )

    @property
    def is_empty(self) -> bool:
        return self == NONE

    def is_preconditions_met(self, etag: str | None, modified: float) -> bool:
        """Do ``If-Match`` and ``If-Unmodified-Since`` hold? ``etag`` is ``None`` when there is no object."""
        if self.if_match is not None:
            return etag is not None and ("*" in self.if_match or etag in self.if_match)
        if self.if_unmodified_since is not None:
            return etag is None or int(modified) <= self.if_unmodified_since
        return True

    def is_changed(self, etag: str | None, modified: float) -> bool:
        """Do ``If-None-Match`` and ``If-Modified-Since`` hold?"""
        if self.if_none_match is not None:
            return etag is None or not ("*" in self.if_none_match or etag in self.if_none_match)
        if self.if_modified_since is not None:
            return etag is not None and int(modified) > self.if_modified_since
        return True


NONE = Conditions()


@dataclass(frozen=True, slots=True)
class RangeAsked:
    """A ``Range`` header: from ``start`` to ``last`` (included, open when ``None``), or the last ``suffix`` bytes."""

    start: int = 0
    last: int | None = None
    suffix: int | None = None

    @classmethod
    def parse(cls, header: str) -> RangeAsked:
        """One range only. R2 answers anything else, several ranges included, with 400 and ``bytes=-0`` with 416."""
        match = _RANGE.fullmatch(header.strip())
        if match is None:
            raise refused(
                "InvalidArgument",
                "range must be in format 'bytes=start-end', 'bytes=start-' or 'bytes=-suffix'.'",
            )
        start, last, suffix = match.groups()
        if start is None:
            if int(suffix) == 0:
                raise refused("InvalidRange")
            return cls(suffix=int(suffix))
        if last is not None and int(start) > int(last):
            raise refused("InvalidArgument", "range must be positive.")
        return cls(start=int(start), last=None if last is None else int(last))

    def of(self, size: int) -> tuple[int, int]:
        """Start and stop (excluded) within an object of ``size`` bytes, clamped to its end; else ``InvalidRange``."""
        if self.suffix is not None and size:
            return max(0, size - self.suffix), size
        if size == 0 or self.start >= size:
            raise refused("InvalidRange")
        return self.start, size if self.last is None else min(self.last + 1, size)
