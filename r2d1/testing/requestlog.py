"""What a double was asked: a bounded log of frozen records, and counts that are kept for ever."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Headers that carry secrets or signatures and are never kept.
_SECRET = frozenset({"authorization", "cookie", "x-amz-security-token"})


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that a log may keep."""
    return {name: value for name, value in headers.items() if name not in _SECRET}


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as it was served. ``status`` is ``None`` when no reply was given; sizes are of bodies, in bytes.

    ``at`` is the double's time when the request arrived, in seconds since the epoch. ``key`` is the prefix for a
    listing, and empty for a DeleteObjects over a socket. ``fault`` names the scripted action that the request met.
    """

    number: int
    at: float
    method: str
    operation: str
    key: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    part_number: int | None = None
    received: int = 0
    sent: int = 0
    status: int | None = None
    code: str = ""
    connection: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    """Requests of one operation, and the bytes of their bodies in both directions."""

    requests: int = 0
    received: int = 0
    sent: int = 0


class RequestLog:
    """The newest ``keep`` records, and counts of all. Thread safe."""

    def __init__(self, keep: int = 20_000) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=keep)
        self._counts: dict[str, Count] = {}
        self._lock = threading.Lock()
        self._numbers = 0

    def next_number(self) -> int:
        """A number for a request, from 1, in the order of arrival."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    def add(self, record: RequestRecord) -> None:
        with self._lock:
            self._records.append(record)
            old = self._counts.get(record.operation, Count())
            self._counts[record.operation] = Count(
                old.requests + 1, old.received + record.received, old.sent + record.sent
            )

    def records(self) -> list[RequestRecord]:
        """A copy, in the order in which the requests were answered."""
        with self._lock:
            return list(self._records)

    def newest(self) -> RequestRecord:
        """The record of the request that was answered last. ``IndexError`` when there is none."""
        with self._lock:
            return self._records[-1]

    def counts(self) -> dict[str, Count]:
        """A copy of the counts by operation."""
        with self._lock:
            return dict(self._counts)

    def clear(self) -> None:
        """Forget records and counts."""
        with self._lock:
            self._records.clear()
            self._counts.clear()
