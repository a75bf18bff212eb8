"""Field case 23: a file grows, shrinks or is rewritten during its own upload. What is recorded is one state of it, whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from r2d1.digest import digest_of
from r2d1.errors import CheckpointError, FlushError
from r2d1.events import Committed
from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import files_of, write_checkpoint, write_sidecar
from tests.remote_ends import PATIENCE_S, Told, assert_nothing_left, open_courier, open_fetcher

PART = 16 << 10
PARTS = 24
MORE = 5 * PART // 2
HEADS = "jobs/job/.r2d1/heads/"


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(os.urandom(MORE))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - MORE)


def overwrite(at: int):
    """Other bytes in place, and the old times put back: only the hash can tell (and the time of the inode)."""

    def rewrite(path: Path) -> None:
        before = path.stat()
        with path.open("r+b") as file:
            file.seek(at)
            file.write(os.urandom(MORE))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return rewrite


RESIZED = {"grows": append, "shrinks": truncate}
#: Before the parts that were sent already, across the one that is under way, and what is still to be read.
REWRITTEN = {"what was sent": 0, "what is sent": PARTS // 2 * PART - 5, "what will be sent": (PARTS - 3) * PART}
#: Where the upload stands: a part in the middle, and when all bytes are there.
STAGES = {"a part": When(operation="UploadPart", nth=PARTS // 2), "the manifest": When(key="*/r2d1.manifest.json")}


async def shipped_while(s3, courier, gate: Gate, change) -> None:
    """Change the file while a request of its upload waits."""
    with anyio.fail_after(PATIENCE_S):
        await gate.arrived.wait()
    change()
    gate.release()


async def assert_recorded_as_on_disk(s3, tmp_path, folder: Path) -> None:
    """The manifest's digest is that of the bytes in the bucket, which are those on the disk."""
    head = json.loads(s3.get(f"{HEADS}chk_1.json"))
    (entry,) = json.loads(s3.get(f"{head['prefix']}/r2d1.manifest.json"))["files"]
    stored = s3.get(f"{head['prefix']}/big.bin")
    assert stored == (folder / "big.bin").read_bytes()
    assert entry["digest"] == digest_of(stored)
    assert_nothing_left(s3, folder.parent)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files_of(folder)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("change", RESIZED)
async def test_a_file_of_another_size(s3, tmp_path, change, stage):
    """It is not recorded; the checkpoint counts as not shipped until the next sidecar, and then it is whole."""
    watched, gate, told = tmp_path / "w", Gate(), Told()
    folder = write_checkpoint(watched, "chk_1", 1, {"big.bin": os.urandom(PARTS * PART)})
    s3.faults.add(Fault(STAGES[stage], Hold(gate)))
    async with open_courier(s3, part_size=PART, observer=told) as courier:
        await courier.watch(watched, "job", poll_every=0.1, settle_timeout=0.3)
        await shipped_while(s3, courier, gate, lambda: RESIZED[change](folder / "big.bin"))
        with pytest.raises(FlushError, match=r"chk_1.*'big\.bin' is newer than the sidecar"):
            await courier.flush()
        assert s3.keys(HEADS) == []
        assert (s3.open_uploads, s3.keys("jobs/job/chk_1/")) == (0, [])
        write_sidecar(folder, 2)
        await courier.flush()
    assert [event.epoch for event in told.of(Committed)] == [2]
    await assert_recorded_as_on_disk(s3, tmp_path, folder)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("where", REWRITTEN)
async def test_a_file_of_the_same_size_and_time(s3, tmp_path, where, stage):
    """Bytes changed behind everybody's back are noticed; what is recorded has the digests of the bytes that were sent."""
    watched, gate, told = tmp_path / "w", Gate(), Told()
    folder = write_checkpoint(watched, "chk_1", 1, {"big.bin": os.urandom(PARTS * PART)})
    s3.faults.add(Fault(STAGES[stage], Hold(gate)))
    async with open_courier(s3, part_size=PART, observer=told) as courier:
        await courier.watch(watched, "job")
        await shipped_while(s3, courier, gate, lambda: overwrite(REWRITTEN[where])(folder / "big.bin"))
        await courier.flush()
    assert len(told.of(Committed)) == 1
    began_anew = any("settling it anew" in text for text in told.notices("warning"))
    assert began_anew or (where, stage) == ("what will be sent", "a part")  # all was read after the change
    await assert_recorded_as_on_disk(s3, tmp_path, folder)


async def test_one_ship_without_a_watch_fails_in_time(s3, tmp_path):
    """``ship`` waits for the next sidecar no longer than it was told to, and says for which file."""
    gate = Gate()
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"big.bin": os.urandom(PARTS * PART)})
    s3.faults.add(Fault(STAGES["a part"], Hold(gate)))
    async with open_courier(s3, part_size=PART) as courier, anyio.create_task_group() as tasks:
        tasks.start_soon(shipped_while, s3, courier, gate, lambda: append(folder / "big.bin"))
        with pytest.raises(CheckpointError, match=r"not complete after 0\.3 s: 'big\.bin' is newer than the sidecar"):
            await courier.ship(folder, "job", settle_timeout=0.3)
    assert s3.keys(HEADS) == []
    assert_nothing_left(s3, tmp_path / "w")
