"""Work on a thread of its own: results one by one, an end that everybody hears of, and no wait without one."""

from __future__ import annotations

import asyncio
import gc
import threading

import anyio
import pytest

from r2d1.datasets.background import Background, run_to_end
from r2d1.errors import R2D1Error
from tests.children import child_env, run_script


async def three(results):
    for number in range(3):
        await results.give(number)


def threads():
    return [each for each in threading.enumerate() if each.name == "r2d1 work"]


def test_results_come_one_by_one_and_end():
    """Each who asks gets the next one; then the stream has ended, for good, and the thread is gone."""
    work = Background(three, name="work")
    assert [work.ask().result(30) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(anyio.EndOfStream):
            work.ask().result(30)
    work.close()
    assert threads() == []


def test_several_may_ask_ahead():
    """Who asks first gets the first; one who gave up is passed over."""
    held = threading.Event()

    async def late(results):
        await anyio.to_thread.run_sync(held.wait)
        await three(results)

    work = Background(late, name="work")
    first, second, third = (work.ask() for _ in range(3))
    assert second.cancel()
    held.set()
    assert (first.result(30), third.result(30), work.ask().result(30)) == (0, 1, 2)
    work.close()


def test_an_error_comes_in_its_place_and_once():
    """What was given before it is not lost; after it the stream has ended."""

    async def produce(results):
        await results.give(1)
        raise ZeroDivisionError

    work = Background(produce, name="work")
    assert work.ask().result(30) == 1
    with pytest.raises(ZeroDivisionError):
        work.ask().result(30)
    with pytest.raises(anyio.EndOfStream):
        work.ask().result(30)
    work.close()


def test_an_exit_in_the_work_comes_out():
    """``SystemExit`` ends the loop of the work at once: who waits is told, and does not take it for the end."""

    async def produce(results):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)

    async def leave():
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run_to_end(lambda: produce(None))


def test_closing_before_the_work_began():
    """Nothing ran, and nothing will."""
    work = Background(three, name="work")
    work.close()
    with pytest.raises(anyio.EndOfStream):
        work.ask().result(30)
    assert threads() == []


def test_closing_ends_every_wait():
    """Work that gives nothing is cancelled; all who wait hear that it has ended."""
    begun = threading.Event()

    async def produce(results):
        begun.set()
        await anyio.sleep_forever()

    work = Background(produce, name="work")
    asked = [work.ask() for _ in range(3)]
    assert begun.wait(30)
    work.close()
    for each in asked:
        with pytest.raises(anyio.EndOfStream):
            each.result(30)


async def test_a_wait_that_is_cancelled_takes_no_result():
    """A cancelled ask is nobody's: the result goes to the next one."""
    held = threading.Event()

    async def produce(results):
        await anyio.to_thread.run_sync(held.wait)
        await three(results)

    work = Background(produce, name="work")
    waiting = asyncio.ensure_future(asyncio.wrap_future(work.ask()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    held.set()
    assert await asyncio.wrap_future(work.ask()) == 0
    await asyncio.to_thread(work.close)


def test_the_last_reference_may_go_on_the_thread_of_the_work():
    """Garbage is collected on any thread; the work ends there too, without waiting for itself."""
    dropped = threading.Event()
    box = []

    async def produce(results):
        await results.give(1)
        box.clear()
        gc.collect()
        dropped.set()
        await anyio.sleep_forever()

    box.append(Background(produce, name="work"))
    assert box[0].ask().result(30) == 1
    assert dropped.wait(30)
    for thread in threads():
        thread.join(30)
    assert threads() == []


def test_no_thread_to_be_had(monkeypatch):
    """A system that gives no more threads is an error, not a wait."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(R2D1Error, match="cannot start its thread: can't start new thread"):
        run_to_end(anyio.sleep_forever)


STARVED = """
import os, resource, sys; sys.stderr = sys.stdout  # what is printed beside shows
from r2d1.datasets.background import run_to_end
from r2d1.errors import R2D1Error
import anyio
async def work():
    return "worked"
assert run_to_end(work) == "worked"
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for free in range(4):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3 + free, hard))
    try:
        print(run_to_end(work))
    except R2D1Error as error:
        print(error)
"""


def test_no_descriptors_to_be_had():
    """A loop that finds none for itself is an error with a hint, and nothing else is printed."""
    said = run_script(STARVED, env=child_env()).splitlines()
    refused = "this call cannot start its thread: [Errno 24] Too many open files. Close files or end threads, or"
    assert [each.startswith(refused) for each in said] == [True, True, True, False]
    assert said[3] == "worked"
