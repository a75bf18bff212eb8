"""Field case 33: keys with space, +, %, #, ?, @, = and Unicode. Every name goes up signed and comes back as it was."""

from __future__ import annotations

import unicodedata

import pytest

from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import open_courier, open_fetcher

NAMES = [
    "a b.bin", "a+b.bin", "a%20b.bin", "a%2Bb.bin", "loss=0.1.pt", "#1?.bin", "ü.bin", "日本.bin", "@home/~x.bin",
    "'quoted' & <x>.bin", "a;b,c!(d)*$.bin", "sub folder/ü+%/last .bin", "🦀.bin", "...", "-", "&amp;.bin", ":",
]  # fmt: skip
JOB = "run 1 + ü #2?%41"


@pytest.mark.parametrize("name", ["chk_1", "slot_0=a.b-c"])
async def test_every_name_comes_back(s3, d1, tmp_path, name):
    """Ship, list and pull round-trip all names of files, of the run and of the checkpoint; no two collide."""
    files = {path: path.encode() for path in NAMES}
    folder = write_checkpoint(tmp_path / "up", name, 1, files)
    async with open_courier(s3, d1) as courier:
        await courier.ship(folder, JOB)
        listed = [info.key async for info in courier._lane.store.list(f"jobs/{JOB}/{name}/")]
    assert set(listed) >= {f"jobs/{JOB}/{name}/{path}" for path in NAMES}
    assert d1.sql("SELECT job_id, name FROM checkpoints") == [{"job_id": JOB, "name": name}]
    async with open_fetcher(s3, d1) as fetcher:
        latest = await fetcher.pull(f"r2://jobs/{JOB}/latest", tmp_path / "latest")
        named = await fetcher.pull(f"r2://jobs/{JOB}/{name}", tmp_path / "named")
        prefix = await fetcher.pull(f"r2://jobs/{JOB}/{name}/sub folder", tmp_path / "prefix")
    assert files_of(latest.local_dir) == files_of(named.local_dir) == files
    assert files_of(prefix.local_dir / "ü+%") == {"last .bin": b"sub folder/\xc3\xbc+%/last .bin"}
    assert all(record.code != "SignatureDoesNotMatch" for record in s3.requests)


async def test_a_decomposed_name_keeps_its_spelling_on_disk(s3, tmp_path):
    """R2 holds one object for both spellings of a name; the manifest remembers which one the trainer wrote."""
    path = unicodedata.normalize("NFD", "gewichte-ä.bin")
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {path: b"x"})
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == {path: b"x"}
