"""The real courier, fetcher and journal over simulated remote ends: whatever dies, the end is the same."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import anyio
import pytest

from r2d1 import gc, maintain
from r2d1.errors import FlushError, R2D1Error
from r2d1.events import Teller
from r2d1.keys import CheckpointKeys
from tests.simulation.clock import run_virtual
from tests.simulation.trainer import Trainer
from tests.simulation.world import JOB, World, files_of

SEEDS = int(os.environ.get("R2D1_SIMULATION_SEEDS", "200"))
BLOCKS = 8


async def live(world: World) -> None:
    """One run: a trainer saves, couriers come and crash, machines are lost, a reader pulls, and at last all is quiet."""
    first = Trainer(world, world.root / "machine-0")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_now_and_then, world)
        if world.rng.random() < 0.2:
            tasks.start_soon(clean_up_under_way, world)
        last = await live_through(world, first)
        if world.rng.random() < 0.3:
            await remove_one(world, last)
        world.faults_per_request = 0.0
        for trainer in last:
            await settle(world, trainer)
        tasks.cancel_scope.cancel()
    await check_end(world, last)


async def live_through(world: World, first: Trainer) -> list[Trainer]:
    """One machine all along, or its disk is lost, or its replacement starts beside it; returns the trainers left."""
    await live_on(world, first, world.rng.randint(1, 3))
    fate = world.rng.choice(["same machine", "disk lost", "two machines"])
    if fate == "same machine":
        return [first]
    second = Trainer(world, world.root / "machine-1", chk_only=True)
    await resume(world, second)
    first.chk_only = True
    async with anyio.create_task_group() as tasks:
        if fate == "two machines":
            tasks.start_soon(live_on, world, first, 1)
        await live_on(world, second, world.rng.randint(1, 2))
    return [first, second] if fate == "two machines" else [second]


async def live_on(world: World, trainer: Trainer, lives: int) -> None:
    """A machine's life: couriers start, ship beside the trainer, and end by a crash or in peace."""
    rng = world.rng
    for _ in range(lives):
        async with world.process(crash_after=rng.choice([None, rng.randint(5, 300)])) as process:
            try:
                async with world.courier(process, trainer.directory, **watch_options(world, trainer)):
                    for _ in range(rng.randint(1, 3)):
                        await trainer.save()
                        if rng.random() < 0.2:
                            trainer.rotate()
                        await anyio.sleep(rng.random() * 8)
            except FlushError as error:  # what was rotated away before it could be shipped, and the store's faults
                assert not error.unfinished or world.faults_per_request
        if rng.random() < 0.3:
            await trainer.save()  # while the courier is down


def watch_options(world: World, trainer: Trainer) -> dict[str, object]:
    """A restart may bring another setting; other links make other states, so what was under way is sent anew."""
    if world.rng.random() < 0.1:
        trainer.snapshot = "hardlink" if trainer.snapshot is None else None
        world.counts.sent_again += world.written()
    return {"newest_first": world.rng.random() < 0.2, "snapshot": trainer.snapshot}


async def resume(world: World, trainer: Trainer) -> None:
    """A replacement machine: pull latest into its directory and train on from there."""
    while True:
        async with world.process() as process:
            try:
                pulled = await world.pull(process, f"r2://jobs/{JOB}/latest", trainer.directory)
            except R2D1Error:
                continue
        if pulled is not None:
            world.check_pulled(pulled)
            trainer.epoch = pulled[1]
        return


async def read_now_and_then(world: World) -> None:
    """A reader elsewhere, who may crash as well: what it pulls is some whole version, and never an older one.

    Older than what it, or anybody, could have had when it began; an operator's ``rm`` alone may turn latest back.
    """
    rng = random.Random(world.seed)
    while True:
        await anyio.sleep(rng.random() * 20)
        async with world.process(crash_after=rng.choice([None, 40])) as process:
            removals = len(world.removed)
            kept = (head["epoch"] for head in world.live_heads() if head["name"] not in world.removed)
            floor = max(kept, default=-1)
            try:
                pulled = await world.pull(process, f"r2://jobs/{JOB}/latest", world.root / "reader")
            except R2D1Error:
                continue
            if pulled is not None:
                world.check_pulled(pulled)
            if removals == len(world.removed):
                assert (pulled[1] if pulled else -1) >= floor, "latest went backwards"


