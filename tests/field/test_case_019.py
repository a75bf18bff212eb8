"""Field case 19: cancelling leaves workers uploading. Ours stops at once and leaves what the next run resumes."""

from __future__ import annotations

import os

import anyio

from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import FIXED, IN_FLIGHT, PATIENCE_S, assert_nothing_left, open_courier, open_fetcher

PART = 64 << 10
PARTS = 40


def settled(s3) -> int:
    """Count the requests once the double has ended all it was about to answer; it serves on afterwards."""
    s3.close()
    s3.start()
    return len(s3.requests)


async def test_a_cancelled_ship_stops_and_is_resumed(s3, tmp_path):
    """After a cancellation no request follows and no task is left; the next ship sends only the parts that lack."""
    data = os.urandom(PART * PARTS)
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"big.bin": data})
    gate = Gate()
    held = When(operation="UploadPart", matches=lambda call: call.part_number > 20)
    s3.faults.add(Fault(held, Hold(gate), times=None))
    async with open_courier(s3, part_size=PART, tuning=FIXED) as courier:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(courier.ship, folder, "job")
            with anyio.fail_after(PATIENCE_S):
                await gate.arrived.wait()
            tasks.cancel_scope.cancel()
    after = settled(s3)
    taken = {r.part_number for r in s3.requests if r.operation == "UploadPart" and r.status == 200}
    assert taken
    assert s3.open_uploads == 1
    s3.faults.clear()
    gate.release()
    async with open_courier(s3, part_size=PART, tuning=FIXED) as courier:
        assert len(s3.requests) == after
        await courier.ship(folder, "job")
    sent = {r.part_number for r in s3.requests[after:] if r.operation == "UploadPart"}
    assert sent >= set(range(1, PARTS + 1)) - taken
    assert len(sent & taken) <= IN_FLIGHT  # those whose reply came after the journal was closed
    assert_nothing_left(s3, tmp_path)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data}


async def test_a_time_out_leaves_no_task(s3, tmp_path):
    """A watch ended by the caller's time-out ends with it: no task, no request afterwards, nothing committed."""
    write_checkpoint(tmp_path, "chk_1", 1, {"big.bin": os.urandom(PART * PARTS)})
    gate = Gate()
    s3.faults.add(Fault(When(operation="UploadPart", part=9), Hold(gate), times=None))
    with anyio.CancelScope() as scope:
        async with open_courier(s3, part_size=PART, tuning=FIXED) as courier:
            await courier.watch(tmp_path, "job")
            await gate.arrived.wait()
            scope.deadline = anyio.current_time()
            await courier.flush()
    assert scope.cancelled_caught
    after = settled(s3)
    assert s3.keys("jobs/job/.r2d1/heads/") == []
    s3.faults.clear()
    gate.release()
    async with open_courier(s3, part_size=PART, tuning=FIXED) as courier:
        assert len(s3.requests) == after
        await courier.watch(tmp_path, "job")
        await courier.flush()
    assert_nothing_left(s3, tmp_path)
