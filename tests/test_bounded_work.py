"""Bounded task groups: never more at once than asked for, and one error out."""

from __future__ import annotations

import anyio
import pytest

from r2d1.tasks import first_error, one_error, run_bounded


@pytest.mark.parametrize("limit", [0, 1, 3, 100])
async def test_every_item_is_worked_on_within_the_limit(limit):
    """All items, each once, in order, with at most ``limit`` under way (one, if the limit is none)."""
    at_once, most, done = 0, 0, []

    async def work(item):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await anyio.sleep(0)
        done.append(item)
        at_once -= 1

    await run_bounded(limit, work, range(20))
    assert sorted(done) == list(range(20))
    assert most == min(max(limit, 1), 20)


async def test_nothing_to_do():
    """No items, no work."""
    await run_bounded(3, anyio.sleep, [])


async def test_the_first_failure_stops_the_rest():
    """The error that leaves is the task's own, not a group of them, and what was under way is cancelled."""
    begun, ended = [], []

    async def work(item):
        begun.append(item)
        if item == 2:
            raise ValueError("item 2")
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(item)

    with pytest.raises(ValueError, match="item 2"):
        await run_bounded(3, work, range(100))
    assert begun == [0, 1, 2]
    assert sorted(ended) == [0, 1]


async def test_items_are_taken_when_they_are_needed():
    """An endless iterable is no endless memory."""
    taken = []

    def items():
        for n in range(1000):
            taken.append(n)
            yield n

    async def work(item):
        if item == 5:
            raise ValueError
        await anyio.sleep(0)

    with pytest.raises(ValueError):
        await run_bounded(2, work, items())
    assert len(taken) < 12


def test_an_error_is_preferred_to_an_interrupt_and_found_in_depth():
    """Out of nested groups comes one error: an ordinary one, if there is one."""
    ordinary = ValueError("x")
    assert first_error(BaseExceptionGroup("g", [KeyboardInterrupt(), ExceptionGroup("h", [ordinary])])) is ordinary
    interrupt = KeyboardInterrupt()
    assert first_error(BaseExceptionGroup("g", [interrupt])) is interrupt
    assert first_error(ordinary) is ordinary


def test_what_is_no_group_passes():
    """An error that was never in a group stays itself, with its cause."""
    with pytest.raises(ValueError, match="plain"), one_error():
        raise ValueError("plain")
