"""Async work on a thread of its own, for callers that block and for those whose loop may be busy elsewhere.

A stream of results cannot be an async generator around a task group: one that is left in the middle is closed by
another task than the one that opened it. Here the work has its own loop, and each result is one call into it.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import anyio
import anyio.lowlevel

from r2d1.errors import Closed, R2D1Error
from r2d1.tasks import first_error

T = TypeVar("T")


class Results(Generic[T]):
    """Results on their way out of the work: each goes to one who asked. What is asked for too late has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: deque[Future[T]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._news: anyio.Event | None = None
        self._is_stopped = False
        self._end: BaseException | None = None

    # From any thread

    def ask(self) -> Future[T]:
        """Ask for the next result; does not block."""
        future: Future[T] = Future()
        with self._lock:
            if self._end is None:
                self._asked.append(future)
                self._call(self._wake)
                return future
            end, self._end = self._end, anyio.EndOfStream()
        future.set_exception(end)
        return future

    def stop(self) -> None:
        """Have the work cancelled, now or when it begins."""
        with self._lock:
            self._is_stopped = True
            if self._stop is not None:
                self._call(self._stop)

    def over(self, end: BaseException) -> None:
        """Nothing more comes: those who ask get ``end`` once, then ``EndOfStream``."""
        with self._lock:
            left = [future for future in self._asked if future.set_running_or_notify_cancel()]
            self._asked.clear()
            self._end = anyio.EndOfStream() if left else end
        for future in left:
            future.set_exception(end)

    def _call(self, func: Callable[[], object]) -> None:
        if self._loop is not None and self._end is None:
            try:
                self._loop.call_soon_threadsafe(func)
            except RuntimeError:  # the loop has just been closed; ``over`` is called next
                return

    # From the work

    @property
    def has_begun(self) -> bool:
        """Whether the work has had a loop."""
        return self._loop is not None

    async def work(self, produce: Produce[T]) -> None:
        """Run ``produce`` to its end, or to ``stop``; its error is given in the place of a result."""
        with anyio.CancelScope() as scope:
            with self._lock:
                self._loop, self._stop = asyncio.get_running_loop(), scope.cancel
                if self._is_stopped:
                    scope.cancel()
            try:
                await produce(self)
            except Exception as exc:  # it is raised where the result is asked for
                (await self._next()).set_exception(first_error(exc))

    async def give(self, item: T) -> None:
        """Hand out a result; returns when it was taken."""
        (await self._next()).set_result(item)

    async def wanted(self) -> None:
        """Wait until another result is asked for."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        while not self._is_asked():
            self._news = anyio.Event()
            await self._news.wait()

    async def _next(self) -> Future[T]:
        """The one whose turn it is."""
        while True:
            await self.wanted()
            with self._lock:
                future = self._asked.popleft()
            if future.set_running_or_notify_cancel():
                return future

    def _is_asked(self) -> bool:
        with self._lock:
            while self._asked and self._asked[0].cancelled():
                self._asked.popleft()
            return bool(self._asked)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()


#: Work that hands out its results one by one.
Produce = Callable[[Results[T]], Awaitable[None]]


class Background(Generic[T]):
    """The results of ``produce``, taken one at a time from any thread. Nothing runs before the first is asked for.

    Dropping the last reference stops the work, as ``close`` does. A forked child gets ``Closed``.
    """

    def __init__(self, produce: Produce[T], *, name: str) -> None:
        self._produce: Produce[T] | None = produce
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._results: Results[T] = Results()
        self._stop: weakref.finalize[[int, Results[T], threading.Thread], Background[T]] | None = None

    @property
    def is_started(self) -> bool:
        """Whether ``ask`` no longer blocks."""
        return self._produce is None

    def ask(self) -> Future[T]:
        """Ask for the next result; the future raises ``EndOfStream`` at the end. Blocks a moment when first called.

        ``R2D1Error`` (of the future) when no thread or no event loop could be had.
        """
        if os.getpid() != self._pid:
            raise Closed(f"this {self._name} belongs to the parent process; make a new one after the fork")
        with self._lock:
            if self._produce is not None:
                self._start(self._produce)
                self._produce = None
        return self._results.ask()

    def close(self) -> None:
        """Stop the work and wait for its end; who waits for a result gets ``EndOfStream``. Safe to call twice."""
        if os.getpid() != self._pid:  # in a forked child there is nobody to stop
            return
        with self._lock:
            self._produce = None
            results, stop = self._results, self._stop
        if stop is None:
            results.over(anyio.EndOfStream())
        else:
            stop()

    def _start(self, produce: Produce[T]) -> None:
        arguments = (self._results, produce, self._name)
        thread = threading.Thread(target=_serve, args=arguments, name=f"r2d1 {self._name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            self._results.over(_not_started(self._name, exc))
        else:
            self._stop = weakref.finalize(self, _stop, self._pid, self._results, thread)


def _stop(pid: int, results: Results[T], thread: threading.Thread) -> None:
    if os.getpid() == pid:
        results.stop()
        if thread is not threading.current_thread():  # where the last reference may go, too
            thread.join()


def _serve(results: Results[T], produce: Produce[T], name: str) -> None:
    end: BaseException = anyio.EndOfStream()
    try:
        _require_descriptors()
        anyio.run(results.work, produce)
    except BaseException as exc:  # raised where a result is asked for, or nobody would hear of it
        end = exc if results.has_begun else _not_started(name, exc)
    finally:
        results.over(end)


def _require_descriptors() -> None:
    """Raise ``OSError`` when a loop would find too few: Python prints a second error of one that is half made."""
    with selectors.DefaultSelector():
        for each in socket.socketpair():
            each.close()


def _not_started(name: str, error: BaseException) -> R2D1Error:
    failure = R2D1Error(
        f"this {name} cannot start its thread: {error}. Close files or end threads, or raise what `ulimit` allows"
    )
    failure.__cause__ = error
    return failure


def run_to_end(func: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on a thread of its own and wait; whatever interrupts the wait cancels it.

    It works in a program that runs an event loop, too, whose thread it blocks.
    """

    async def produce(results: Results[T]) -> None:
        await results.give(await func())

    background = Background(produce, name="call")
    try:
        return background.ask().result()
    finally:
        background.close()
