"""A world in which one process can be stopped at an exact request while others run to their end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from r2d1.remote import Remote
from tests.simulation.world import JOB, Process, World, files_of

Files = dict[str, bytes]


@dataclass
class Stop:
    """Counts the requests of a process and holds it before the one that is numbered ``at`` (from 1; 0 for none).

    ``is_fatal``: it does not stand still there, it dies.
    """

    at: int
    is_fatal: bool = False
    requests: int = 0
    reached: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)

    async def passed(self, process: Process) -> None:
        self.requests += 1
        if self.requests == self.at:
            self.reached.set()
            if self.is_fatal:
                process.is_dead = True
                process.step()
            await self.released.wait()


class StagedWorld(World):
    """A world without chance: no faults, and processes that are stopped as told."""

    def __init__(self, root: Path) -> None:
        super().__init__(seed=1, root=root, faults_per_request=0.0)
        self.stops: dict[int, Stop] = {}

    def remote(self, process: Process) -> Remote:
        remote = super().remote(process)
        stop = self.stops.get(id(process))
        if stop is None:
            return remote
        store, catalog = remote.store._store, remote.catalog
        before, chance = store.before, catalog._chance

        async def held_before(operation: str, key: str) -> None:
            await stop.passed(process)
            await before(operation, key)

        async def held_chance(func: Callable[[], Awaitable[object]], what: str) -> object:
            await stop.passed(process)
            return await chance(func, what)

        store.before, catalog._chance = held_before, held_chance
        return remote

    @asynccontextmanager
    async def machine(self, stop: Stop | None = None) -> AsyncIterator[Process]:
        """A process, stopped where ``stop`` says."""
        async with self.process() as process:
            if stop is not None:
                self.stops[id(process)] = stop
            yield process

    async def ship_all(self, directory: Path, stop: Stop | None = None) -> None:
        """A courier's whole life on one directory: everything with a sidecar is shipped and told of."""
        async with self.machine(stop) as process, self.courier(process, directory) as courier:
            report = await courier.flush(timeout=3600)
            assert report.rows_owed == ()

    async def pull_all(self, uri: str, dest: Path, stop: Stop | None = None) -> tuple[str, int, Files] | None:
        """A reader's whole life."""
        async with self.machine(stop) as process:
            return await self.pull(process, uri, dest)

    def counts_and_agrees(self, name: str) -> tuple[int, str]:
        """Epoch and prefix of the head that counts; its row says the same, and no upload was left open."""
        head = self.head(name)
        (row,) = self.d1.sql("SELECT epoch, r2_prefix FROM checkpoints WHERE name = ?", [name])
        assert (row["epoch"], row["r2_prefix"]) == (head["epoch"], head["prefix"])
        assert self.bucket.open_uploads() == []
        return head["epoch"], head["prefix"]

    def keys_of(self, name: str) -> list[str]:
        """All keys of files, sidecars and manifests of a name, whatever ship they belong to."""
        keys = self.bucket.keys(f"jobs/{JOB}/{name}/") + self.bucket.keys(f"jobs/{JOB}/.r2d1/v/")
        return [key for key in keys if f"/{name}/" in key]


async def beside(stop: Stop, first: Callable[[], Awaitable[object]], second: Callable[[], Awaitable[object]]) -> None:
    """Run ``first`` until it stops (or ends), then ``second`` to its end, then the rest of ``first``."""

    async def run() -> None:
        await first()
        stop.reached.set()  # it ended before it came so far

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await stop.reached.wait()
        await second()
        stop.released.set()


__all__ = ["JOB", "Files", "StagedWorld", "Stop", "beside", "files_of"]
