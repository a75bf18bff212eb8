"""Field case 20: kill -9 leaves orphan uploads and a full restart. Ours resumes, or clears up its own and begins anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from r2d1.testing import Fault, When
from tests.checkpoints import files_of, write_checkpoint, write_sidecar
from tests.children import Killer, child_env, started
from tests.remote_ends import open_courier, open_fetcher

PART = 4096
CONCURRENCY = 8
FOREIGN = "backups/another program's.bin"

#: A courier as a training job runs it, but for parts that are smaller than R2 would take.
COURIER = f"""
import asyncio, sys
from r2d1 import AsyncCourier, Settings

async def main():
    async with AsyncCourier(Settings.from_env(concurrency={CONCURRENCY})) as courier:
        courier._lane.part_size = {PART}
        await courier.watch(sys.argv[1], job_id="job")
        await courier.flush()

asyncio.run(main())
"""


def killed_at_part(s3, watched: Path, number: int) -> None:
    """Run a courier until the store gets that many parts; not one instruction of it runs afterwards."""
    killer = Killer()
    s3.faults.add(Fault(When(operation="UploadPart", nth=number), killer.hook))
    with started(COURIER, watched, env=child_env(s3.env())) as child:
        killer.victims.append(child)
        assert child.wait(timeout=120) == -signal.SIGKILL


def parts_taken(s3, since: int = 0) -> list[int]:
    return [r.part_number for r in s3.requests[since:] if r.operation == "UploadPart" and r.status == 200]


def uploads(s3) -> list[str]:
    return [upload.key for upload in s3.model.open_uploads()]


async def assert_in_the_end(s3, watched: Path, tmp_path: Path) -> None:
    """The checkpoint is whole, the other program's upload is as it was, and no other one is open."""
    assert uploads(s3) == [FOREIGN]
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert info.verified
    assert files_of(info.local_dir) == files_of(watched / "chk_1")


@pytest.mark.parametrize(
    ("parts", "killed_at"), [(150, 120), pytest.param(1500, 1200, marks=pytest.mark.soak)], ids=["150", "1500"]
)
async def test_the_next_courier_goes_on(s3, tmp_path, parts, killed_at):
    """After a kill at 80 % only the parts that lack are sent, to the same upload; what others have open stays."""
    watched = tmp_path / "w"
    write_checkpoint(watched, "chk_1", 1, {"big.bin": os.urandom(parts * PART)})
    s3.model.create_upload(FOREIGN)
    killed_at_part(s3, watched, killed_at)
    assert sorted(uploads(s3)) == [FOREIGN, "jobs/job/chk_1/big.bin"]
    before = len(s3.requests)
    async with open_courier(s3, part_size=PART, tuning={"concurrency": CONCURRENCY}) as courier:
        await courier.watch(watched, "job")
        await courier.flush()
    again = parts_taken(s3, before)
    assert parts - killed_at <= len(again) <= parts - killed_at + 2 * CONCURRENCY
    assert [r.operation for r in s3.requests].count("CreateMultipartUpload") == 1
    await assert_in_the_end(s3, watched, tmp_path)


async def test_a_file_that_changed_meanwhile_begins_anew(s3, tmp_path):
    """When the folder was written again after the kill, the stale upload is aborted and every new byte is sent."""
    watched = tmp_path / "w"
    folder = write_checkpoint(watched, "chk_1", 1, {"big.bin": os.urandom(60 * PART)})
    s3.model.create_upload(FOREIGN)
    killed_at_part(s3, watched, 40)
    (folder / "big.bin").write_bytes(os.urandom(60 * PART))
    write_sidecar(folder, 1)
    before = len(s3.requests)
    async with open_courier(s3, part_size=PART, tuning={"concurrency": CONCURRENCY}) as courier:
        await courier.watch(watched, "job")
        await courier.flush()
    assert sorted(parts_taken(s3, before)) == list(range(1, 61))
    assert [r.operation for r in s3.requests[before:]].count("AbortMultipartUpload") == 1
    await assert_in_the_end(s3, watched, tmp_path)


async def test_the_trainer_rotated_the_folder_away(s3, tmp_path):
    """When the checkpoint is gone after the kill, the next one of that name clears up what the first had begun."""
    watched = tmp_path / "w"
    folder = write_checkpoint(watched, "chk_1", 1, {"big.bin": os.urandom(60 * PART)})
    s3.model.create_upload(FOREIGN)
    killed_at_part(s3, watched, 40)
    os.remove(folder / "big.bin")
    write_checkpoint(watched, "chk_1", 2, {"small.bin": b"small"})
    async with open_courier(s3, part_size=PART, tuning={"concurrency": CONCURRENCY}) as courier:
        await courier.watch(watched, "job")
        await courier.flush()
    assert not any("big.bin" in key for key in s3.keys("jobs/"))
    await assert_in_the_end(s3, watched, tmp_path)
