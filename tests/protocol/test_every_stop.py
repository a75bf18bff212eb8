"""The real code through the interleavings that broke simpler protocols: one courier stopped at each request in turn.

After every single request of anybody the world looks at all heads: each names a whole ship whose bytes are those of its
manifest. What is checked here comes on top: how it all ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path

import anyio
import pytest

from tests.checkpoints import write_checkpoint
from tests.protocol.stopping import JOB, Files, StagedWorld, Stop, beside, files_of
from tests.simulation.clock import run_virtual
from tests.simulation.world import PART

NAME = "slot_0"
LATEST = f"r2://jobs/{JOB}/latest"


def version(letter: str) -> Files:
    """A file of several parts and a small one; every version has other bytes."""
    return {"big.bin": letter.encode() * (2 * PART + 5), "sub/small.bin": letter.encode()}


A, B, C = version("a"), version("b"), version("c")


def save(directory: Path, files: Files, epoch: int) -> None:
    """Write the slot, in place of what it held."""
    shutil.rmtree(directory / NAME, ignore_errors=True)
    write_checkpoint(directory, NAME, epoch, files)


@pytest.fixture
def worlds(tmp_path: Path) -> Callable[[], StagedWorld]:
    """A new world on each call."""
    numbers = iter(range(10_000))
    return lambda: StagedWorld(tmp_path / str(next(numbers)))


def every_stop(worlds, scenario: Callable[[StagedWorld, Stop], Awaitable[None]]) -> Iterator[int]:
    """Run a scenario with its process stopped at request 1, 2, … until it makes no more of them; yields each."""
    for at in count(1):
        world = worlds()

        async def run(world: StagedWorld = world, at: int = at) -> bool:
            stop = Stop(at)
            await scenario(world, stop)
            return stop.requests >= at

        try:
            is_stopped = run_virtual(run)
        except BaseException as error:
            error.add_note(f"stopped at request {at}; the log: {world.log}")
            raise
        if not is_stopped:
            return
        yield at


def assert_every_request_was_tried(stops: list[int], least: int) -> None:
    assert stops == list(range(1, len(stops) + 1))
    assert len(stops) >= least


async def pulled(world: StagedWorld) -> Files:
    found = await world.pull_all(LATEST, world.root / "check")
    assert found is not None
    return found[2]


def test_two_couriers_with_other_bytes_and_a_catalog(worlds):
    """Whoever writes the head last counts; never a blend, the other version outlives the commit, the row follows."""

    async def scenario(world: StagedWorld, stop: Stop) -> None:
        one, two = world.root / "one", world.root / "two"
        save(one, A, 1)
        save(two, B, 1)
        await beside(stop, lambda: world.ship_all(one, stop), lambda: world.ship_all(two))
        epoch, prefix = world.counts_and_agrees(NAME)
        files = await pulled(world)
        assert (epoch, files in (A, B)) == (1, True)
        assert len({key.partition(f"/{NAME}/")[0] for key in world.keys_of(NAME)}) == 2
        assert world.head(NAME)["replaces"] not in (None, prefix)

    assert_every_request_was_tried(list(every_stop(worlds, scenario)), 20)


def test_two_couriers_with_the_same_bytes_and_a_catalog(worlds):
    """The second one finds the first's commit and takes its own ship away: one set of objects is left."""

    async def scenario(world: StagedWorld, stop: Stop) -> None:
        one, two = world.root / "one", world.root / "two"
        save(one, A, 1)
        save(two, A, 1)
        await beside(stop, lambda: world.ship_all(one, stop), lambda: world.ship_all(two))
        _, prefix = world.counts_and_agrees(NAME)
        assert await pulled(world) == A
        assert world.head(NAME)["replaces"] is None
        assert all(key.startswith(f"{prefix}/") for key in world.keys_of(NAME)), world.keys_of(NAME)
        records = world.bucket.keys(f"jobs/{JOB}/.r2d1/ships/{NAME}/")
        assert {key.rpartition("/")[2] for key in records} <= {"0.json", f"{prefix.split('/')[-2]}.json"}

    assert_every_request_was_tried(list(every_stop(worlds, scenario)), 20)


@pytest.mark.parametrize("again", [A, B], ids=["the same bytes", "other bytes"])
def test_a_lost_machine_its_replacement_and_its_return(worlds, again):
    """A machine dies at any request, another does the epoch again, and the first comes back with its journal."""

    async def scenario(world: StagedWorld, stop: Stop) -> None:
        one, two = world.root / "one", world.root / "two"
        save(one, A, 1)
        save(two, again, 1)
        stop.is_fatal = True
        await world.ship_all(one, stop)
        await world.ship_all(two)
        assert await pulled(world) == again
        assert world.d1.sql("SELECT r2_prefix FROM checkpoints") == [{"r2_prefix": world.head(NAME)["prefix"]}]
        await world.ship_all(one)
        world.counts_and_agrees(NAME)
        assert await pulled(world) in (A, again)
        if again is A:
            prefixes = {key.partition(f"/{NAME}/")[0] for key in world.keys_of(NAME)}
            assert len(prefixes) == 1, "a ship that nobody needs was left"

    assert_every_request_was_tried(list(every_stop(worlds, scenario)), 20)


