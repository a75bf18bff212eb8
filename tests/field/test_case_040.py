"""Field case 40: the newest chosen by text order or by time. Ours is the one with the highest epoch."""

from __future__ import annotations

import pytest

from tests.checkpoints import write_checkpoint
from tests.remote_ends import open_courier, open_fetcher


@pytest.mark.parametrize("has_d1", [False, True], ids=["R2 only", "with D1"])
@pytest.mark.parametrize(
    ("named", "newest"),
    [
        ({"chk_10000": 10_000, "chk_900": 900, "chk_9000": 9000, "chk_1000": 1000}, 10_000),
        ({"0900000": 900_000, "100000": 100_000}, 900_000),
    ],
)
async def test_numbers_are_compared_as_numbers(s3, d1, tmp_path, named, newest, has_d1):
    """Neither names as text nor the order of shipping decides: the highest epoch is latest."""
    catalog = d1 if has_d1 else None
    async with open_courier(s3, catalog) as courier:
        for name, epoch in named.items():
            await courier.ship(write_checkpoint(tmp_path / "up", name, epoch, {"a.bin": b"a"}), "job")
    async with open_fetcher(s3, catalog) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert info.epoch == newest
