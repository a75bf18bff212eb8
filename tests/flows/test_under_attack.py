"""What a determined tester broke once: each way stays tried."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys

import anyio
import pytest

from r2d1.checkpoint import inspect
from r2d1.courier.snapshot import pin
from r2d1.errors import Superseded, UnsafeDestination
from r2d1.testing import Fault, Gate, Hold, When
from r2d1.transfer import files
from tests.checkpoints import files_of, write_checkpoint
from tests.cli.shell import started
from tests.remote_ends import PATIENCE_S, Told, assert_nothing_left, open_courier, open_fetcher

PYTHON = (sys.executable, "-W", "error::ResourceWarning", "-c")
SNAPSHOTS = pytest.mark.parametrize("snapshot", [None, "hardlink"])


def head_of(s3, name):
    return json.loads(s3.get(f"jobs/job/.r2d1/heads/{name}.json"))


# -- snapshots -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restored", [False, True], ids=["with its new time", "with its old time"])
def test_a_slot_rewritten_before_it_was_pinned_is_not_pinned(tmp_path, restored):
    """Files of the next version, even of equal size and time, are not taken for those that were looked at."""
    folder = write_checkpoint(tmp_path, "slot_0", 1, {"a.bin": b"A1", "b.bin": b"B1"})
    local = inspect(folder)
    info = (folder / "a.bin").stat()
    (folder / "a.bin").write_bytes(b"A2")
    if restored:
        os.utime(folder / "a.bin", ns=(info.st_atime_ns, info.st_mtime_ns))
    with pytest.raises(Superseded, match="changed before it was pinned"):
        pin(local)


def test_a_planted_link_does_not_lead_a_snapshot_astray(tmp_path):
    """What lies behind a link called ``.r2d1/snap`` is neither written nor deleted."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"a"})
    precious = write_checkpoint(tmp_path / "precious", "chk_1", 9, {"thesis": b"years of work"})
    (tmp_path / "w" / ".r2d1").mkdir()
    (tmp_path / "w" / ".r2d1" / "snap").symlink_to(tmp_path / "precious")
    with pytest.raises(UnsafeDestination, match="is a link"):
        pin(inspect(folder))
    assert files_of(precious) == {"thesis": b"years of work"}


async def test_a_snapshot_that_a_dead_courier_left_is_shipped(s3, tmp_path):
    """Rotated away after a kill -9, it exists nowhere but in the snapshot: the next courier puts it back and ships it."""
    watched, told = tmp_path / "w", Told()
    folder = write_checkpoint(watched, "chk_1", 1, {"a.bin": b"a" * 1000})
    pin(inspect(folder))
    shutil.rmtree(folder)
    (watched / "chk_1.json").unlink()
    stays = write_checkpoint(watched, "chk_2", 2, {"a.bin": b"b"})
    pin(inspect(stays))
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(watched, "job", snapshot="hardlink")
        await courier.flush()
    assert [head_of(s3, name)["epoch"] for name in ("chk_1", "chk_2")] == [1, 2]
    assert any("chk_1" in text and "put back" in text for text in told.notices("warning"))
    assert_nothing_left(s3, watched)


# -- slots ---------------------------------------------------------------------------------------------------


@SNAPSHOTS
@pytest.mark.parametrize("by", ["flush", "leaving the block"])
async def test_the_next_version_of_a_slot_is_waited_for(s3, tmp_path, snapshot, by):
    """Its sidecar was there before the call, while the last version was on its way: it is in the bucket afterwards."""
    gate = Gate()
    held = When(operation="PutObject", key="*a.bin") if snapshot else When(operation="HeadObject", key="*latest*")
    s3.faults.add(Fault(held, Hold(gate)))
    async with open_courier(s3) as courier, anyio.create_task_group() as tasks:
        write_checkpoint(tmp_path, "slot_0", 1, {"a.bin": b"A1" * 10})
        await courier.watch(tmp_path, "job", snapshot=snapshot)
        with anyio.fail_after(PATIENCE_S):
            await gate.arrived.wait()
        if snapshot:
            (tmp_path / "slot_0" / "a.bin").unlink()
        write_checkpoint(tmp_path, "slot_0", 2, {"a.bin": b"A2" * 10})
        await courier._folders[0].scan()
        if by == "flush":
            tasks.start_soon(courier.flush)
            await anyio.lowlevel.checkpoint()
        gate.release()
    assert head_of(s3, "slot_0")["epoch"] == 2


async def test_a_slot_rewritten_with_its_old_time_is_no_blend(s3, tmp_path):
    """A file rewritten in place, its time put back, before it was read and after another was sent: settled anew."""
    gate, told = Gate(), Told()
    folder = write_checkpoint(tmp_path / "w", "slot_0", 1, {"a.bin": b"A" * 100, "b.bin": b"B" * (1 << 20)})
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Hold(gate)))
    async with open_courier(s3, observer=told, tuning={"concurrency": 1}) as courier:
        await courier.watch(tmp_path / "w", "job")
        with anyio.fail_after(PATIENCE_S):
            await gate.arrived.wait()
        info = (folder / "b.bin").stat()
        (folder / "b.bin").write_bytes(b"C" * (1 << 20))
        os.utime(folder / "b.bin", ns=(info.st_atime_ns, info.st_mtime_ns))
        gate.release()
        await courier.flush()
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/slot_0", tmp_path / "down")
    assert files_of(info.local_dir) == files_of(folder)


# -- a machine in trouble --------------------------------------------------------------------------------------


async def test_a_moment_without_descriptors_is_not_the_end(s3, tmp_path, monkeypatch):
    """EMFILE says nothing of the file: the checkpoint waits, and a flush ships it."""
    write_checkpoint(tmp_path, "chk_1", 1, {"big.bin": b"x" * (1 << 20)})
    real, left = os.open, [1]

    def scarce(path, *rest, **named):
        if str(path).endswith("big.bin") and left:
            left.pop()
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *rest, **named)

    monkeypatch.setattr(files.os, "open", scarce)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job")
        with anyio.fail_after(PATIENCE_S):
            while left:  # noqa: ASYNC110 - nothing is told of a look that failed
                await anyio.sleep(0.01)
        await courier.flush()
    assert head_of(s3, "chk_1")["epoch"] == 1


FORKED = """
import os, sys
from r2d1 import Courier, Fetcher
courier = Courier.from_env(drain_timeout=5)
courier.watch(sys.argv[1], "job")
with Fetcher.from_env() as fetcher:
    fetcher.pull("r2://jobs/job/latest", sys.argv[2])
    if os.fork() == 0:
        sys.exit(0)
    print("child ended with", os.wait()[1], flush=True)
courier.close()
"""


def test_a_forked_child_ends(s3, tmp_path):
    """A child that just goes on and ends, while its parent's courier and fetcher are open, does not hang at its end."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"a"})
    with started(FORKED, tmp_path / "w", tmp_path / "down", env=s3.env(), home=tmp_path, command=PYTHON) as child:
        child.wait_for("child ended with 0", where="out")
        assert child.end().exit_code == 0
    assert head_of(s3, "chk_1")["epoch"] == 1
