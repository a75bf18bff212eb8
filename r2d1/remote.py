"""A client's two remote ends, the bucket and the catalog, opened from settings and closed together."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio

from r2d1.catalog import Catalog, open_catalog
from r2d1.events import Teller
from r2d1.manifest import PART_SIZE
from r2d1.objects import ObjectStore
from r2d1.objects.opening import open_store
from r2d1.retry import Brake, RetryPolicy
from r2d1.settings import Settings
from r2d1.transfer.flow import Flow
from r2d1.transfer.lane import Lane, most_open_files


@dataclass(frozen=True, slots=True)
class Remote:
    """Where checkpoints go. ``catalog`` is None in R2-only mode."""

    store: ObjectStore
    catalog: Catalog | None
    brake: Brake = field(default_factory=Brake)  # the store's

    def lane(self, settings: Settings, tell: Teller) -> Lane:
        """What a client's transfers share; the server's push-back slows all of them."""
        flow = Flow(fixed=settings.concurrency, most=min(settings.most_in_flight, most_open_files()))
        self.brake.listeners.append(flow.pushed_back)
        part_size = settings.part_size or PART_SIZE
        return Lane(self.store, tell, flow, part_size=part_size, upload_check=settings.upload_check)


@asynccontextmanager
async def opened(
    settings: Settings, *, tell: Teller, rng: random.Random, given: Remote | None = None
) -> AsyncIterator[Remote]:
    """Open what the settings name, or take what is ``given``; either is closed at the end."""
    remote = given or _open(settings, tell, rng)
    try:
        yield remote
    finally:
        with anyio.CancelScope(shield=True):  # a cancelled close would leave sockets to the garbage collector
            async with AsyncExitStack() as stack:
                stack.push_async_callback(remote.store.aclose)
                if remote.catalog is not None:
                    stack.push_async_callback(remote.catalog.aclose)


def _open(settings: Settings, tell: Teller, rng: random.Random) -> Remote:
    for notice in settings.notices():
        tell.notice("warning", notice, once=notice)
    policy = RetryPolicy()
    brake = Brake(rng)
    store = open_store(settings, tell=tell, policy=policy, brake=brake)
    return Remote(store, open_catalog(settings, tell=tell, policy=policy, brake=Brake(rng)), brake)
