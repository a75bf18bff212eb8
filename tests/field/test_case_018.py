"""Field case 18: one part fails for good and the whole upload hangs. Ours ends soon, and other checkpoints go on."""

from __future__ import annotations

import os

import pytest

from r2d1.errors import FlushError
from r2d1.events import Committed, ShipFailed
from r2d1.testing import Answer, Fault, Reset, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import FIXED, IN_FLIGHT, Told, assert_nothing_left, open_courier, open_fetcher

PART = 1024
PARTS = 100


def is_late_part(call) -> bool:
    return call.operation == "UploadPart" and "chk_1/" in call.key and call.part_number > 3


def parts_of(s3, name: str, *statuses: int | None) -> list[int]:
    """The numbers of the parts that were sent, or of those that were answered like this."""
    sent = [record for record in s3.requests if record.operation == "UploadPart" and f"/{name}/" in record.key]
    return [record.part_number for record in sent if not statuses or record.status in statuses]


async def test_a_part_that_is_refused(s3, tmp_path):
    """A 400 is not repeated, the upload is aborted, nothing is left, and the next checkpoint is shipped."""
    s3.faults.add(Fault(When(matches=is_late_part), Answer(400, "InvalidRequest"), times=None))
    write_checkpoint(tmp_path, "chk_1", 1, {"big.bin": os.urandom(PART * PARTS)})
    told = Told()
    async with open_courier(s3, part_size=PART, observer=told, drain_timeout=0.1, tuning=FIXED) as courier:
        await courier.watch(tmp_path, "job")
        await told.first(ShipFailed)
        write_checkpoint(tmp_path, "chk_2", 2, {"big.bin": os.urandom(PART * 4)})
        await told.first(Committed)
        assert "InvalidRequest" in courier.status().parked["job/chk_1"]
        assert s3.open_uploads == 0
        assert len(parts_of(s3, "chk_1")) <= 3 + IN_FLIGHT
        s3.faults.clear()
        await courier.flush()  # the reason is gone: both are there in the end
    assert [event.name for event in told.of(Committed)] == ["chk_2", "chk_1"]
    assert_nothing_left(s3, tmp_path)


async def test_a_part_whose_connection_is_reset(s3, tmp_path):
    """Resets are repeated a bounded number of times; then it waits its turn, and later goes on with the parts it has."""
    s3.faults.add(Fault(When(matches=is_late_part), Reset(), times=None))
    data = os.urandom(PART * PARTS)
    write_checkpoint(tmp_path, "chk_1", 1, {"big.bin": data})
    told = Told()
    async with open_courier(s3, part_size=PART, observer=told, tuning=FIXED) as courier:
        await courier.watch(tmp_path, "job")
        await told.first(ShipFailed)
        attempts = 8 * IN_FLIGHT
        assert len(parts_of(s3, "chk_1")) <= 3 + attempts
        write_checkpoint(tmp_path, "chk_2", 2, {"big.bin": os.urandom(PART * 4)})
        await told.first(Committed)
        with pytest.raises(FlushError, match="chk_1"):
            await courier.flush()
        s3.close()  # what was cut off on its way is not answered any more
        s3.start()
        s3.faults.clear()
        assert sorted(parts_of(s3, "chk_1", 200)) == [1, 2, 3]
        await courier.flush()
        assert sorted(parts_of(s3, "chk_1", 200)) == list(range(1, PARTS + 1))  # each was taken once
    assert_nothing_left(s3, tmp_path)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/chk_1", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data}
