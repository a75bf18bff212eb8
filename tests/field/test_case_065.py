"""Field case 65: a resumed pull glues the new bytes onto a stale partial. Ours keeps only what is verified."""

from __future__ import annotations

import os

import anyio
import pytest

from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import PATIENCE_S, open_courier, open_fetcher, stray_files

PART = 64 << 10
SIZES = {"the same size": 8 * PART, "smaller": 3 * PART + 5, "larger": 11 * PART + 7, "empty": 0}


async def ship(s3, directory, files: dict[str, bytes], epoch: int) -> None:
    folder = write_checkpoint(directory, "slot_0", epoch, files)
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")


async def leave_a_partial(s3, uri: str, dest) -> None:
    """Cancel a pull when half of its ranges have come."""
    gate = Gate()
    s3.faults.add(Fault(When(operation="GetObject", key="*/big.bin", nth=5), Hold(gate), times=None))
    async with open_fetcher(s3, tuning={"concurrency": 1}) as fetcher, anyio.create_task_group() as tasks:
        fetcher._lane.part_size = PART
        tasks.start_soon(fetcher.pull, uri, dest)
        with anyio.fail_after(PATIENCE_S):
            await gate.arrived.wait()
        tasks.cancel_scope.cancel()
    s3.faults.clear()
    gate.release()
    assert stray_files(dest) != []


@pytest.mark.parametrize("size", SIZES)
async def test_a_slot_shipped_again_after_the_interruption(s3, tmp_path, size):
    """The staged part of the old version never gets into the new one; what both share is not fetched again."""
    same = os.urandom(PART)
    await ship(s3, tmp_path / "up", {"big.bin": os.urandom(8 * PART), "same.bin": same}, 1)
    await leave_a_partial(s3, "r2://jobs/job/slot_0", tmp_path / "down")
    files = {"big.bin": os.urandom(SIZES[size]), "same.bin": same}
    await ship(s3, tmp_path / "up", files, 2)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/slot_0", tmp_path / "down")
    assert info.epoch == 2
    assert files_of(info.local_dir) == files
    assert stray_files(tmp_path / "down") == []


@pytest.mark.parametrize("size", SIZES)
async def test_an_object_replaced_after_the_interruption(s3, tmp_path, size):
    """The same for a prefix without any manifest: the object's new ETag drops what was staged of the old one."""
    s3.put("data/set/big.bin", os.urandom(8 * PART))
    await leave_a_partial(s3, "r2://data/set", tmp_path / "down")
    data = os.urandom(SIZES[size])
    s3.put("data/set/big.bin", data)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://data/set", tmp_path / "down")
    assert (info.local_dir / "big.bin").read_bytes() == data
    assert stray_files(tmp_path / "down") == []


async def test_a_resumed_pull_fetches_only_what_lacks(s3, tmp_path):
    """When nothing changed, the slices that were staged are verified and not fetched again."""
    data = os.urandom(8 * PART)
    await ship(s3, tmp_path / "up", {"big.bin": data}, 1)
    await leave_a_partial(s3, "r2://jobs/job/slot_0", tmp_path / "down")
    before = len(s3.requests)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/slot_0", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data}
    fetched = sum(r.sent for r in s3.requests[before:] if r.key.endswith("/big.bin"))
    assert fetched == 4 * PART
