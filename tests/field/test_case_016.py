"""Field case 16: a checksum is declared at Create and not repeated at Complete. Ours is, with any check and after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import pytest

from r2d1.testing import Fault, Gate, Hold, Rules, S3Double, When
from tests.checkpoints import MIB, files_of, write_checkpoint
from tests.remote_ends import PATIENCE_S, assert_nothing_left, open_courier, open_fetcher

PART = 5 * MIB
CHECKS = ["crc64nvme", "md5", "none"]


@pytest.fixture
def strict() -> Iterator[S3Double]:
    """R2's own rules, and a Complete that must name the checksum of each part once Create has named an algorithm."""
    with S3Double(rules=Rules(complete_repeats_checksums=True)) as double:
        yield double


async def assert_pulled(s3: S3Double, tmp_path, files: dict[str, bytes]) -> None:
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert info.verified
    assert files_of(info.local_dir) == files


def of(s3: S3Double, operation: str) -> list[dict[str, str]]:
    """The headers of every request of a kind that went well."""
    return [dict(record.headers) for record in s3.requests if (record.operation, record.status) == (operation, 200)]


@pytest.mark.parametrize("check", CHECKS)
async def test_with_checksums_on_and_off(strict, tmp_path, check):
    """Each way of checking bodies ships a large file at the first attempt, and Create names what parts carry."""
    files = {"big.bin": os.urandom(2 * PART + 1), "small.bin": b"small"}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    async with open_courier(strict, tuning={"part_size": PART, "upload_check": check}) as courier:
        await courier.ship(folder, "job")
    assert [record.status for record in strict.requests if record.operation == "CompleteMultipartUpload"] == [200]
    (create,) = of(strict, "CreateMultipartUpload")
    declared = create.get("x-amz-checksum-algorithm", "").lower()
    assert declared == ("crc64nvme" if check == "crc64nvme" else "")
    assert all((f"x-amz-checksum-{declared}" in part) == bool(declared) for part in of(strict, "UploadPart"))
    assert_nothing_left(strict, tmp_path / "up")
    await assert_pulled(strict, tmp_path, files)


@pytest.mark.parametrize("check", CHECKS)
async def test_parts_of_an_earlier_run(strict, tmp_path, check):
    """The checksums of parts that another process sent are remembered, and named when the next one completes."""
    files = {"big.bin": os.urandom(3 * PART + 1)}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    gate = Gate()
    tuning = {"part_size": PART, "upload_check": check, "concurrency": 1}
    strict.faults.add(Fault(When(operation="UploadPart", part=3), Hold(gate)))
    async with open_courier(strict, tuning=tuning) as courier, anyio.create_task_group() as tasks:
        tasks.start_soon(courier.ship, folder, "job")
        with anyio.fail_after(PATIENCE_S):
            await gate.arrived.wait()
        tasks.cancel_scope.cancel()
    gate.release()
    async with open_courier(strict, tuning=tuning) as courier:
        await courier.ship(folder, "job")
    assert len(of(strict, "CreateMultipartUpload")) == 1
    sent = [record.part_number for record in strict.requests if record.operation == "UploadPart"]
    assert (sent.count(1), sent.count(2)) == (1, 1)
    assert_nothing_left(strict, tmp_path / "up")
    await assert_pulled(strict, tmp_path, files)
