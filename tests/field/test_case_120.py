"""Field case 120: no single PUT is ever larger than R2 takes (5 GiB - 5 MiB), whatever part size is asked for."""

from __future__ import annotations

import pytest

from r2d1 import Settings
from r2d1.errors import ConfigError
from r2d1.manifest import plan_part_size
from r2d1.setting_rules import MAX_PART_SIZE
from r2d1.transfer.plan import plan_ranges
from tests.checkpoints import write_checkpoint
from tests.remote_ends import open_courier

GIB = 2**30
PART = 64 << 10


@pytest.mark.parametrize("part_size", [10 * GIB, 5 * GIB, MAX_PART_SIZE + 1, 4 << 20])
def test_a_part_size_that_r2_does_not_take_is_refused(part_size):
    """At once, with both limits, before any file is looked at."""
    with pytest.raises(ConfigError, match=r"part_size.*5 MiB to 5 GiB - 5 MiB"):
        Settings.from_env(environ={}, part_size=part_size)


@pytest.mark.parametrize("size", [MAX_PART_SIZE + 1, 6 * GIB, 5 * 2**40])
def test_a_larger_file_travels_in_parts(size):
    """With the largest part size that may be set, 6 GiB are two parts, none of them too large."""
    assert MAX_PART_SIZE <= 5 * GIB - 5 * 2**20
    ranges = plan_ranges(size, plan_part_size(size, MAX_PART_SIZE))
    assert len(ranges) > 1
    assert max(span.size for span in ranges) <= 5 * GIB


async def test_one_byte_more_than_a_part_is_two_parts(s3, tmp_path):
    """On the wire too: a file of exactly one part is one PUT, and one byte more makes a multipart upload."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"exact.bin": bytes(PART), "more.bin": bytes(PART + 1)})
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")
    sent = [(record.operation, record.key.rpartition("/")[2], record.received) for record in s3.requests]
    assert ("PutObject", "exact.bin", PART) in sent
    assert sorted(size for operation, _, size in sent if operation == "UploadPart") == [1, PART]
    assert ("PutObject", "more.bin", PART + 1) not in sent
