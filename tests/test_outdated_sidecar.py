"""A sidecar vouches for the files it was written after, and for no others, whatever the clock did meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from r2d1.errors import CheckpointError, FlushError
from r2d1.testing import S3Double
from tests.checkpoints import files_of, write_checkpoint, write_sidecar
from tests.remote_ends import open_courier, open_fetcher

OLD = {"a.bin": b"old a", "b.bin": b"old b"}
NEW = {"a.bin": b"new a", "b.bin": b"new b"}
HEAD = "jobs/job/.r2d1/heads/slot_0.json"


def written_ahead(directory: Path) -> Path:
    """A slot that was written while the clock was an hour ahead."""
    folder = write_checkpoint(directory, "slot_0", 1, OLD)
    ahead = time.time() + 3600
    for path in (*folder.iterdir(), folder.with_name("slot_0.json")):
        os.utime(path, (ahead, ahead))
    return folder


async def pulled(s3: S3Double, dest: Path) -> dict[str, bytes]:
    async with open_fetcher(s3) as fetcher:
        return files_of((await fetcher.pull("r2://jobs/job/slot_0", dest)).local_dir)


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_slot_half_rewritten_after_the_clock_was_set_back(s3, tmp_path, ordered):
    """A courier that starts in the middle of it waits for the next sidecar; then the new version is shipped whole."""
    folder = written_ahead(tmp_path / "ckpts")
    async with open_courier(s3) as courier:
        await courier.watch(folder.parent, "job", ordered=ordered)
    head = s3.get(HEAD)
    (folder / "a.bin").write_bytes(NEW["a.bin"])
    async with open_courier(s3) as courier:
        await courier.watch(folder.parent, "job", ordered=ordered, settle_timeout=0.1)
        with pytest.raises(FlushError, match=r"job/slot_0 failed: the sidecar is the one of what was shipped before"):
            await courier.flush()
        assert s3.get(HEAD) == head
        (folder / "b.bin").write_bytes(NEW["b.bin"])
        write_sidecar(folder, 2)
        await courier.flush()
    assert await pulled(s3, tmp_path / "back") == NEW


async def test_ship_refuses_it_too(s3, tmp_path):
    """With words for what is wrong, and without asking the store."""
    folder = written_ahead(tmp_path)
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
        (folder / "a.bin").write_bytes(NEW["a.bin"])
        asked = len(s3.requests)
        with pytest.raises(CheckpointError, match=r"slot_0: the sidecar is the one of what was shipped before"):
            await courier.ship(folder, "job")
        assert len(s3.requests) == asked


async def test_what_was_pulled_is_known_as_well(s3, tmp_path):
    """A slot that was pulled to resume from, and is being rewritten by the next run."""
    written_ahead(tmp_path / "first")
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path / "first", "job")
    home = tmp_path / "second"
    assert await pulled(s3, home) == OLD
    (home / "slot_0" / "a.bin").write_bytes(NEW["a.bin"])
    os.utime(home / "slot_0" / "a.bin", (1, 1))
    head = s3.get(HEAD)
    async with open_courier(s3) as courier:
        with pytest.raises(CheckpointError, match="the sidecar is the one"):
            await courier.ship(home / "slot_0", "job")
    assert s3.get(HEAD) == head


@pytest.mark.parametrize("snapshot", [None, "hardlink"])
async def test_links_and_modes_change_nothing(s3, tmp_path, snapshot):
    """What moves a file's ctime alone leaves its bytes: it is looked at, and is in the bucket already."""
    folder = write_checkpoint(tmp_path, "slot_0", 1, OLD)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job", snapshot=snapshot)
    os.link(folder / "a.bin", tmp_path / "link")
    (folder / "b.bin").chmod(0o600)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job", snapshot=snapshot)
        report = await courier.flush()
    assert report.already == 1


async def test_a_sidecar_written_again_is_another_one(s3, tmp_path):
    """Even with the same words: whoever writes it says that the files are whole."""
    folder = write_checkpoint(tmp_path / "ckpts", "slot_0", 1, OLD)
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
        (folder / "a.bin").write_bytes(NEW["a.bin"])
        write_sidecar(folder, 1)
        await courier.ship(folder, "job")
    assert await pulled(s3, tmp_path / "back") == {**OLD, "a.bin": NEW["a.bin"]}
