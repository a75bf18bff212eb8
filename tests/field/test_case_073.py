"""Field case 73: right size, wrong bytes, reported as success. Ours fetches the slice again, or fails by name."""

from __future__ import annotations

import os

import pytest

from r2d1.digest import digest_of
from r2d1.errors import IntegrityError
from r2d1.testing import Fault, FlipReply, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import Told, open_courier, open_fetcher

PART = 64 << 10
THIRD = When(
    operation="GetObject", matches=lambda call: call.headers.get("range") == f"bytes={2 * PART}-{3 * PART - 1}"
)


async def ship(s3, directory) -> dict[str, bytes]:
    files = {"big.bin": os.urandom(8 * PART), "small.bin": b"small"}
    folder = write_checkpoint(directory, "chk_1", 1, files)
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")
    return files


async def test_a_byte_flipped_once(s3, tmp_path):
    """That slice alone is fetched again, a warning says so, and the checkpoint is right."""
    files = await ship(s3, tmp_path / "up")
    s3.faults.add(Fault(THIRD, FlipReply(at=77)))
    told, before = Told(), len(s3.requests)
    async with open_fetcher(s3, observer=told) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files
    assert info.verified
    ranges = [r for r in s3.requests[before:] if r.key.endswith("/big.bin")]
    assert len(ranges) == 9
    assert len([text for text in told.notices("warning") if "arrived damaged" in text]) == 1


async def test_a_byte_flipped_always(s3, tmp_path):
    """The error names the file, the digest expected and the digest got; nothing lies under the final name."""
    files = await ship(s3, tmp_path / "up")
    s3.faults.add(Fault(THIRD, FlipReply(at=0), times=None))
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(IntegrityError) as caught:
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    good = files["big.bin"][2 * PART : 3 * PART]
    bad = bytes([good[0] ^ 0xFF]) + good[1:]
    for said in ("big.bin", digest_of(good), digest_of(bad)):
        assert said in str(caught.value)
    assert [path.name for path in (tmp_path / "down").iterdir()] == [".r2d1"]


@pytest.mark.parametrize("what", ["small.bin", "chk_1.json", "r2d1.manifest.json"])
async def test_damage_in_the_bucket(s3, tmp_path, what):
    """A stored object that rotted, be it file, sidecar or manifest, is never taken for a checkpoint or for none."""
    await ship(s3, tmp_path / "up")
    s3.model.corrupt(f"jobs/job/chk_1/{what}", at=1)
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(IntegrityError, match=what.replace(".", r"\.") if what.endswith(".bin") else None):
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert not (tmp_path / "down" / "chk_1").exists()
    assert not (tmp_path / "down" / "chk_1.json").exists()
