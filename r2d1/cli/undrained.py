"""A courier for one command, which has flushed, or has said what it left, when its block ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from r2d1.cli.running import Session
from r2d1.courier import AsyncCourier
from r2d1.events import Observer


@asynccontextmanager
async def undrained(session: Session, observer: Observer | None = None) -> AsyncIterator[AsyncCourier]:
    """An open courier that stops at once when the block is left, where one would otherwise drain (again).

    Its events go to ``observer``, by default the session's.
    """
    failure: Exception | None = None
    with anyio.CancelScope() as scope:
        async with AsyncCourier(session.settings, observer=observer or session.observer) as courier:
            try:
                yield courier
            except Exception as error:
                failure = error
            scope.cancel()
    if failure is not None:
        raise failure
