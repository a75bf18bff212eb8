"""Field case 21: the upload id disappears, or the reply to Complete is lost. One clean restart; nothing twice."""

from __future__ import annotations

import os

import pytest

from r2d1.errors import R2D1Error, RemoteUnavailable
from r2d1.testing import Answer, Fault, Hook, RequestRecord, Reset, Swallow, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import assert_nothing_left, open_courier, open_fetcher

PART = 1024
PARTS = 12
KEY = "jobs/job/chk_1/big.bin"
COMPLETE = When(operation="CompleteMultipartUpload")


def forget(s3) -> Hook:
    """The store loses every upload that is open."""

    def hook(_: object) -> None:
        for upload in s3.model.open_uploads():
            s3.model.forget_upload(upload.upload_id)

    return Hook(after=hook)


def count(s3, operation: str) -> int:
    return [record.operation for record in s3.requests].count(operation)


def taken(s3) -> list[int]:
    """The numbers of the parts that the store took, in order."""
    return sorted(r.part_number for r in s3.requests if r.operation == "UploadPart" and r.status == 200)


@pytest.fixture
def data() -> bytes:
    return os.urandom(PART * PARTS)


async def ship(s3, tmp_path, data) -> None:
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"big.bin": data})
    async with open_courier(s3, part_size=PART, tuning={"concurrency": 1}) as courier:
        await courier.ship(folder, "job")


async def assert_there(s3, tmp_path, data) -> None:
    assert_nothing_left(s3, tmp_path / "up")
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data}


async def test_the_store_forgets_the_upload_after_part_5(s3, tmp_path, data):
    """One new upload is begun, every part is sent to it, and the checkpoint is there."""
    s3.faults.add(Fault(When(operation="UploadPart", part=5), forget(s3)))
    await ship(s3, tmp_path, data)
    assert count(s3, "CreateMultipartUpload") == 2
    assert taken(s3) == sorted([*range(1, 6), *range(1, PARTS + 1)])
    await assert_there(s3, tmp_path, data)


async def test_the_store_forgets_it_every_time(s3, tmp_path, data):
    """Restarts are bounded: three of the file for each of three ships. Nothing is left open, and later all is well."""
    s3.faults.add(Fault(When(operation="UploadPart", part=5), forget(s3), times=None))
    with pytest.raises(R2D1Error, match="3 ships were taken away"):
        await ship(s3, tmp_path, data)
    assert count(s3, "CreateMultipartUpload") == 9
    assert s3.keys("jobs/job/.r2d1/heads/") == []
    assert_nothing_left(s3, tmp_path / "up")
    s3.faults.clear()
    await ship(s3, tmp_path, data)
    await assert_there(s3, tmp_path, data)


async def test_the_reply_to_complete_is_lost(s3, tmp_path, data):
    """The object is looked at: its size and ETag are those of what was sent, so it counts, and no part goes twice."""
    s3.faults.add(Fault(COMPLETE, Swallow()))
    await ship(s3, tmp_path, data)
    assert (count(s3, "CreateMultipartUpload"), taken(s3)) == (1, list(range(1, PARTS + 1)))
    assert any(record.operation == "HeadObject" and record.key == KEY for record in s3.requests)
    await assert_there(s3, tmp_path, data)


async def test_another_object_lies_at_the_key(s3, tmp_path, data):
    """After a lost reply an object of other bytes does not pass for ours: all is sent again."""

    def replace(record: RequestRecord) -> None:
        if record.fault == "Swallow":
            s3.put(KEY, bytes(PART * PARTS))

    s3.after_request = replace
    s3.faults.add(Fault(COMPLETE, Swallow()))
    await ship(s3, tmp_path, data)
    assert (count(s3, "CreateMultipartUpload"), len(taken(s3))) == (2, 2 * PARTS)
    await assert_there(s3, tmp_path, data)


@pytest.mark.parametrize("mishap", [Reset(), Answer(500, "InternalError"), Answer(503, "ServiceUnavailable")], ids=str)
async def test_complete_is_never_carried_out(s3, tmp_path, data, mishap):
    """A Complete that failed before it did anything is asked again; the parts are in the store and none goes twice."""
    s3.faults.add(Fault(COMPLETE, mishap))
    await ship(s3, tmp_path, data)
    assert (count(s3, "CreateMultipartUpload"), taken(s3)) == (1, list(range(1, PARTS + 1)))
    await assert_there(s3, tmp_path, data)


async def test_complete_fails_for_long(s3, tmp_path, data):
    """Then the ship fails, and the next one completes what was sent without sending a byte of it again."""
    s3.faults.add(Fault(COMPLETE, Answer(500, "InternalError"), times=None))
    with pytest.raises(RemoteUnavailable, match="InternalError"):
        await ship(s3, tmp_path, data)
    s3.faults.clear()
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(tmp_path / "up" / "chk_1", "job")
    assert (count(s3, "CreateMultipartUpload"), taken(s3)) == (1, list(range(1, PARTS + 1)))
    await assert_there(s3, tmp_path, data)
