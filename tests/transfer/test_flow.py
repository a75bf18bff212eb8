"""Turns for pieces: bounded, in order, given back whatever happens, and more or fewer as it pays."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from r2d1.retry import Brake
from r2d1.transfer.flow import Flow, Turn, spread


def pieces(count: int):
    left = iter(range(count))

    async def following() -> int | None:
        return next(left, None)

    return following


async def all_free(flow: Flow) -> None:
    """Every turn can be had: none was lost."""
    with anyio.fail_after(10):
        turns = [await flow.take() for _ in range(flow.limit)]
    for turn in turns:
        turn.end()


async def test_no_more_than_the_limit():
    """However many pieces there are, so many are in flight, and each is done once."""
    flow, at_once, most, done = Flow(fixed=3), 0, 0, []

    async def work(turn: Turn, piece: int) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await anyio.lowlevel.checkpoint()
        at_once -= 1
        done.append(piece)

    await spread(flow, pieces(50), work)
    assert most == 3
    assert sorted(done) == list(range(50))
    await all_free(flow)


async def test_first_come_first_served():
    """Pieces of a small file wait for one turn among those of large ones, not for all of them."""
    flow, order = Flow(fixed=1), []

    async def work(turn: Turn, piece: str) -> None:
        order.append(piece)
        await anyio.lowlevel.checkpoint()

    async def send(name: str, count: int) -> None:
        left = iter([name] * count)

        async def following() -> str | None:
            return next(left, None)

        await spread(flow, following, work)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send, "large", 20)
        tasks.start_soon(send, "small", 1)
    assert "small" in order[:3]


async def test_a_failure_gives_every_turn_back():
    """One error comes out, the rest is cancelled (also what had not begun), and no turn is lost."""
    flow = Flow(fixed=4)

    async def work(turn: Turn, piece: int) -> None:
        if piece == 2:
            raise ValueError("no")
        await anyio.sleep_forever()

    with pytest.raises(ValueError, match="no"):
        await spread(flow, pieces(50), work)
    await all_free(flow)


@pytest.mark.parametrize("native", [True, False])
async def test_cancelling_gives_every_turn_back(native):
    """Cancelled by anyio or by asyncio, with others waiting: they get their turns."""
    flow = Flow(fixed=2)
    began = anyio.Event()

    async def work(turn: Turn, piece: int) -> None:
        began.set()
        await anyio.sleep_forever()

    async def transfer() -> None:
        await spread(flow, pieces(50), work)

    if native:
        task = asyncio.create_task(transfer())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(transfer)
            await began.wait()
            tasks.cancel_scope.cancel()
    await all_free(flow)


async def test_a_turn_that_is_called_and_cancelled_at_once_is_not_lost():
    """The one that waits behind it has it instead."""
    flow = Flow(fixed=1)
    first = await flow.take()
    waiting = asyncio.create_task(flow.take())
    behind = asyncio.create_task(flow.take())
    await asyncio.sleep(0)
    first.end()
    waiting.cancel()
    turn = await asyncio.wait_for(behind, 10)
    turn.end()
    await all_free(flow)


async def test_ending_twice_frees_one_turn():
    flow = Flow(fixed=1)
    turn = await flow.take()
    turn.end()
    turn.end()
    again = await flow.take()
    waiting = asyncio.create_task(flow.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    again.end()
    (await waiting).end()


async def test_it_grows_while_that_pays():
    """Pieces that move at the same speed however many there are: their number grows beyond the first eight."""
    flow, enough = Flow(most=40), anyio.Event()

    async def work(turn: Turn, piece: int) -> None:
        while not enough.is_set():
            turn.moved(1 << 20)
            await anyio.sleep(0.01)
            if flow.limit > 8:
                enough.set()

    with anyio.fail_after(30):
        await spread(flow, pieces(100), work)
    assert 8 < flow.limit <= 40


async def test_a_brake_that_is_pressed_halves():
    """What the server says to one request holds for all; a fixed number stays what it was asked to be."""
    flow, fixed, brake = Flow(most=40), Flow(fixed=6), Brake()
    brake.listeners += [flow.pushed_back, fixed.pushed_back]
    brake.press(0.0)
    assert (flow.limit, fixed.limit) == (4, 6)


async def test_nothing_runs_while_nothing_moves():
    """No timer is left once the last piece is done."""
    flow = Flow(most=40)
    (await flow.take()).end()
    with anyio.fail_after(10):
        while flow.is_watched:  # noqa: ASYNC110 - the timer has no event to wait for
            await anyio.sleep(0.01)
