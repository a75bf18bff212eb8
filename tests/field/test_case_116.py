"""Field case 116: one API call per file, and a constant few for the checkpoint."""

from __future__ import annotations

from collections import Counter

from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import open_courier, open_fetcher

FILES = 600

#: What a checkpoint costs beside its files: head, record, sidecar, manifest, hints, one LIST for each 1,000 objects.
BESIDE = 16


async def test_many_files_cost_one_request_each(s3, d1, tmp_path):
    """600 files are 600 PUTs and a few requests more, and a handful of calls to D1; down it is one GET each."""
    files = {f"{n % 10}/{n:05}.bin": n.to_bytes(4, "big") * 8 for n in range(FILES)}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    async with open_courier(s3, d1) as courier:
        await courier.ship(folder, "job")
        await courier.flush()
    sent = Counter(record.operation for record in s3.requests)
    assert FILES < sent["PutObject"] <= FILES + BESIDE
    assert sent.total() - sent["PutObject"] <= BESIDE
    assert len(d1.requests) <= 4
    before = len(s3.requests)
    async with open_fetcher(s3, d1) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files
    fetched = Counter(record.operation for record in s3.requests[before:])
    assert FILES < fetched["GetObject"] <= FILES + BESIDE
    assert fetched.total() - fetched["GetObject"] <= BESIDE


async def test_shipping_again_costs_nothing_a_file(s3, tmp_path):
    """What is there already is seen from head, manifest and listing alone."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {f"{n:03}.bin": b"x" for n in range(300)})
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
    before = len(s3.requests)
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
    assert len(s3.requests) - before <= 6
