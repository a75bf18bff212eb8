"""Field case 42: the trainer's rotation deletes the folder in mid-upload. It is said to be lost, and the others go on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest

from r2d1.errors import FlushError
from r2d1.events import Committed, ShipFailed
from r2d1.testing import D1Double, Fault, Gate, Hold, S3Double, When
from tests.checkpoints import files_of, write_checkpoint
from tests.cli.shell import started
from tests.remote_ends import PATIENCE_S, Told, assert_nothing_left, open_courier, open_fetcher

PART = 8 << 10
PARTS = 30
LOST = "job/chk_100"


def save(watched: Path, step: int) -> Path:
    return write_checkpoint(watched, f"chk_{step}", step, {"big.bin": os.urandom(PARTS * PART), "small.bin": b"s"})


def rotate(folder: Path, *, with_sidecar: bool) -> None:
    shutil.rmtree(folder)
    if with_sidecar:
        folder.with_name(f"{folder.name}.json").unlink()


def held_at_40_percent(s3: S3Double, gate: Gate) -> None:
    s3.faults.add(Fault(When(operation="UploadPart", key="*/chk_100/*", nth=PARTS * 2 // 5), Hold(gate)))


async def wait_for(gate: Gate) -> None:
    with anyio.fail_after(PATIENCE_S):
        await gate.arrived.wait()


def names_in(s3: S3Double, d1: D1Double) -> tuple[set[str], set[str]]:
    """The checkpoints that exist, and those that have rows."""
    heads = {key.rpartition("/")[2].removesuffix(".json") for key in s3.keys("jobs/job/.r2d1/heads/")}
    return heads, {str(row["name"]) for row in d1.sql("SELECT name FROM checkpoints")}


@pytest.mark.parametrize("with_sidecar", [False, True], ids=["folder", "folder and sidecar"])
async def test_a_folder_deleted_in_mid_upload_is_lost(s3, d1, tmp_path, with_sidecar):
    """Step 100 has failed and says why, leaves neither upload, object nor row; 200 and 300 are there."""
    watched, gate, told = tmp_path / "w", Gate(), Told()
    folder = save(watched, 100)
    held_at_40_percent(s3, gate)
    with pytest.raises(FlushError, match=f"{LOST} failed: .*deleted") as error:  # what the drain raises
        async with open_courier(s3, d1, part_size=PART, observer=told) as courier:
            await courier.watch(watched, "job")
            await wait_for(gate)
            rotate(folder, with_sidecar=with_sidecar)
            gate.release()
            for step in (200, 300):
                save(watched, step)
            await told.until(lambda: len(told.of(Committed)) == 2)
            await told.first(ShipFailed)
            assert "deleted" in courier.status().failed[LOST]
            assert not courier.status().is_healthy
    assert error.value.failed == (LOST,)
    assert names_in(s3, d1) == ({"chk_200", "chk_300"}, {"chk_200", "chk_300"})
    assert s3.keys("jobs/job/chk_100/") == []
    assert_nothing_left(s3, watched)


def test_the_exit_code_tells(s3, d1, tmp_path):
    """``r2d1 watch --once`` that loses a checkpoint this way ends with 1 and names it; the other is in the bucket."""
    watched, gate = tmp_path / "w", Gate()
    folder = save(watched, 100)
    save(watched, 200)
    s3.faults.add(Fault(When(method="PUT", key="*/chk_100/big.bin"), Hold(gate)))
    env = {**s3.env(), **d1.settings_env()}
    with started("watch", "w", "--job-id", "job", "--once", env=env, home=tmp_path) as child:
        gate.arrived.wait_blocking()
        rotate(folder, with_sidecar=False)
        gate.release()
        ended = child.end()
    assert ended.exit_code == 1
    assert LOST in ended.stderr.splitlines()[-1]
    assert names_in(s3, d1) == ({"chk_200"}, {"chk_200"})
    assert s3.open_uploads == 0


async def test_a_snapshot_saves_it(s3, d1, tmp_path):
    """With ``snapshot="hardlink"`` the rotation takes nothing away: all three are there, and the links are gone."""
    watched, gate, told = tmp_path / "w", Gate(), Told()
    folder = save(watched, 100)
    files = files_of(folder)
    held_at_40_percent(s3, gate)
    async with open_courier(s3, d1, part_size=PART, observer=told) as courier:
        await courier.watch(watched, "job", snapshot="hardlink")
        await wait_for(gate)
        rotate(folder, with_sidecar=True)
        gate.release()
        for step in (200, 300):
            save(watched, step)
        await told.until(lambda: len(told.of(Committed)) == 3)
        await courier.flush()
    every = {"chk_100", "chk_200", "chk_300"}
    assert names_in(s3, d1) == (every, every)
    assert told.of(ShipFailed) == []
    assert_nothing_left(s3, watched)
    async with open_fetcher(s3, d1) as fetcher:
        info = await fetcher.pull("r2://jobs/job/chk_100", tmp_path / "down")
    assert files_of(info.local_dir) == files
