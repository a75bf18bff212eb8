"""Two couriers and a reader meet under one name: the real code, stopped at every request in turn."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from r2d1.courier import AsyncCourier
from r2d1.digest import hex_of
from r2d1.events import Event, Teller
from r2d1.fetcher import AsyncFetcher
from r2d1.gc import collect
from r2d1.keys import CheckpointKeys
from r2d1.remote import Remote
from r2d1.settings import Settings
from r2d1.sidecar import write_sidecar
from r2d1.tasks import inline
from r2d1.testing.bucket import Bucket
from r2d1.testing.memory import MemoryStore
from r2d1.testing.rules import Rules
from tests.simulation.clock import run_virtual

OF = CheckpointKeys("job", "slot_0")


def quiet(event: Event) -> None: ...


@dataclass(slots=True)
class Stopper:
    """Lets a process make ``steps`` requests, then holds it until it is released."""

    steps: int | None
    reached: anyio.Event = field(default_factory=anyio.Event)
    released: anyio.Event = field(default_factory=anyio.Event)
    made: int = 0
    is_dead: bool = False

    async def before(self, operation: str, key: str) -> None:
        if self.is_dead:
            await anyio.sleep_forever()
        if self.steps is not None and self.made == self.steps:
            self.reached.set()
            await self.released.wait()
        self.made += 1


@dataclass(slots=True)
class Scene:
    """One bucket and several machines."""

    root: Path
    ships: int = 0
    bucket: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.bucket = Bucket(Rules.lenient(), clock=lambda: 1_700_000_000 + anyio.current_time())

    def write(self, machine: str, epoch: int, data: bytes) -> Path:
        folder = self.root / machine / "slot_0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "a.bin").write_bytes(data)
        (folder / "b.bin").write_bytes(data[::-1])
        write_sidecar(folder, epoch=epoch, timestamp=float(epoch))
        return folder

    async def ship(self, machine: str, epoch: int, data: bytes, stopper: Stopper | None = None) -> None:
        folder = self.write(machine, epoch, data)
        store = MemoryStore(self.bucket, before=stopper.before if stopper else None, after=self.observe)
        self.ships += 1
        rng = random.Random(f"{machine} {self.ships}")
        async with AsyncCourier(Settings(), given=Remote(store, None), rng=rng, observer=quiet) as courier:
            courier._lane.part_size = 64
            await courier.ship(folder, "job")

    async def pull(self, stopper: Stopper | None = None) -> tuple[int, bytes] | None:
        store = MemoryStore(self.bucket, before=stopper.before if stopper else None)
        async with AsyncFetcher(Settings(), given=Remote(store, None), observer=quiet) as fetcher:
            info = await fetcher.pull("r2://jobs/job/slot_0", self.root / "reader")
        if not info.found:
            return None
        a, b = (info.local_dir / "a.bin").read_bytes(), (info.local_dir / "b.bin").read_bytes()
        assert b == a[::-1], "a blend of two versions was pulled"
        assert info.epoch is not None
        return info.epoch, a

    async def observe(self, operation: str, key: str) -> None:
        """After every request: what the head names is whole."""
        if (head := self.head()) is None or head["deleted"]:
            return
        raw = self.read(OF.manifest(head["prefix"]))
        assert f"blake3:{hex_of(raw)}" == head["manifest"]
        for entry in json.loads(raw)["files"]:
            data = self.read(f"{head['prefix']}/{entry['path']}")
            assert f"blake3:{hex_of(data)}" == entry["digest"], "the head names a blend"

    def head(self) -> dict[str, object] | None:
        stored = self.bucket.stored(OF.head)
        return json.loads(self.read(OF.head)) if stored else None

    def read(self, key: str) -> bytes:
        stored = self.bucket.stored(key)
        assert stored is not None, f"{key} is not there"
        return b"".join(bytes(block) for block in stored.blob.blocks(0, stored.size, 1 << 20))


def data_of(epoch: int, flavour: int = 0) -> bytes:
    return random.Random(epoch * 10 + flavour).randbytes(200)


async def stopped_beside(
    slow: Callable[[Stopper], Awaitable[object]], steps: int, quick: Callable[[], Awaitable[object]]
) -> bool:
    """Run ``slow`` up to a request, ``quick`` to its end, then ``slow`` to its end; False when it has fewer."""
    stopper = Stopper(steps)
    was_stopped = False
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await slow(stopper)
            stopper.reached.set()

        tasks.start_soon(run)
        await stopper.reached.wait()
        was_stopped = stopper.made == steps and not stopper.released.is_set()
        await quick()
        stopper.released.set()
    return was_stopped


def at_every_step(tmp_path: Path, scenario: Callable[[Scene, int], Awaitable[bool]]) -> int:
    """Run a scenario with the slow one stopped at request 0, 1, 2, … until it makes no more; returns how many."""
    for steps in range(1000):

        async def run(steps: int = steps) -> bool:
            token = inline.set(lambda func: None)
            try:
                return await scenario(Scene(tmp_path / str(steps)), steps)
            finally:
                inline.reset(token)

        if not run_virtual(run):
            return steps
    raise AssertionError("it never ends")


def test_two_couriers_with_other_bytes_under_one_name(tmp_path: Path) -> None:
    """Whichever request the first one is stopped at, the head names one whole version, and it can be pulled."""

    async def scenario(scene: Scene, steps: int) -> bool:
        is_stopped = await stopped_beside(
            lambda stopper: scene.ship("A", 4, data_of(4, 0), stopper),
            steps,
            lambda: scene.ship("B", 4, data_of(4, 1)),
        )
        assert await scene.pull() in [(4, data_of(4, 0)), (4, data_of(4, 1))]
        return is_stopped

    assert at_every_step(tmp_path, scenario) > 10


def test_two_couriers_with_the_same_bytes(tmp_path: Path) -> None:
    """The second finds the first one's commit, deletes its own ship, and one set of objects is left."""

    async def scenario(scene: Scene, steps: int) -> bool:
        is_stopped = await stopped_beside(
            lambda stopper: scene.ship("A", 4, data_of(4), stopper), steps, lambda: scene.ship("B", 4, data_of(4))
        )
        assert await scene.pull() == (4, data_of(4))
        manifests = [key for key in scene.bucket.keys("jobs/job/") if key.endswith("r2d1.manifest.json")]
        assert len(manifests) == 1, manifests
        return is_stopped

    assert at_every_step(tmp_path, scenario) > 10


