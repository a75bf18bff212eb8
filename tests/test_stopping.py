"""``stop``: a courier's block ends at once and quietly, and takes nobody's error or cancellation for its own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from r2d1.courier import AsyncCourier
from r2d1.errors import Closed
from r2d1.events import Committed
from r2d1.fetcher import AsyncFetcher
from r2d1.remote import Remote
from r2d1.settings import Settings
from r2d1.sync import Courier, Fetcher
from r2d1.testing import Fault, Gate, Hold, MemoryStore, S3Double, When
from tests.checkpoints import random_files, write_checkpoint
from tests.remote_ends import Told, assert_nothing_left, open_courier


def a_courier() -> AsyncCourier:
    return AsyncCourier(Settings(), given=Remote(MemoryStore(), None))


@asynccontextmanager
async def held_up(s3: S3Double, directory: Path):
    """A courier whose first upload does not end."""
    write_checkpoint(directory, "chk_1", 1, random_files(a=100))
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject"), Hold(gate)))
    try:
        async with open_courier(s3) as courier:
            await courier.watch(directory, "job")
            await gate.arrived.wait()
            yield courier
    finally:
        gate.release()


async def test_leaving_after_a_stop_is_quiet(s3, tmp_path):
    """Nothing is drained, nothing raised, nothing left running; the next courier ships what was left."""
    async with held_up(s3, tmp_path) as courier:
        courier.stop()
        courier.stop()
    courier.stop()
    assert_nothing_left(s3, tmp_path)
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job")
    assert [event.name for event in told.of(Committed)] == ["chk_1"]


async def test_what_the_block_awaits_ends(s3, tmp_path):
    """A stop from beside wakes a block that waits, and goes on after it."""
    async with held_up(s3, tmp_path) as courier:
        asyncio.get_running_loop().call_soon(courier.stop)
        await anyio.sleep_forever()
    assert_no_cancellation_pending()
    await anyio.lowlevel.checkpoint()


def assert_no_cancellation_pending() -> None:
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_drain_under_way_ends(s3, tmp_path):
    """Whoever leaves the block is told nothing: somebody has asked for it."""
    async with held_up(s3, tmp_path) as courier:
        asyncio.get_running_loop().call_soon(courier.stop)
    assert_no_cancellation_pending()


async def test_the_blocks_own_error_goes_out(s3, tmp_path):
    """With a stop before it, or in the drain beside it."""
    with pytest.raises(ValueError, match="mine"):
        async with a_courier() as courier:
            courier.stop()
            raise ValueError("mine")
    with pytest.raises(ValueError, match="mine"):
        async with held_up(s3, tmp_path) as courier:
            asyncio.get_running_loop().call_soon(courier.stop)
            raise ValueError("mine")


async def test_a_cancellation_from_outside_goes_out():
    """The caller's own scope, or its task's end, is not swallowed for a stop that came as well."""
    after = []
    with anyio.CancelScope() as scope:
        async with a_courier() as courier:
            scope.cancel()
            courier.stop()
            await anyio.sleep_forever()
        after.append("reached")
    assert (scope.cancelled_caught, after) == (True, [])

    async def cancelled_while_stopped() -> None:
        async with a_courier() as courier:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            courier.stop()
            await anyio.sleep_forever()
        after.append("reached")

    task = asyncio.ensure_future(cancelled_while_stopped())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert after == []


async def test_a_stopped_courier_does_nothing_more():
    """Its verbs say that it is closed."""
    async with a_courier() as courier:
        courier.stop()
        with pytest.raises(Closed):
            await courier.flush()


async def test_a_stop_before_the_block():
    """There is nothing to stop yet, and it opens all the same."""
    courier = a_courier()
    courier.stop()
    async with courier:
        assert (await courier.flush()).shipped == ()


async def test_fetchers_are_left_twice():
    """Closing what is closed is nothing."""
    fetcher = AsyncFetcher(Settings(), given=Remote(MemoryStore(), None))
    async with fetcher:
        pass
    await fetcher.__aexit__(None, None, None)


def test_the_blocking_doors_are_closed_twice(tmp_path):
    """In their block and after it."""
    settings = Settings(store_url=f"file://{tmp_path}")
    with Courier(settings) as courier:
        courier.close()
        courier.close()
    courier.close()
    with Fetcher(settings) as fetcher:
        fetcher.close()
        fetcher.close()
    fetcher.close()
