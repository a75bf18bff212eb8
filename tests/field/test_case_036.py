"""Field case 36: the pointer becomes visible before the data. Ours changes when everything is there, not before."""

from __future__ import annotations

import os

import anyio
import pytest

from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import PATIENCE_S, open_courier, open_fetcher

STAGES = {
    "the biggest file": "*/big.bin",
    "the sidecar": "*/chk_2/chk_2.json",
    "the manifest": "*/chk_2/r2d1.manifest.json",
    "the hint": "*/.r2d1/latest/*-chk_2.json",
    "the head": "*/.r2d1/heads/chk_2.json",
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("has_d1", [False, True], ids=["R2 only", "with D1"])
async def test_readers_see_the_previous_one_until_all_is_there(s3, d1, tmp_path, stage, has_d1):
    """While a PUT hangs, ``latest`` is the previous checkpoint and the new name is absent; afterwards it is the new."""
    catalog = d1 if has_d1 else None
    first = {"big.bin": os.urandom(300_000)}
    second = {"big.bin": os.urandom(400_000), "small.bin": b"small"}
    gate = Gate()
    async with open_courier(s3, catalog) as courier, open_fetcher(s3, catalog) as reader:
        await courier.ship(write_checkpoint(tmp_path / "up", "chk_1", 1, first), "job")
        s3.faults.add(Fault(When(method="PUT", key=STAGES[stage]), Hold(gate)))
        folder = write_checkpoint(tmp_path / "up", "chk_2", 2, second)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(courier.ship, folder, "job")
            with anyio.fail_after(PATIENCE_S):
                await gate.arrived.wait()
            before = await reader.pull("r2://jobs/job/latest", tmp_path / "before")
            absent = await reader.pull("r2://jobs/job/chk_2", tmp_path / "absent")
            gate.release()
        after = await reader.pull("r2://jobs/job/latest", tmp_path / "after")
    assert (before.epoch, absent.found, after.epoch) == (1, False, 2)
    assert files_of(before.local_dir) == first
    assert files_of(after.local_dir) == second
