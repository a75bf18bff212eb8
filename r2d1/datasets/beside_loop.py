"""Long blocking verbs beside a running event loop: in a worker thread, stopped soon when they are cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio

from r2d1.datasets.workers import OnProgress, Progress
from r2d1.errors import Closed
from r2d1.tasks import in_thread, one_error

R = TypeVar("R")


async def beside_loop(verb: Callable[[OnProgress], R], on_progress: OnProgress | None) -> R:
    """Run ``verb``, which tells its progress to what it is given; cancelling stops it at its next step of progress.

    ``on_progress`` is called in the worker thread.
    """
    stop = threading.Event()
    found: list[R] = []

    def report(progress: Progress) -> None:
        if stop.is_set():
            raise Closed("the work was cancelled")
        if on_progress is not None:
            on_progress(progress)

    async def work() -> None:
        try:
            found.append(await in_thread(partial(verb, report)))
        except Closed:
            if not stop.is_set():
                raise
        tasks.cancel_scope.cancel()

    with one_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            try:
                await anyio.sleep_forever()
            finally:
                stop.set()
    return found[0]
