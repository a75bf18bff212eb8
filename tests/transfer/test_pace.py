"""The bandwidth limit, on a clock that only moves when somebody waits."""

from __future__ import annotations

import time

import pytest

from r2d1.objects import pace as pace_room
from r2d1.objects.pace import Pace
from r2d1.tasks import Halt, halting
from tests.contract.objects import Blocks, Gathered

LIMIT = 1_000_000


@pytest.fixture
def clock(monkeypatch):
    """Seconds since the beginning; waiting is all that moves it."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(pace_room, "pause_thread", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return lambda: now[0] - 1000.0


@pytest.mark.parametrize("size", [10_000_000, 3_333_333])
def test_up_and_down_share_the_limit(clock, size):
    """Bytes up and bytes down together take as long as the limit says, within a twentieth."""
    pace, sink = Pace(LIMIT), Gathered()
    up = pace.of_source(Blocks(bytes(size))).blocks(1 << 20)
    for block in up:
        pace.of_sink(sink).write(block)
    assert sink.data == bytes(size)
    assert clock() == pytest.approx(2 * size / LIMIT, rel=0.05)


def test_idle_time_is_not_saved_up(clock):
    """After a pause there is no burst: what was not used is gone."""
    pace = Pace(LIMIT)
    pace.take(1000)
    pace_room.pause_thread(60)
    began = clock()
    for _ in range(100):
        pace.take(LIMIT // 100)
    assert clock() - began > 0.8


def test_a_cancelled_transfer_takes_no_turns(clock):
    """What it would still have moved is not owed by those who go on."""
    pace, halt = Pace(LIMIT), Halt()
    halt.call()
    token = halting.set(halt)
    try:
        pace.take(100 * LIMIT)
    finally:
        halting.reset(token)
    pace.take(1)
    assert clock() < 1
