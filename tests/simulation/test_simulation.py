"""The real courier, fetcher and journal over simulated remote ends: whatever dies, the end is the same."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import anyio
import pytest

from r2d1.courier import AsyncCourier
from r2d1.errors import FlushError, R2D1Error
from tests.simulation.clock import run_virtual
from tests.simulation.trainer import Trainer
from tests.simulation.world import JOB, World, files_of

SEEDS = int(os.environ.get("R2D1_SIMULATION_SEEDS", "200"))


async def live(world: World) -> None:
    """One run: a trainer saves, couriers come and crash, a reader pulls, and at last all is quiet."""
    here = world.root / "machine-0"
    here.mkdir(parents=True)
    trainer = Trainer(world, here)
    rng = world.rng
    for life in range(rng.randint(1, 4)):
        async with world.process(crash_after=rng.randint(5, 400)) as process:
            async with world.courier(process, here) as courier:
                for _ in range(rng.randint(1, 3)):
                    trainer.save()
                    if rng.random() < 0.2:
                        trainer.rotate()
                    await anyio.sleep(rng.random() * 8)
                    if rng.random() < 0.4:
                        await read(world, life)
                await flush(courier)
        if rng.random() < 0.3:
            trainer.save()  # while the courier is down
    await settle(world, trainer)


async def read(world: World, life: int) -> None:
    """A reader on another machine, who may crash as well and whose faults are his own."""
    async with world.process(crash_after=world.rng.choice([None, 40])) as process:
        try:
            pulled = await world.pull(process, f"r2://jobs/{JOB}/latest", world.root / f"reader-{life % 2}")
        except R2D1Error:
            return
        if pulled is not None:
            world.check_pulled(pulled)
            assert pulled[1] >= world.latest_epoch, "latest went backwards"
            world.latest_epoch = pulled[1]


async def flush(courier: AsyncCourier) -> None:
    try:
        await courier.flush(timeout=600)
    except FlushError:
        return


async def settle(world: World, trainer: Trainer) -> None:
    """Without faults everything that has a sidecar must be committed, told of, and pulled as it was written."""
    world.faults_per_request = 0.0
    async with world.process() as process, world.courier(process, trainer.directory) as courier:
        await courier.flush(timeout=7200)
    world.observe()
    rows = {row["name"]: row for row in world.d1.sql("SELECT * FROM checkpoints")}
    for name in trainer.names:
        head = json.loads(world._read(f"jobs/{JOB}/.r2d1/heads/{name}.json"))
        local = json.loads((trainer.directory / f"{name}.json").read_text())
        assert head["epoch"] == local["epoch"]
        assert (rows[name]["epoch"], rows[name]["r2_prefix"]) == (head["epoch"], head["prefix"])
        async with world.process() as process:
            pulled = await world.pull(process, f"r2://jobs/{JOB}/{name}", world.root / "check")
        assert pulled == (name, local["epoch"], files_of(trainer.directory / name))


def run(seed: int, root: Path) -> World:
    world = World(seed, root)
    run_virtual(live, world)
    return world


@pytest.mark.parametrize("block", range(8))
def test_every_seed_ends_well(block: int, tmp_path: Path) -> None:
    """Any interleaving, fault or crash ends with every checkpoint committed, its row right, and no part ever seen."""
    for seed in range(block, SEEDS, 8):
        try:
            run(seed, tmp_path / str(seed))
        except BaseException as error:
            raise AssertionError(f"seed {seed} failed") from error


def test_a_seed_fixes_everything(tmp_path: Path) -> None:
    """The same seed gives the same requests in the same order."""
    assert run(7, tmp_path / "one").log == run(7, tmp_path / "two").log