def test_a_redo_after_a_lost_machine(tmp_path: Path) -> None:
    """A machine dies at any request, its disk with it; a new one does the epoch again with other bytes."""

    async def scenario(scene: Scene, steps: int) -> bool:
        stopper = Stopper(steps)
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                await scene.ship("A", 4, data_of(4, 0), stopper)
                stopper.reached.set()

            tasks.start_soon(run)
            await stopper.reached.wait()
            is_stopped = stopper.made == steps
            stopper.is_dead = True
            tasks.cancel_scope.cancel()
        await scene.ship("B", 4, data_of(4, 1))
        assert await scene.pull() == (4, data_of(4, 1))
        return is_stopped

    assert at_every_step(tmp_path, scenario) > 10


def test_a_slot_written_again_beside_a_stale_courier(tmp_path: Path) -> None:
    """A slot has been shipped twice; two couriers ship it a third and fourth time, one stopped anywhere."""

    async def scenario(scene: Scene, steps: int) -> bool:
        await scene.ship("old", 1, data_of(1))
        await scene.ship("old", 2, data_of(2))
        is_stopped = await stopped_beside(
            lambda stopper: scene.ship("A", 3, data_of(3), stopper), steps, lambda: scene.ship("B", 4, data_of(4))
        )
        assert await scene.pull() in [(3, data_of(3)), (4, data_of(4))]
        return is_stopped

    assert at_every_step(tmp_path, scenario) > 10


@pytest.mark.parametrize("ships", [1, 2])
def test_a_reader_beside_reships(tmp_path: Path, ships: int) -> None:
    """A pull stopped at any request while the slot is shipped again brings one whole version, never a wrong absence."""

    async def scenario(scene: Scene, steps: int) -> bool:
        await scene.ship("A", 1, data_of(1))
        await scene.ship("A", 2, data_of(2))
        pulled: list[object] = []

        async def read(stopper: Stopper) -> None:
            pulled.append(await scene.pull(stopper))

        async def reship() -> None:
            for epoch in range(3, 3 + ships):
                await scene.ship("A", epoch, data_of(epoch))

        is_stopped = await stopped_beside(read, steps, reship)
        assert pulled[0] in [(epoch, data_of(epoch)) for epoch in range(2, 3 + ships)]
        return is_stopped

    assert at_every_step(tmp_path, scenario) >= 5


@pytest.mark.parametrize("is_first", [True, False])
def test_a_courier_beside_a_gc_that_thinks_everything_old(tmp_path: Path, is_first: bool) -> None:
    """A courier whose ship gc takes at any request starts a new one, and never commits a prefix that is gone.

    What it sent after gc had looked does not stay in the bucket for ever.
    """

    async def scenario(scene: Scene, steps: int) -> bool:
        async def take_everything() -> None:
            store = MemoryStore(scene.bucket, after=scene.observe)
            await collect(store, "job", Teller(None), random.Random(1), delete=True, gc_age_s=-1e6)

        if not is_first:
            await scene.ship("A", 3, data_of(3))
        is_stopped = await stopped_beside(
            lambda stopper: scene.ship("A", 4, data_of(4), stopper), steps, take_everything
        )
        assert await scene.pull() == (4, data_of(4))
        await take_everything()
        assert (head := scene.head()) is not None
        needed = tuple(f"{head[which]}/" for which in ("prefix", "replaces") if head[which])
        objects = [*scene.bucket.keys("jobs/job/slot_0/"), *scene.bucket.keys("jobs/job/.r2d1/v/")]
        assert not [key for key in objects if not key.startswith(needed)], "something was left over"
        return is_stopped

    assert at_every_step(tmp_path, scenario) > 10