async def clean_up_under_way(world: World) -> None:
    """A week passes in the bucket in one moment: its uploads expire, and gc takes for dead what is still being sent."""
    rng = random.Random(world.seed + 1)
    for _ in range(rng.randint(1, 6)):
        await anyio.sleep(rng.random() * 6)
        world.days += 8
        world.counts.sent_again += 2 * world.written()  # for the uploads that expire, and for the ships that gc takes
        async with world.process(crash_after=rng.choice([None, 20])) as process:
            try:
                await gc.collect(world.remote(process).store, JOB, Teller(None), rng, delete=True)
            except R2D1Error:
                continue


async def remove_one(world: World, trainers: list[Trainer]) -> None:
    """An operator removes a checkpoint by name while couriers may be at it; its folder is gone, too."""
    name = world.rng.choice(trainers[0].names or ["chk_9999"])
    for trainer in trainers:
        trainer.delete(name)
    world.removed.add(name)
    world.counts.sent_again += world.written()  # what a snapshot brings back was deleted from the bucket as well
    async with world.process(crash_after=world.rng.choice([None, 10])) as process:
        try:
            await maintain.remove(world.remote(process), CheckpointKeys(JOB, name), world.rng)
        except R2D1Error:
            return


async def settle(world: World, trainer: Trainer) -> None:
    """A last courier without faults brings everything home."""
    async with (
        world.process() as process,
        world.courier(process, trainer.directory, snapshot=trainer.snapshot) as courier,
    ):
        await trainer.finish()
        await courier.flush(timeout=7200)


async def check_end(world: World, trainers: list[Trainer]) -> None:
    """All that has a sidecar is committed, told of by its row, pulled as it was written; and gc leaves nothing over."""
    world.observe()
    has_rows = world.d1.sql("SELECT 1 FROM sqlite_master WHERE name = 'checkpoints'")  # no courier had one to write
    rows = {row["name"]: row for row in world.d1.sql("SELECT * FROM checkpoints")} if has_rows else {}
    for trainer in trainers:
        for name in trainer.names:
            head = world.head(name)
            local = json.loads((trainer.directory / f"{name}.json").read_text())
            assert head["epoch"] == local["epoch"], name
            async with world.process() as process:
                pulled = await world.pull(process, f"r2://jobs/{JOB}/{name}", world.root / "check")
            assert pulled is not None
            world.check_pulled(pulled)
            if len(trainers) == 1:
                assert pulled == (name, local["epoch"], files_of(trainer.directory / name))
    heads = {head["name"]: (head["epoch"], head["prefix"]) for head in world.live_heads()}
    told = {str(name): (row["epoch"], row["r2_prefix"]) for name, row in rows.items()}
    assert told.keys() - world.removed == heads.keys() - world.removed, "rows and heads name other checkpoints"
    for name in heads.keys() - world.removed:
        assert told[name] == heads[name], f"{name}: its row is not that of its head"
    assert world.counts.sent <= world.written() + world.counts.sent_again, "too much was sent again"
    await check_garbage(world)


async def check_garbage(world: World) -> None:
    """After gc no upload is open and every object below a prefix belongs to a ship that a head names."""
    await anyio.sleep(8 * 86_400)
    async with world.process() as process:
        store = world.remote(process).store
        for _ in range(2):
            await gc.collect(store, JOB, Teller(None), world.rng, delete=True)
    world.observe()
    assert not world.bucket.open_uploads(), "multipart uploads were left open"
    heads = [world.head(name) for name in world.head_names()]
    needed = {head[which] for head in heads if not head["deleted"] for which in ("prefix", "replaces")}
    for key in world.bucket.keys(f"jobs/{JOB}/"):
        if "/.r2d1/v/" in key or "/.r2d1/" not in key:
            assert any(prefix and key.startswith(f"{prefix}/") for prefix in needed), f"{key} was left over"


def run(seed: int, root: Path) -> World:
    world = World(seed, root)
    run_virtual(live, world)
    return world


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_seed_ends_well(block: int, tmp_path: Path) -> None:
    """Any interleaving, fault or crash ends with every checkpoint committed, its row right, and no part ever seen."""
    totals = {"seeds": 0, "requests": 0, "faults": 0, "crashes": 0, "pulls": 0}
    for seed in range(block, SEEDS, BLOCKS):
        try:
            counts = run(seed, tmp_path / str(seed)).counts
        except BaseException as error:
            raise AssertionError(f"seed {seed} failed") from error
        totals["seeds"] += 1
        for name in ("requests", "faults", "crashes", "pulls"):
            totals[name] += getattr(counts, name)
    print(totals)


def test_a_seed_fixes_everything(tmp_path: Path) -> None:
    """The same seed gives the same requests in the same order."""
    assert run(7, tmp_path / "one").log == run(7, tmp_path / "two").log
