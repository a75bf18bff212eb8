"""Field case 17: more than 10,000 parts. The part size grows by itself; a store that takes fewer is told of soon."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from r2d1.errors import RemoteError
from r2d1.testing import Answer, Fault, Rules, S3Double, When
from tests.checkpoints import MIB, files_of, write_checkpoint, write_sidecar
from tests.remote_ends import assert_nothing_left, open_courier, open_fetcher

LIMIT = 40
PART = 1024
CONCURRENCY = 8


@pytest.fixture
def narrow() -> Iterator[S3Double]:
    """A store that takes 40 parts, where r2d1 plans for R2's 10,000."""
    with S3Double(rules=Rules(min_part_size=1, write_interval_s=0.0, max_parts=LIMIT)) as double:
        yield double


async def test_a_store_that_takes_fewer_parts(narrow, tmp_path):
    """Part 41 is refused once, the error names the part's limit, and the upload is aborted: nothing stays behind."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"big.bin": os.urandom(PART * (LIMIT + 20))})
    async with open_courier(narrow, part_size=PART, tuning={"concurrency": CONCURRENCY}) as courier:
        with pytest.raises(RemoteError, match=rf"UploadPart jobs/job/chk_1/big\.bin: 400 .*{LIMIT}"):
            await courier.ship(folder, "job")
        sent = [record for record in narrow.requests if record.operation == "UploadPart"]
        assert len(sent) <= LIMIT + CONCURRENCY
        assert len({record.part_number for record in sent}) == len(sent)
    assert_nothing_left(narrow, tmp_path)
    assert narrow.keys("jobs/job/.r2d1/heads/") == []


async def test_exactly_as_many_parts_as_there_may_be(narrow, tmp_path):
    """40 parts are fine."""
    files = {"big.bin": os.urandom(PART * LIMIT)}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    async with open_courier(narrow, part_size=PART) as courier:
        await courier.ship(folder, "job")
    async with open_fetcher(narrow) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files


@pytest.mark.parametrize(
    ("gibibytes", "part_size"), [(150, 16 * MIB), (160, 32 * MIB), (320, 64 * MIB), (1200, 128 * MIB)]
)
async def test_the_part_size_grows_by_itself(tmp_path, gibibytes, part_size):
    """A file that would be more than 10,000 parts of 16 MiB is begun with larger ones.

    The file is a hole, and its first part is refused: its announced length is what counts.
    """
    folder = tmp_path / "chk_1"
    folder.mkdir()
    with (folder / "big.bin").open("wb") as file:
        file.truncate(gibibytes << 30)
    write_sidecar(folder, 1)
    sizes = []
    refuse = When(operation="UploadPart", matches=lambda call: sizes.append(call.size) is None)
    with S3Double(rules=Rules.r2(), faults=[Fault(refuse, Answer(403, "AccessDenied"), times=None)]) as s3:
        async with open_courier(s3, tuning={"concurrency": 1}) as courier:
            with pytest.raises(RemoteError, match="AccessDenied"):
                await courier.ship(folder, "job")
        assert sizes == [part_size]
        assert sizes[0] * 10_000 >= gibibytes << 30
        assert_nothing_left(s3, tmp_path)


@pytest.mark.soak
async def test_ten_thousand_parts_and_one(s3, tmp_path):
    """10,001 bytes in parts of one byte become 5,001 parts of two, and come back whole."""
    files = {"big.bin": os.urandom(10_001)}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    async with open_courier(s3, part_size=1) as courier:
        await courier.ship(folder, "job")
    numbers = [record.part_number for record in s3.requests if record.operation == "UploadPart"]
    assert sorted(numbers) == list(range(1, 5002))
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files
