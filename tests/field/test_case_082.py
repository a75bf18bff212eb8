"""Field case 82: a token for objects may not list or create buckets. Ours needs neither; tidying up says so once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest

from r2d1.testing import Fault, Gate, Hold, Rules, S3Double, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import PATIENCE_S, Told, open_courier, open_fetcher

PART = 64 << 10


@pytest.fixture
def s3() -> Iterator[S3Double]:
    rules = replace(Rules.object_token(), min_part_size=1, write_interval_s=0.0)
    with S3Double(rules=rules) as double:
        yield double


async def test_ship_resume_and_pull_with_an_object_token(s3, tmp_path):
    """Two interrupted ships are resumed although open uploads cannot be listed: one notice, no bucket-level request."""
    data = {name: os.urandom(8 * PART) for name in ("chk_1", "chk_2")}
    told = Told()
    for epoch, name in enumerate(data, 1):
        folder = write_checkpoint(tmp_path / "up", name, epoch, {"big.bin": data[name]})
        gate = Gate()
        s3.faults.add(Fault(When(operation="UploadPart", part=5), Hold(gate), times=None))
        async with open_courier(s3, part_size=PART) as courier, anyio.create_task_group() as tasks:
            tasks.start_soon(courier.ship, folder, "job")
            with anyio.fail_after(PATIENCE_S):
                await gate.arrived.wait()
            tasks.cancel_scope.cancel()
        s3.faults.clear()
        gate.release()
    async with open_courier(s3, part_size=PART, observer=told) as courier:
        await courier.watch(tmp_path / "up", "job")
        await courier.flush()
    assert len([text for text in told.notices("info") + told.notices("warning") if "ListMultipartUploads" in text]) == 1
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/chk_2", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data["chk_2"]}
    refused = {record.operation for record in s3.requests if record.status == 403}
    assert refused == {"ListMultipartUploads"}
    assert s3.open_uploads == 0