def test_a_machine_that_died_before_its_claim_takes_nothing_away(worlds):
    """Its journal names ship ``0``, which another courier claimed meanwhile: what that one sends is not touched.

    The other stands still with its first file; the first comes back and is stopped at each request in turn; the
    other goes on to its end; then the first does.
    """

    async def scenario(world: StagedWorld, stop: Stop) -> None:
        one, two = world.root / "one", world.root / "two"
        save(one, A, 1)
        save(two, B, 1)
        at_its_claim = Stop(at=4, is_fatal=True)
        await world.ship_all(one, at_its_claim)
        assert world.bucket.keys(f"jobs/{JOB}/.r2d1/ships/") == []
        with_its_first_file, ended = Stop(at=6), anyio.Event()

        async def other() -> None:
            await world.ship_all(two, with_its_first_file)
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            await with_its_first_file.reached.wait()
            assert world.log[-1].endswith("ships/slot_0/0.json")

            async def rest_of_the_other() -> None:
                with_its_first_file.released.set()
                await ended.wait()

            await beside(stop, lambda: world.ship_all(one, stop), rest_of_the_other)
        assert len([line for line in world.log if line == f"PutObject jobs/{JOB}/{NAME}/sub/small.bin"]) == 1
        world.counts_and_agrees(NAME)
        assert await pulled(world) in (A, B)

    assert_every_request_was_tried(list(every_stop(worlds, scenario)), 20)


def test_a_slot_written_again_while_it_is_shipped(worlds):
    """The trainer rewrites the slot while the courier stands at any request: the newest version is what counts."""

    async def scenario(world: StagedWorld, stop: Stop) -> None:
        one = world.root / "one"
        save(one, A, 1)

        async def rewrite() -> None:
            save(one, B, 2)

        await beside(stop, lambda: world.ship_all(one, stop), rewrite)
        await world.ship_all(one)
        epoch, _ = world.counts_and_agrees(NAME)
        assert (epoch, await pulled(world)) == (2, B)

    assert_every_request_was_tried(list(every_stop(worlds, scenario)), 20)


def test_a_slot_shipped_twice_beside_a_late_courier(worlds):
    """One courier with the first version stands still while another ships the slot twice: whole versions only."""

    async def scenario(world: StagedWorld, stop: Stop) -> None:
        one, two = world.root / "one", world.root / "two"
        save(one, A, 1)

        async def twice() -> None:
            for epoch, files in ((1, B), (2, C)):
                save(two, files, epoch)
                await world.ship_all(two)

        await beside(stop, lambda: world.ship_all(one, stop), twice)
        epoch, _ = world.counts_and_agrees(NAME)
        assert (epoch, await pulled(world)) in ((1, A), (2, C))

    assert_every_request_was_tried(list(every_stop(worlds, scenario)), 20)


@pytest.mark.parametrize("ships", [1, 2, 3])
def test_a_reader_stopped_beside_re_ships(worlds, ships):
    """A pull stopped at any request brings one whole version that was committed, however often the slot changed."""
    versions = [A, B, C, version("d")]

    async def scenario(world: StagedWorld, stop: Stop) -> None:
        one, got = world.root / "one", []
        save(one, A, 1)
        await world.ship_all(one)

        async def read() -> None:
            got.append(await world.pull_all(LATEST, world.root / "reader", stop))

        async def ship_again() -> None:
            for number in range(1, ships + 1):
                save(one, versions[number], number + 1)
                await world.ship_all(one)

        await beside(stop, read, ship_again)
        (found,) = got
        assert found is not None
        name, epoch, files = found
        assert (name, files) == (NAME, versions[epoch - 1])
        assert epoch in (1, ships + 1) or ships == 2

    assert_every_request_was_tried(list(every_stop(worlds, scenario)), 6)


def test_a_reader_beside_a_courier_that_stands_still(worlds):
    """While a re-ship stands at any request, a pull brings the old version whole, or the new one, never an error."""
    seen: list[int] = []

    async def scenario(world: StagedWorld, stop: Stop) -> None:
        one = world.root / "one"
        save(one, A, 1)
        await world.ship_all(one)
        save(one, B, 2)

        async def read() -> None:
            found = await world.pull_all(LATEST, world.root / "reader")
            assert found is not None
            assert found[2] == {1: A, 2: B}[found[1]]
            seen.append(found[1])

        await beside(stop, lambda: world.ship_all(one, stop), read)
        assert world.counts_and_agrees(NAME)[0] == 2

    assert_every_request_was_tried(list(every_stop(worlds, scenario)), 20)
    assert seen == sorted(seen)  # the later it stands still, the newer the version; in between there is nothing
    assert set(seen) == {1, 2}


def test_what_was_pulled_is_what_the_folder_holds(worlds):
    """The helper that reads folders misses nothing, or all of the above would say little."""
    world = worlds()
    save(world.root / "one", A, 1)
    assert files_of(world.root / "one" / NAME) == A
