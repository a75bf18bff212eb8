"""Field case 71: one missing object aborts a pull without a list. Ours names all of them and keeps what is good."""

from __future__ import annotations

import pytest

from r2d1.errors import MissingObjects
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import open_courier, open_fetcher

FILES = {f"{n:02d}.bin": bytes([n]) * 1000 for n in range(50)}
MISSING = ["17.bin", "31.bin", "48.bin"]


async def test_three_of_fifty_objects_are_gone(s3, tmp_path):
    """One error names all three keys, nothing is placed, and when they are back only the rest is fetched."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, FILES)
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
    keys = [f"jobs/job/chk_1/{name}" for name in MISSING]
    for key in keys:
        s3.delete(key)
    dest = tmp_path / "down"
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(MissingObjects) as caught:
            await fetcher.pull("r2://jobs/job/latest", dest)
        assert caught.value.keys == tuple(keys)
        assert all(key in str(caught.value) for key in keys)
        assert not (dest / "chk_1").exists()
        for key, name in zip(keys, MISSING, strict=True):
            s3.put(key, FILES[name])
        before = len(s3.requests)
        info = await fetcher.pull("r2://jobs/job/latest", dest)
    assert files_of(info.local_dir) == FILES
    fetched = {r.key.rpartition("/")[2] for r in s3.requests[before:] if r.key.endswith(".bin")}
    assert fetched >= set(MISSING)
    assert not fetched & {f"{n:02d}.bin" for n in range(10)}


async def test_an_object_of_another_size(s3, tmp_path):
    """A truncated object is named like a missing one."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, FILES)
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
    s3.put("jobs/job/chk_1/17.bin", FILES["17.bin"][:-1])
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(MissingObjects, match=r"jobs/job/chk_1/17\.bin") as caught:
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert caught.value.keys == ("jobs/job/chk_1/17.bin",)
