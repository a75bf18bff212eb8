"""The only retry loop, and the brake that slows every request of a client when a server pushes back."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from r2d1.errors import RemoteError, Throttled
from r2d1.events import Retried, Teller

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long: full jitter between 0 and ``base_s`` doubled per attempt, at most ``cap_s``."""

    attempts: int = 8
    budget_s: float = 300.0
    base_s: float = 0.5
    cap_s: float = 20.0
    longest_wait_s: float = 300.0  # how much of a server's Retry-After is obeyed


@dataclass(slots=True)
class Brake:
    """One pause shared by all requests of a client: whoever is told to slow down slows everybody."""

    rng: random.Random = field(default_factory=random.Random)
    listeners: list[Callable[[], None]] = field(default_factory=list)  # told whenever it is pressed
    _until: float = 0.0
    _pressure: float = 0.0

    async def wait(self) -> None:
        """Wait until the pause is over; spread the waiters so that they do not all start at once."""
        while (left := self._until - anyio.current_time()) > 0:  # noqa: ASYNC110 - it may be prolonged meanwhile
            await anyio.sleep(left + self.rng.uniform(0, min(1.0, self._pressure)))

    def press(self, seconds: float) -> None:
        """Pause everybody for about ``seconds``, doubling what repeated pressure adds (at most 30 s).

        What many requests in flight are told at the same time counts once.
        """
        now = anyio.current_time()
        if now >= self._until:
            self._pressure = min(30.0, max(0.1, self._pressure * 2))
        self._until = max(self._until, now + max(seconds, self.rng.uniform(0, self._pressure)))
        for told in self.listeners:
            told()

    def ease(self) -> None:
        """A request succeeded: recover slowly."""
        self._pressure *= 0.9
        if self._pressure < 0.05:
            self._pressure = 0.0


def is_transient(error: RemoteError) -> bool:
    return error.transient


async def retried(
    func: Callable[[], Awaitable[T]],
    *,
    policy: RetryPolicy,
    brake: Brake,
    tell: Teller,
    again: Callable[[RemoteError], bool] = is_transient,
) -> T:
    """Await ``func`` until it succeeds, fails for good, or the policy's attempts or seconds are used up.

    The error that leaves carries the number of attempts made.
    """
    started = anyio.current_time()
    attempt = 0
    while True:
        attempt += 1
        await brake.wait()
        try:
            result = await func()
        except RemoteError as error:
            error.attempts = attempt
            delay = delay_before(attempt, error, policy, brake.rng)
            if isinstance(error, Throttled) or error.status in (429, 500, 503):
                brake.press(min(error.retry_after or 0.0, policy.longest_wait_s))
            spent = anyio.current_time() - started
            if not again(error) or attempt >= policy.attempts or spent + delay > policy.budget_s:
                raise
            tell(Retried(error.operation, error.subject, attempt, delay, str(error)))
            await anyio.sleep(delay)
        else:
            brake.ease()
            return result


def delay_before(attempt: int, error: RemoteError, policy: RetryPolicy, rng: random.Random) -> float:
    """Full jitter, but never sooner than the server's own ``Retry-After`` (capped)."""
    jitter = rng.uniform(0, min(policy.cap_s, policy.base_s * 2 ** (attempt - 1)))
    return max(jitter, min(error.retry_after or 0.0, policy.longest_wait_s))
