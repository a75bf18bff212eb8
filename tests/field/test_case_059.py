"""Field case 59: an object replaced during a ranged download. Ours is an error or a clean restart, never a blend."""

from __future__ import annotations

import os
from itertools import count

import anyio
import pytest

from r2d1.errors import IntegrityError
from r2d1.testing import Fault, Gate, Hold, Hook, Rewrite, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import FIXED, IN_FLIGHT, PATIENCE_S, open_courier, open_fetcher

PART = 64 << 10
KEY = "jobs/job/slot_0/big.bin"
RANGE = When(operation="GetObject", key="*/big.bin", nth=3)
ONE_AT_A_TIME = {"concurrency": 1}


async def ship(s3, directory, data: bytes, epoch: int = 1) -> None:
    folder = write_checkpoint(directory, "slot_0", epoch, {"big.bin": data})
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")


async def test_other_bytes_under_the_same_key(s3, tmp_path):
    """Bytes swapped behind the head's back after 2 of 8 ranges: an error with both digests, and no final folder."""
    await ship(s3, tmp_path / "up", os.urandom(8 * PART))
    s3.faults.add(Fault(RANGE, Hook(before=lambda call: s3.put(KEY, os.urandom(8 * PART)))))
    async with open_fetcher(s3, tuning=ONE_AT_A_TIME) as fetcher:
        with pytest.raises(IntegrityError, match=r"expected blake3:[0-9a-f]{64}, got blake3:[0-9a-f]{64}"):
            await fetcher.pull("r2://jobs/job/slot_0", tmp_path / "down")
    assert not (tmp_path / "down" / "slot_0").exists()


async def test_the_same_object_with_ever_other_etags(s3, tmp_path):
    """A server whose answers name another ETag each time does not keep a pull from ending: the digests decide."""
    data = os.urandom(8 * PART)
    await ship(s3, tmp_path / "up", data)
    numbers = count()
    odd = Rewrite(lambda call: {"ETag": f'"{next(numbers):032x}"'})
    s3.faults.add(Fault(When(operation="GetObject", key="*/big.bin"), odd, times=None))
    before = len(s3.requests)
    async with open_fetcher(s3, tuning=FIXED) as fetcher:
        info = await fetcher.pull("r2://jobs/job/slot_0", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data}
    ranges = [r for r in s3.requests[before:] if r.operation == "GetObject" and r.key == KEY]
    assert len(ranges) <= 8 + IN_FLIGHT


async def test_shipped_again_during_the_pull(s3, tmp_path):
    """A slot shipped twice more while its first version is being pulled: the pull starts again and brings the newest."""
    old, new = os.urandom(8 * PART), os.urandom(8 * PART)
    await ship(s3, tmp_path / "up", old)
    gate, pulled = Gate(), []
    s3.faults.add(Fault(RANGE, Hold(gate)))

    async def pull() -> None:
        async with open_fetcher(s3, tuning=ONE_AT_A_TIME) as fetcher:
            pulled.append(await fetcher.pull("r2://jobs/job/slot_0", tmp_path / "down"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pull)
        with anyio.fail_after(PATIENCE_S):
            await gate.arrived.wait()
        await ship(s3, tmp_path / "up", os.urandom(8 * PART), epoch=2)
        await ship(s3, tmp_path / "up", new, epoch=3)
        gate.release()
    assert pulled[0].epoch == 3
    assert files_of(pulled[0].local_dir) == {"big.bin": new}


async def test_shipped_again_once_during_the_pull(s3, tmp_path):
    """After one re-ship the old version is still all there: the pull that began with it brings it whole."""
    old = os.urandom(8 * PART)
    await ship(s3, tmp_path / "up", old)
    gate, pulled = Gate(), []
    s3.faults.add(Fault(RANGE, Hold(gate)))

    async def pull() -> None:
        async with open_fetcher(s3, tuning=ONE_AT_A_TIME) as fetcher:
            pulled.append(await fetcher.pull("r2://jobs/job/slot_0", tmp_path / "down"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pull)
        with anyio.fail_after(PATIENCE_S):
            await gate.arrived.wait()
        await ship(s3, tmp_path / "up", os.urandom(8 * PART), epoch=2)
        gate.release()
    assert pulled[0].epoch == 1
    assert files_of(pulled[0].local_dir) == {"big.bin": old}
