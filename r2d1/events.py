"""What r2d1 tells about itself: frozen events, given to one observer.

An observer is any callable that takes one event. It is called on the event loop and must not block;
an exception it raises is logged once and does not stop a transfer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("r2d1")


@dataclass(frozen=True, slots=True)
class Event:
    """Root of all events."""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """Something an operator should read once. ``level`` is ``"info"``, ``"warning"`` or ``"error"``."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class WatchStarted(Event):
    directory: str
    job_id: str
    backend: str
    poll_every: float


@dataclass(frozen=True, slots=True)
class ShipStarted(Event):
    """A checkpoint begins to be shipped: what is to be sent, in files and bytes."""

    job_id: str
    name: str
    epoch: int
    files: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class BytesMoved(Event):
    """``count`` bytes of ``name`` have arrived: at the store (``up``) or on the disk (``down``)."""

    job_id: str
    name: str
    path: str
    direction: str
    count: int


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """The head names this ship now; ``seconds`` since the shipping began."""

    job_id: str
    name: str
    epoch: int
    prefix: str
    total_bytes: int
    sent_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AlreadyThere(Event):
    """Nothing was sent: the bucket holds this checkpoint already."""

    job_id: str
    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ShipFailed(Event):
    """A checkpoint could not be shipped. ``again`` says when it is tried next."""

    job_id: str
    name: str
    error: str
    again: str


@dataclass(frozen=True, slots=True)
class RowWritten(Event):
    job_id: str
    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RowOwed(Event):
    """D1 could not be written; the row is owed and will be written later."""

    job_id: str
    name: str
    error: str


@dataclass(frozen=True, slots=True)
class Retried(Event):
    """An attempt failed and another one follows after ``delay`` seconds."""

    operation: str
    subject: str
    attempt: int
    delay: float
    error: str


@dataclass(frozen=True, slots=True)
class PullStarted(Event):
    uri: str
    name: str
    files: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class PullFinished(Event):
    uri: str
    name: str
    directory: str
    cached: bool
    total_bytes: int
    fetched_bytes: int
    seconds: float


Observer = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer of those who do not want to know."""


class Teller:
    """Hands events to an observer and keeps an observer's own failure away from the transfer."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer or ignore
        self._complained = False
        self._said: set[str] = set()

    def __call__(self, event: Event) -> None:
        try:
            self._observer(event)
        except Exception:
            if not self._complained:
                self._complained = True
                log.exception("the observer failed on %s; later failures are not reported", type(event).__name__)

    def notice(self, level: str, text: str, *, once: str | None = None) -> None:
        """Tell a notice; with ``once``, only the first of that name (the set is bounded)."""
        if once is not None:
            if once in self._said or len(self._said) >= 10_000:
                return
            self._said.add(once)
        self(Notice(level, text))
