"""Worker threads that are never left behind by the caller they work for."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from r2d1.tasks import in_thread


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
