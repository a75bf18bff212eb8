"""An event loop whose time jumps to the next timer: hours pass in moments, and in the same order every time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


class _NothingComes(selectors.SelectSelector):
    """There are no sockets and no threads here: asking the kernel for news would cost a third of the time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Waits for nothing: with no task ready it sets its clock to the next timer."""

    def __init__(self) -> None:
        self._virtual_now = 1000.0
        super().__init__(_NothingComes())

    def time(self) -> float:
        return self._virtual_now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            if not self._scheduled and not self._stopping:  # type: ignore[attr-defined]
                raise RuntimeError("the simulation is stuck: nothing is ready and no timer is set")
            if self._scheduled:  # type: ignore[attr-defined]
                self._virtual_now = max(self._virtual_now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_virtual(func: Callable[..., Awaitable[T]], *args: Any) -> T:
    """``anyio.run`` on a virtual clock."""
    return anyio.run(func, *args, backend_options={"loop_factory": VirtualLoop})
