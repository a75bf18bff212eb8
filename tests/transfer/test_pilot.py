"""The number of pieces in flight on links of every kind, in simulated time: what is found, and how soon."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from r2d1.transfer.pilot import Pilot, Sight

MB = 1e6
TICK = 0.05
START, MOST = 8, 128


@dataclass(slots=True)
class Link:
    """Pieces of 16 MiB over connections of a limited rate each, and a limited rate in all.

    A piece moves nothing for ``latency_s`` after it began.
    """

    each: float
    total: float
    latency_s: float = 0.0
    now: float = 0.0
    moved: float = 0.0
    began: list[float] = field(default_factory=list)

    def run(self, pilot: Pilot, seconds: float, *, wanted: bool = True) -> list[tuple[float, int]]:
        """``(seconds, limit)`` at each look."""
        seen = []
        until = self.now + seconds
        while self.now < until:
            self.began = self.began[: pilot.limit]
            self.began += [self.now] * (pilot.limit - len(self.began))
            self.now += TICK
            fresh = sum(self.now - began <= self.latency_s for began in self.began)
            self.moved += min((len(self.began) - fresh) * self.each, self.total) * TICK
            pilot.see(Sight(self.now, int(self.moved), len(self.began), fresh, wanted))
            seen.append((self.now, pilot.limit))
        return seen

    def best(self) -> float:
        return min(MOST * self.each, self.total)

    def rate(self, limit: int) -> float:
        return min(limit * self.each, self.total)


def pilot() -> Pilot:
    return Pilot(start=START, most=MOST)


@pytest.mark.parametrize("latency", [0.0, 0.04, 0.15])
@pytest.mark.parametrize("each", [10 * MB, 50 * MB])
@pytest.mark.parametrize("total", [60 * MB, 200 * MB, 600 * MB, 12_500 * MB])
def test_nine_tenths_of_the_link_in_three_seconds(latency, each, total):
    """From 3 s on, throughput is at least 0.9 of what the best number would give, but for the probes."""
    link, found = Link(each, total, latency_s=4 * latency), pilot()
    seen = link.run(found, 30)
    late = [limit for at, limit in seen if at > 3]
    good = [limit for limit in late if link.rate(limit) >= 0.9 * link.best()]
    assert len(good) >= 0.9 * len(late)


def test_no_more_than_pays():
    """On a link that eight connections fill, their number stays about eight: more would only cost memory."""
    link, found = Link(10 * MB, 80 * MB), pilot()
    seen = link.run(found, 60)
    assert max(limit for at, limit in seen if at > 3) <= 2 * START


def test_a_link_that_grows_is_found_again():
    """After an hour in which a tenth was enough, what the link can carry now is used."""
    link, found = Link(10 * MB, 80 * MB), pilot()
    link.run(found, 60)
    link.total = 800 * MB
    link.run(found, 60)
    assert link.rate(found.limit) >= 0.9 * link.best()


def test_complaints_halve_and_it_recovers():
    """Several complaints in one second are one; afterwards it climbs back to where it was, and not at once."""
    link, found = Link(50 * MB, 2_000 * MB), pilot()
    link.run(found, 10)
    before = found.limit
    for _ in range(20):
        found.complain(link.now)
    assert found.limit == before // 2
    soon = link.run(found, 1)
    assert soon[-1][1] < before
    link.run(found, 20)
    assert found.limit >= 0.8 * before


def test_complaints_go_down_to_one():
    """A server that goes on complaining is asked for a piece or two at a time, never for none."""
    link, found = Link(50 * MB, 2_000 * MB), pilot()
    for _ in range(20):
        link.run(found, 1.2)
        found.complain(link.now)
    assert found.limit in (1, 2)


def test_what_is_not_asked_for_teaches_nothing():
    """A transfer that is short of pieces, not of turns, leaves the number as it is."""
    link, found = Link(10 * MB, 800 * MB), pilot()
    link.run(found, 20, wanted=False)
    assert found.limit == START
