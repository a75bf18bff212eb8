"""How many pieces ought to be in flight: found by trying more while more pays, and less when it does not (pure).

No constant suits both a laptop and a node on 100 Gbit/s: one R2 stream carries some tens of MB/s, whatever the
link. So the number grows in large steps while each step raises the throughput, then is held and probed both ways
from time to time; a server that pushes back halves it, and it climbs back slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: One step up while it pays, and by how much it must pay to be taken again, or to be kept at all.
_STEP, _PAYS_WELL, _PAYS = 2.5, 1.2, 1.05

#: Steps of a probe, and what a smaller number may cost to be preferred.
_PROBE_UP, _PROBE_DOWN, _COSTS = 1.25, 0.8, 0.98

#: Seconds: until new connections are in swing; of a measurement while growing, and while probing; between probes.
_SETTLE_S, _WINDOW_S, _LONG_WINDOW_S, _PROBE_EVERY_S = 0.1, 0.15, 1.0, 4.0

#: Seconds after which a step is measured though some of its pieces have not moved yet.
_PATIENCE_S = 3.0

#: Seconds in which several complaints count as one, and between steps on the way back.
_COMPLAINT_S, _RECOVERY_S = 1.0, 0.5


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen at one moment: seconds, bytes moved so far, pieces in flight, those that have not moved a byte
    yet, and whether more pieces wait for their turn.
    """

    now: float
    moved: int
    in_flight: int
    fresh: int
    wanted: bool


class Pilot:
    """Decides ``limit``; told what is seen twenty times a second while anything is in flight."""

    def __init__(self, *, start: int, most: int) -> None:
        self.limit = min(start, most)
        self._most = most
        self._mode = "grow"
        self._base: tuple[int, float] | None = None  # the limit to go back to, and the rate it had
        self._since = -math.inf  # when the limit last changed
        self._settled: float | None = None
        self._window: tuple[float, int] | None = None
        self._held_since = 0.0
        self._next_probe = _PROBE_UP
        self._ceiling = 0
        self._complaint = -math.inf

    def complain(self, now: float) -> None:
        """The server pushed back: half as many, at once."""
        if now - self._complaint < _COMPLAINT_S:
            return
        self._complaint = now
        self._ceiling = max(self.limit, self._ceiling // 2) if self._mode == "recover" else self.limit
        self._mode = "recover"
        self._set(max(1, self.limit // 2), now)

    def see(self, sight: Sight) -> int:
        """The limit from now on."""
        if self._mode == "recover":
            self._recover(sight.now)
        elif (rate := self._measure(sight)) is not None:
            if self._mode == "grow":
                self._grow(rate, sight.now)
            elif self._mode == "hold":
                self._hold(rate, sight.now)
            else:
                self._judge_probe(rate, sight.now)
        return self.limit

    def _measure(self, sight: Sight) -> float | None:
        """The rate since the limit's pieces came into swing, when it was measured for long enough."""
        if not sight.wanted or sight.in_flight < self.limit:
            self._window = self._settled = None  # the limit is not what holds the transfer up: nothing is learnt
            return None
        if self._settled is None:
            is_in_swing = sight.fresh <= sight.in_flight // 8 or sight.now - self._since > _PATIENCE_S
            self._settled = sight.now if is_in_swing else None
            return None
        if self._window is None:
            if sight.now - self._settled >= _SETTLE_S:
                self._window = (sight.now, sight.moved)
            return None
        began, moved = self._window
        length = _WINDOW_S if self._mode == "grow" else _LONG_WINDOW_S
        if sight.now - began < length:
            return None
        self._window = (sight.now, sight.moved)
        return (sight.moved - moved) / (sight.now - began)

    def _grow(self, rate: float, now: float) -> None:
        if self._base is not None and rate < self._base[1] * _PAYS_WELL:
            if rate < self._base[1] * _PAYS:
                self._set(self._base[0], now)
            self._rest(now)
        elif self.limit == self._most:
            self._rest(now)
        else:
            self._base = (self.limit, rate)
            self._set(math.ceil(self.limit * _STEP), now)

    def _hold(self, rate: float, now: float) -> None:
        if now - self._held_since < _PROBE_EVERY_S:
            return
        self._base = (self.limit, rate)
        probed = self.limit * self._next_probe
        self._mode = "probe"
        self._set(math.ceil(probed) if self._next_probe > 1 else int(probed), now)

    def _judge_probe(self, rate: float, now: float) -> None:
        assert self._base is not None
        is_up = self._next_probe > 1
        if rate >= self._base[1] * (_PAYS if is_up else _COSTS):
            if is_up:
                self._base, self._mode = (self.limit, rate), "grow"
                self._set(math.ceil(self.limit * _STEP), now)
                return
        else:
            self._set(self._base[0], now)
            self._next_probe = _PROBE_DOWN if is_up else _PROBE_UP
        self._rest(now)

    def _recover(self, now: float) -> None:
        if now - max(self._since, self._complaint) < _RECOVERY_S:
            return
        self._set(min(self._ceiling, self.limit + max(1, self._ceiling // 16)), now)
        if self.limit >= self._ceiling:
            self._ceiling = 0
            self._rest(now)

    def _rest(self, now: float) -> None:
        self._mode, self._held_since, self._base = "hold", now, None

    def _set(self, limit: int, now: float) -> None:
        self.limit = max(1, min(limit, self._most))
        self._since = now
        self._window = self._settled = None
