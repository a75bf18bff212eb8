"""Bounded task groups with one error out, and the one door to worker threads."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import anyio.to_thread

T = TypeVar("T")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

#: Set by a simulation, where every thread call runs in line so that a seed fixes the order of everything. The
#: hook is called with the function before it runs.
inline: ContextVar[Callable[[Callable[..., object]], None] | None] = ContextVar("inline", default=None)


async def in_thread(func: Callable[[*Ts], R], *args: *Ts, limiter: anyio.CapacityLimiter | None = None) -> R:
    """Run a blocking function in a worker thread. Cancelling waits for it, so give it short work.

    That holds for ``asyncio``'s own cancelling too, which anyio does not wait for: a thread that outlived its
    caller would read from or write to files that have been closed.
    """
    if (hook := inline.get()) is not None:
        await anyio.lowlevel.checkpoint()
        hook(func)
        return func(*args)
    return await _attended(lambda: func(*args), limiter)


async def _attended(work: Callable[[], R], limiter: anyio.CapacityLimiter | None, halt: Halt | None = None) -> R:
    """Run ``work`` in a thread that never outlives the call; a ``halt`` is called when that is cancelled."""
    claim, ended = threading.Lock(), threading.Event()

    def run() -> R:
        if not claim.acquire(blocking=False):  # never released: whoever is first decides whether the work runs
            raise RuntimeError("cancelled before it began")
        halting.set(halt)  # in a copy of the caller's context
        try:
            return work()
        finally:
            ended.set()

    try:
        return await anyio.to_thread.run_sync(run, limiter=limiter, abandon_on_cancel=halt is not None)
    except anyio.get_cancelled_exc_class():
        if halt is not None:
            halt.call()
        if not claim.acquire(blocking=False):
            await _outwaited(ended)
        raise


async def _outwaited(ended: threading.Event) -> None:
    """Wait for a thread's end, however often ``asyncio`` cancels the task meanwhile."""
    while not ended.is_set():
        try:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(ended.wait)
        except anyio.get_cancelled_exc_class():
            continue  # this task is being cancelled already: the caller raises the first one when the thread has ended


class Halt:
    """How a worker thread learns that nobody waits for its result any more."""

    def __init__(self) -> None:
        self._called = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def called(self) -> bool:
        return self._called.is_set()

    def call(self) -> None:
        with self._lock:
            self._called.set()
            for callback in self._callbacks:
                callback()

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Have ``callback``, which must not block, called from another thread when this is called, or now if it was."""
        with self._lock:
            self._callbacks.append(callback)
            if self._called.is_set():
                callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.remove(callback)

    def pause(self, seconds: float) -> None:
        """Sleep in the worker thread, shorter when this is called."""
        self._called.wait(seconds)


#: The ``Halt`` of the worker thread that runs, for work below that has to wait.
halting: ContextVar[Halt | None] = ContextVar("halting", default=None)


def pause_thread(seconds: float) -> None:
    """Sleep in a worker thread, shorter when its work is cancelled."""
    if (halt := halting.get()) is not None:
        halt.pause(seconds)
    else:
        time.sleep(seconds)


async def in_stoppable_thread(
    func: Callable[[Halt, *Ts], R], *args: *Ts, limiter: anyio.CapacityLimiter | None = None
) -> R:
    """Run a blocking function that may take long in a worker thread; cancelling calls its ``Halt`` and waits for it.

    The function must end soon after that. Its result is lost then, so it may not be something to close.
    """
    halt = Halt()
    return await _attended(lambda: func(halt, *args), limiter, halt)


@asynccontextmanager
async def acquired(
    opening: Callable[[*Ts], R],
    closing: Callable[[R], object],
    *args: *Ts,
    limiter: anyio.CapacityLimiter | None = None,
) -> AsyncIterator[R]:
    """What ``opening`` returns, opened and closed in worker threads: whatever was opened is closed, once.

    ``value = await in_thread(opening)`` loses the value when ``asyncio`` cancels the task while the thread runs.
    ``limiter`` bounds the opening alone, so that closing never waits for those who open.
    """
    held: list[R] = []  # filled on the thread, so that nothing is lost when this task is cancelled
    try:
        await in_thread(lambda: held.append(opening(*args)), limiter=limiter)
        yield held[0]
    finally:
        if held:
            await _released(closing, held)


async def _released(closing: Callable[[R], object], held: list[R]) -> None:
    def release() -> None:
        closing(held.pop())

    try:
        with anyio.CancelScope(shield=True):
            await in_thread(release)
    finally:
        if held:  # asyncio cancelled the task before a thread took it, and nobody comes after us: close it here
            release()


@asynccontextmanager
async def entered(manager: AbstractContextManager[T]) -> AsyncIterator[T]:
    """A context manager that touches the disk, entered and left in worker threads; leaving is not cut short."""
    async with acquired(manager.__enter__, lambda _: manager.__exit__(None, None, None)) as value:
        yield value


@contextmanager
def one_error() -> Iterator[None]:
    """Turn the exception group of a task group into its first error that is not a cancellation."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise first_error(group) from None


def first_error(error: BaseException) -> BaseException:
    """The first leaf of an exception group; an ordinary error is preferred to a ``BaseException``."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_error(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, Exception)), leaves[0])


async def run_bounded(limit: int, func: Callable[[T], Awaitable[object]], items: Iterable[T]) -> None:
    """Await ``func`` on every item, ``limit`` at a time (at least one); the first failure stops the rest."""
    if isinstance(items, Sized):
        limit = min(limit, len(items))
    pending = iter(items)

    async def worker() -> None:
        for item in pending:
            await func(item)

    with one_error():
        async with anyio.create_task_group() as tasks:
            for _ in range(max(1, limit)):
                tasks.start_soon(worker)
