"""How far a publication is, in bytes: objects that are done, and what has left so far of those under way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from r2d1.datasets.workers import OnProgress, Progress
from r2d1.tasks import one_error

#: How often progress is told while nothing is done.
_TELL_EVERY_S = 0.25


class Moved:
    """The bytes of one publication. ``at`` may be called from any thread, all else on the event loop."""

    def __init__(self, stage: str, total: int, on_progress: OnProgress | None) -> None:
        self._stage, self._total, self._on_progress = stage, total, on_progress
        self._done = 0
        self._under_way: dict[str, int] = {}
        self._told = -1

    def at(self, key: str, position: int) -> None:
        """So many bytes of an object have left; fewer than before when it is sent anew."""
        self._under_way[key] = position

    def done(self, key: str, size: int) -> None:
        """An object of ``size`` bytes is where it belongs, sent or not."""
        self._under_way.pop(key, None)
        self._done += size
        self._tell()

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Tell progress within the block, on the event loop; what ``on_progress`` raises ends the block."""
        if self._on_progress is None:
            yield
            return
        with one_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell_again_and_again)
                yield
                tasks.cancel_scope.cancel()

    async def _tell_again_and_again(self) -> None:
        while True:
            self._tell()
            await anyio.sleep(_TELL_EVERY_S)

    def _tell(self) -> None:
        done = self._done + sum(list(self._under_way.values()))
        if self._on_progress is not None and done != self._told:
            self._told = done
            self._on_progress(Progress(self._stage, done, self._total, "bytes"))
