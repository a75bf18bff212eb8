"""The turns that all transfers of one client share: a bounded number of pieces in flight, first come, first served."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from r2d1.setting_rules import MOST, START
from r2d1.tasks import one_error
from r2d1.transfer.pilot import Pilot, Sight

T = TypeVar("T")

#: Seconds between two looks of the pilot, while anything is in flight.
_LOOK_S = 0.05


class Turn:
    """The right to have one piece in flight. ``moved`` may be called by any thread."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.is_over = False
        self.has_moved = False

    def moved(self, size: int) -> None:
        """So many bytes of the piece have gone or come."""
        self._flow.count(self, size)

    def end(self) -> None:
        """Let the next one have it; once more does nothing."""
        self._flow.give_back(self)


class Flow:
    """Hands out turns. With ``fixed`` there are so many; else their number finds itself, at most ``most``.

    Belongs to one event loop. Nothing runs while nothing is in flight.
    """

    def __init__(self, *, fixed: int | None = None, most: int = MOST) -> None:
        self.most = fixed or most
        self.limit = fixed or min(START, most)
        self._pilot = None if fixed else Pilot(start=START, most=most)
        self._waiting: deque[anyio.Event] = deque()
        self._in_flight = 0
        self._lock = threading.Lock()
        self._fresh = 0
        self._moved = 0
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> Turn:
        """Wait for a turn. End it in any case."""
        if self._in_flight >= self.limit or self._waiting:
            mine = anyio.Event()
            self._waiting.append(mine)
            try:
                await mine.wait()
            except BaseException:
                if mine.is_set():  # called and cancelled at once: the next one may have it
                    self._in_flight -= 1
                    self._call_next()
                else:
                    self._waiting.remove(mine)
                raise
        else:
            self._in_flight += 1
        with self._lock:
            self._fresh += 1
        if self._pilot is not None and self._timer is None:
            self._look_later()
        return Turn(self)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        turn = await self.take()
        try:
            yield turn
        finally:
            turn.end()

    def pushed_back(self) -> None:
        """The server asks for less: half as many turns, at once."""
        if self._pilot is not None:
            self._pilot.complain(anyio.current_time())
            self.limit = self._pilot.limit

    def count(self, turn: Turn, size: int) -> None:
        with self._lock:
            self._moved += size
            if not turn.has_moved:
                turn.has_moved = True
                self._fresh -= 1

    def give_back(self, turn: Turn) -> None:
        if turn.is_over:
            return
        turn.is_over = True
        self.count(turn, 0)
        self._in_flight -= 1
        self._call_next()

    @property
    def is_watched(self) -> bool:
        """Whether the pilot's timer runs."""
        return self._timer is not None

    def _call_next(self) -> None:
        while self._waiting and self._in_flight < self.limit:
            self._in_flight += 1  # on behalf of the one that is called
            self._waiting.popleft().set()

    def _look_later(self) -> None:
        # The loop's own timer: a task would need an owner for as long as any transfer runs.
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._in_flight:
            return
        assert self._pilot is not None
        with self._lock:
            sight = Sight(anyio.current_time(), self._moved, self._in_flight, self._fresh, wanted=bool(self._waiting))
        self.limit = self._pilot.see(sight)
        self._call_next()
        self._look_later()


async def spread(
    flow: Flow, following: Callable[[], Awaitable[T | None]], work: Callable[[Turn, T], Awaitable[None]]
) -> None:
    """Do ``work`` on each piece in a turn of its own, until ``following`` gives None; the first failure stops the rest.

    ``following`` is awaited within the turn that its piece will have, one at a time.
    """
    taken: set[Turn] = set()

    async def run(turn: Turn, piece: T) -> None:
        try:
            await work(turn, piece)
        finally:
            taken.discard(turn)
            turn.end()

    try:
        with one_error():
            async with anyio.create_task_group() as tasks:
                while True:
                    turn = await flow.take()
                    taken.add(turn)
                    piece = await following()
                    if piece is None:
                        break
                    tasks.start_soon(run, turn, piece)
    finally:
        for turn in taken:  # of tasks that were cancelled before they began, and the last one
            turn.end()
