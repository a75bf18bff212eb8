"""A ship is given up while its head's PUT may still be on its way: the head never names what was deleted."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from r2d1.errors import PreconditionFailed
from r2d1.testing import CutReply, Fault, S3Double, Swallow, When
from r2d1.testing.memory import MemoryStore
from tests.checkpoints import MIB, random_files, write_checkpoint
from tests.protocol.test_two_couriers import OF, Scene, Stopper, at_every_step, data_of, stopped_beside
from tests.remote_ends import open_courier

Late = Callable[[], Awaitable[object]]


async def die_with_the_head_under_way(scene: Scene, epoch: int) -> Late:
    """A courier dies while its head's PUT is in the network; what is returned lets it arrive."""
    sent: list[tuple[Any, ...]] = []
    stopper, real = Stopper(None), MemoryStore.put

    async def put(self: MemoryStore, key: str, source: Any, **options: Any) -> str:
        if key != OF.head:
            return await real(self, key, source, **options)
        sent.append((key, source, options))
        stopper.reached.set()
        await anyio.sleep_forever()
        raise AssertionError("unreachable")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryStore, "put", put)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.ship, "A", epoch, data_of(epoch), stopper)
            await stopper.reached.wait()
            stopper.is_dead = True
            tasks.cancel_scope.cancel()
    ((key, source, options),) = sent

    async def arrive() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await MemoryStore(scene.bucket, after=scene.observe).put(key, source, **options)
            except PreconditionFailed:
                return

    return arrive


@pytest.mark.parametrize("is_first", [True, False])
def test_a_head_that_arrives_after_its_courier_died(tmp_path: Path, is_first: bool) -> None:
    """The slot is rewritten and shipped anew; whenever the old PUT arrives, the newest version counts in the end."""

    async def scenario(scene: Scene, steps: int) -> bool:
        if not is_first:
            await scene.ship("A", 1, data_of(1))
        arrive = await die_with_the_head_under_way(scene, 2)
        is_stopped = await stopped_beside(lambda stopper: scene.ship("A", 3, data_of(3), stopper), steps, arrive)
        assert await scene.pull() == (3, data_of(3))
        return is_stopped

    assert at_every_step(tmp_path, scenario) > 10


def test_a_directory_copied_with_its_journal(tmp_path: Path) -> None:
    """The copy's courier believes that the other one's ship is its own, and gives it up while that one commits."""

    async def scenario(scene: Scene, steps: int) -> bool:
        arrive = await die_with_the_head_under_way(scene, 2)
        shutil.copytree(scene.root / "A", scene.root / "B")
        is_stopped = await stopped_beside(lambda stopper: scene.ship("B", 2, data_of(2), stopper), steps, arrive)
        await scene.ship("A", 2, data_of(2))
        assert await scene.pull() == (2, data_of(2))
        return is_stopped

    assert at_every_step(tmp_path, scenario) > 10


@pytest.mark.parametrize("lost", [Swallow(), CutReply(after=10)])
async def test_an_upload_whose_id_was_never_learnt(s3: S3Double, tmp_path: Path, lost: Any) -> None:
    """The reply to Create is lost, and a second upload is begun: the first one goes with its ship."""
    s3.faults.add(Fault(When(operation="CreateMultipartUpload"), lost))
    async with open_courier(s3, part_size=MIB) as courier:
        await courier.ship(write_checkpoint(tmp_path, "slot_0", 1, random_files(a=3 * MIB)), "job")
        assert s3.open_uploads == 1
        for epoch in (2, 3):
            await courier.ship(write_checkpoint(tmp_path, "slot_0", epoch, random_files(a=3 * MIB)), "job")
    assert s3.open_uploads == 0
