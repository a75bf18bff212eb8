"""Field case 60: a connection dropped in mid-body is not retried. Ours asks for the rest of that range alone."""

from __future__ import annotations

import os

import pytest

from r2d1.testing import CutReply, Fault, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import open_courier, open_fetcher

PART = 256 << 10
CUT = PART * 6 // 10


@pytest.mark.parametrize("times", [1, 3])
async def test_a_range_cut_in_the_middle(s3, tmp_path, times):
    """Range 3 ends after 60 % of its bytes, once or three times: only what it lacks is asked again."""
    data = os.urandom(8 * PART)
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"big.bin": data})
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")
    third = f"-{3 * PART - 1}"
    when = When(operation="GetObject", matches=lambda call: call.headers.get("range", "").endswith(third))
    s3.faults.add(*(Fault(when, CutReply(after=CUT // 4**n)) for n in range(times)))
    before = len(s3.requests)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data}
    assert s3.faults.fired() == times
    ranges = [r for r in s3.requests[before:] if "range" in r.headers and r.key.endswith("/big.bin")]
    assert len(ranges) == 8 + times
    again = [r.headers["range"] for r in ranges if r.headers["range"].endswith(third)]
    at, expected = 2 * PART, []
    for n in range(times + 1):
        expected.append(f"bytes={at}{third}")
        at += CUT // 4**n
    assert again == expected
    assert sum(r.sent for r in ranges) == len(data)  # so no byte travelled twice
