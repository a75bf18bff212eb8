"""Async work on a thread of its own, for callers that block and for those whose loop may be busy elsewhere.

A stream of results cannot be an async generator around a task group: one that is left in the middle is closed by
another task than the one that opened it. Here the work has its own loop, and each result is one call into it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from r2d1.errors import Closed
from r2d1.tasks import first_error

T = TypeVar("T")

Emit = Callable[[T], Awaitable[None]]
#: Work that hands out its results one by one; ``emit`` returns when a result was taken.
Produce = Callable[[Emit[T]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error on its way to the consumer, in the place of the result it stands for."""

    error: Exception


@dataclass(frozen=True, slots=True)
class _Running(Generic[T]):
    portal: BlockingPortal
    results: MemoryObjectReceiveStream[T | _Failure]
    thread: threading.Thread


class Background(Generic[T]):
    """The results of ``produce``, taken one at a time from any thread. Nothing runs before the first is asked for.

    Dropping the last reference stops the work, as ``close`` does. A forked child gets ``Closed``.
    """

    def __init__(self, produce: Produce[T], *, name: str) -> None:
        self._produce: Produce[T] | None = produce
        self._name = name
        self._pid = os.getpid()
        self._running: _Running[T] | None = None
        self._stop: weakref.finalize[[int, _Running[T]], Background[T]] | None = None

    @property
    def is_started(self) -> bool:
        """Whether ``ask`` no longer blocks."""
        return self._produce is None

    def ask(self) -> Future[T | _Failure]:
        """Ask for the next result; the future raises ``EndOfStream`` at the end. Blocks a moment when first called."""
        if os.getpid() != self._pid:
            raise Closed(f"this {self._name} belongs to the parent process; make a new one after the fork")
        if self._produce is not None:
            produce, self._produce = self._produce, None
            self._running = _start(produce, self._name)
            self._stop = weakref.finalize(self, _stop, self._pid, self._running)
        if self._running is None:
            ended: Future[T | _Failure] = Future()
            ended.set_exception(anyio.EndOfStream())
            return ended
        return self._running.portal.start_task_soon(self._running.results.receive)

    def close(self) -> None:
        """Stop the work and wait for its end; safe to call twice."""
        self._produce = None
        self._running = None
        if self._stop is not None:
            self._stop()


def taken(item: T | _Failure) -> T:
    """A result that was asked for; an error is raised."""
    if isinstance(item, _Failure):
        raise item.error
    return item


def _start(produce: Produce[T], name: str) -> _Running[T]:
    ready: Future[tuple[BlockingPortal, MemoryObjectReceiveStream[T | _Failure]]] = Future()
    thread = threading.Thread(target=_serve, args=(ready, produce), name=f"r2d1 {name}", daemon=True)
    thread.start()
    portal, results = ready.result()
    return _Running(portal, results, thread)


def _stop(pid: int, running: _Running[T]) -> None:
    if os.getpid() == pid:  # in a forked child there is nobody to stop
        running.portal.call(running.portal.stop, True)
        running.thread.join()


def _serve(ready: Future[tuple[BlockingPortal, MemoryObjectReceiveStream[T | _Failure]]], produce: Produce[T]) -> None:
    async def main() -> None:
        send, receive = anyio.create_memory_object_stream[T | _Failure](0)
        async with send, receive, BlockingPortal() as portal, anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, produce, send)
            ready.set_result((portal, receive))
            await portal.sleep_until_stopped()
            tasks.cancel_scope.cancel()

    anyio.run(main)


async def _feed(produce: Produce[T], send: MemoryObjectSendStream[T | _Failure]) -> None:
    async with send:
        try:
            await produce(send.send)
        except Exception as exc:  # it is raised where the result is asked for
            error = first_error(exc)
            assert isinstance(error, Exception)
            await send.send(_Failure(error))


def run_to_end(func: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on a thread of its own and wait; whatever interrupts the wait cancels it.

    It works in a program that runs an event loop, too, whose thread it blocks.
    """

    async def produce(emit: Emit[T]) -> None:
        await emit(await func())

    background = Background(produce, name="call")
    try:
        return taken(background.ask().result())
    finally:
        background.close()
