"""Field case 26: a connection pool smaller than the concurrency. Ours opens what it uses, and keeps it."""

from __future__ import annotations

import logging

from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import open_courier, open_fetcher

CONCURRENCY = 64
FILES = 250
BESIDE = 8


async def test_many_small_files_over_few_connections(s3, tmp_path, caplog):
    """250 files of 1 KB, 64 at once, both ways: not many more than 64 connections each, and no flood of warnings."""
    caplog.set_level(logging.WARNING)
    files = {f"{n // 100:02d}/{n:04d}.bin": n.to_bytes(2, "big") * 512 for n in range(FILES)}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    async with open_courier(s3, tuning={"concurrency": CONCURRENCY}) as courier:
        await courier.ship(folder, "job")
    up = s3.connections
    assert up <= CONCURRENCY + BESIDE
    async with open_fetcher(s3, tuning={"concurrency": CONCURRENCY}) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert s3.connections - up <= CONCURRENCY + BESIDE
    assert files_of(info.local_dir) == files
    assert len(caplog.records) <= 3
