"""What a courier says of itself: the result of a ship, the report of a flush, its status now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Shipped:
    """One checkpoint that the bucket has. ``is_new`` is False when nothing had to be sent.

    ``prefix`` is where its objects lie, ``sent_bytes`` what this call sent, ``seconds`` how long it took.
    """

    job_id: str
    name: str
    epoch: int
    prefix: str
    total_bytes: int
    sent_bytes: int = 0
    seconds: float = 0.0
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class ShipReport:
    """What a flush found: everything with a sidecar is in the bucket.

    ``shipped`` are the checkpoints committed by this courier so far (the last thousand), ``already`` counts
    those that were there, ``rows_owed`` names checkpoints whose D1 row could not be written yet.
    """

    shipped: tuple[Shipped, ...] = ()
    already: int = 0
    rows_owed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """A courier now. Names are ``<job>/<name>``; ``rate`` is bytes per second over the last ten seconds.

    ``parked`` is what the store would not take and why: what waits for its next turn, and, until that is over, what is
    queued or in flight again. The reasons are remembered from one courier of a directory to the next.
    """

    queued: tuple[str, ...] = ()
    in_flight: tuple[str, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    parked: Mapping[str, str] = field(default_factory=dict)
    rows_owed: tuple[str, ...] = ()
    sent_bytes: int = 0
    rate: float = 0.0
    last_commit: Shipped | None = None
    last_commit_at: float | None = None
    last_error: str | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether nothing has failed and nothing is parked."""
        return not self.failed and not self.parked
