"""Worker threads that are never left behind by the caller they work for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from r2d1.tasks import acquired, entered, in_thread, inline

PATIENCE_S = 60.0


class Door:
    """What is opened and closed in threads, as slowly as a test wants; says what became of it."""

    def __init__(self, *, opens: bool = True, closes: bool = True) -> None:
        self.at_opening, self.at_closing = threading.Event(), threading.Event()
        self.may_open, self.may_close = threading.Event(), threading.Event()
        self.did: list[str] = []
        if opens:
            self.may_open.set()
        if closes:
            self.may_close.set()

    def open(self) -> Door:
        self.at_opening.set()
        assert self.may_open.wait(PATIENCE_S)
        self.did.append("opened")
        return self

    def close(self) -> None:
        self.at_closing.set()
        assert self.may_close.wait(PATIENCE_S)
        self.did.append("closed")

    @contextmanager
    def entering(self) -> Iterator[Door]:
        self.open()
        try:
            yield self
        finally:
            self.close()


async def until(event: threading.Event) -> None:
    assert await anyio.to_thread.run_sync(event.wait, PATIENCE_S)


async def turns(count: int) -> None:
    """Let the event loop run what is ready; nothing is proven by how often."""
    for _ in range(count):
        await asyncio.sleep(0)


async def passing(door: Door) -> None:
    async with acquired(Door.open, Door.close, door) as there:
        assert there is door
        door.did.append("used")


async def test_asyncio_cancelling_waits_for_the_thread() -> None:
    """A task cancelled by asyncio itself ends only after its thread has, so that files can be closed safely."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()
        ended.set()

    task = asyncio.create_task(in_thread(work))
    await anyio.to_thread.run_sync(begun.wait)
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_work_cancelled_before_it_began_never_runs() -> None:
    """Who is cancelled while waiting for a thread is not run later by the thread that becomes free."""
    limiter = anyio.CapacityLimiter(1)
    ran: list[str] = []
    async with limiter:
        task = asyncio.create_task(in_thread(ran.append, "late", limiter=limiter))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await in_thread(lambda: list(ran), limiter=limiter) == []


async def test_errors_and_results_pass() -> None:
    """A function's result is returned and its exception raised as they are."""
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)


async def test_who_is_cancelled_again_waits_all_the_same() -> None:
    """An impatient second cancelling of asyncio does not make a task outrun its thread."""
    door = Door(opens=False)
    task = asyncio.create_task(in_thread(door.open))
    await until(door.at_opening)
    for _ in range(3):
        task.cancel()
        await turns(20)
    assert not task.done()
    door.may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert door.did == ["opened"]


async def test_what_is_acquired_is_opened_used_and_closed() -> None:
    """The normal way: each in its turn, opening and closing off the event loop."""
    door, threads = Door(), set[int]()

    def close(there: Door) -> None:
        threads.add(threading.get_ident())
        there.close()

    async with acquired(Door.open, close, door):
        assert door.did == ["opened"]
    assert door.did == ["opened", "closed"]
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("cancels", [1, 3])
async def test_what_is_opened_while_asyncio_cancels_is_closed(cancels: int) -> None:
    """The thread opens it after its task was cancelled, however often: nobody can take it, and it is closed."""
    door = Door(opens=False)
    task = asyncio.create_task(passing(door))
    await until(door.at_opening)
    for _ in range(cancels):
        task.cancel()
        await turns(20)
    door.may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert door.did == ["opened", "closed"]


async def test_what_is_opened_in_the_moment_of_cancelling_is_closed() -> None:
    """The thread has opened it and its task is to be woken with it, when asyncio cancels the task."""
    door = Door()
    task = asyncio.create_task(passing(door))
    while not door.did:  # no turn of this loop lies between the end of the thread's work and the cancelling
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert door.did in (["opened", "closed"], ["opened", "used", "closed"])


async def test_what_is_opened_while_a_scope_is_cancelled_is_closed() -> None:
    """A cancelled scope of anyio's waits for the thread, too, and the block is left at its first wait."""
    door = Door(opens=False)
    async with anyio.create_task_group() as tasks:

        async def work() -> None:
            async with acquired(Door.open, Door.close, door):
                await anyio.sleep_forever()

        tasks.start_soon(work)
        await until(door.at_opening)
        tasks.cancel_scope.cancel()
        door.may_open.set()
    assert door.did == ["opened", "closed"]


async def test_what_was_cancelled_before_it_is_opened_is_not_closed() -> None:
    """There is nothing to close then."""
    door, limiter = Door(), anyio.CapacityLimiter(1)

    async def work() -> None:
        async with acquired(Door.open, Door.close, door, limiter=limiter):
            raise AssertionError

    async with limiter:
        task = asyncio.create_task(work())
        await turns(20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert door.did == []


async def test_closing_is_not_lost_to_a_cancelling_at_the_end() -> None:
    """asyncio's cancelling reaches the task where it waits next: before a thread has begun to close."""
    door = Door()

    async def work() -> None:
        async with acquired(Door.open, Door.close, door):
            task.cancel()

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert door.did == ["opened", "closed"]


async def test_closing_under_way_is_waited_for() -> None:
    """A task that is cancelled while a thread closes ends after that, and closes nothing twice."""
    door = Door(closes=False)
    task = asyncio.create_task(passing(door))
    await until(door.at_closing)
    task.cancel()
    await turns(20)
    assert not task.done()
    door.may_close.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert door.did == ["opened", "used", "closed"]


async def test_errors_of_opening_block_and_closing_are_raised_as_they_are() -> None:
    """Nothing is wrapped; what could not be opened is not closed."""
    door, errors = Door(), [OSError("opening"), OSError("block"), OSError("closing")]

    def fail(*_: object) -> None:
        raise errors[0]

    with pytest.raises(OSError) as caught:
        async with acquired(fail, Door.close, door):
            raise AssertionError
    assert caught.value is errors.pop(0)
    with pytest.raises(OSError) as caught:
        async with acquired(Door.open, Door.close, door):
            raise errors[0]
    assert caught.value is errors.pop(0)
    assert door.did == ["opened", "closed"]
    with pytest.raises(OSError) as caught:
        async with acquired(Door.open, fail, door):
            pass
    assert caught.value is errors.pop(0)


@pytest.mark.parametrize("dies_at", [None, 2])
async def test_in_a_simulation_all_runs_in_line_and_is_closed(dies_at: int | None) -> None:
    """The hook is called before each step; where its process dies at the closing, the descriptor is closed."""
    door, calls = Door(), list[object]()

    def hook(func: object) -> None:
        calls.append(func)
        if len(calls) == dies_at:
            raise KeyError("dead")

    token = inline.set(hook)
    try:
        await passing(door)
    except KeyError:
        assert dies_at is not None
    finally:
        inline.reset(token)
    assert len(calls) == 2
    assert door.did == ["opened", "used", "closed"]


async def test_a_context_manager_whose_entering_is_cancelled_is_left() -> None:
    """``entered`` leaves what the thread has entered meanwhile."""
    door = Door(opens=False)

    async def work() -> None:
        async with entered(door.entering()):
            raise AssertionError

    task = asyncio.create_task(work())
    await until(door.at_opening)
    task.cancel()
    door.may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert door.did == ["opened", "closed"]
