"""Field case 75: changed content of the same size and time is not uploaded. Ours takes the file's whole identity."""

from __future__ import annotations

import os

import pytest

from r2d1.events import Committed
from tests.checkpoints import files_of, write_checkpoint
from tests.cli.shell import answer, run
from tests.remote_ends import Told, bodies_sent, open_courier, open_fetcher

OLD = b"0" * 5000
NEW = b"0" * 2500 + b"1" + b"0" * 2499


def change_one_byte(folder) -> None:
    """Write in place, with size and times as they were; the sidecar is not touched."""
    path = folder / "a.bin"
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(2500)
        file.write(b"1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("command", ["ship", "watch"])
def test_a_changed_byte_is_a_new_version(command, s3, tmp_path):
    """The same command as before sends the new bytes, and a pull brings them."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"a.bin": OLD, "b.bin": b"same"})
    what = ("ship", folder) if command == "ship" else ("watch", folder.parent, "--once")
    again = (*what, "--job-id", "job", "--json")
    assert run(*again, env=s3.env()).exit_code == 0
    count = len(s3.requests)
    assert run(*again, env=s3.env()).exit_code == 0
    assert bodies_sent(s3, count) == []
    change_one_byte(folder)
    assert run(*again, env=s3.env()).exit_code == 0
    pulled = answer(run("pull", "r2://jobs/job/latest", "--dest", tmp_path / "down", "--json", env=s3.env()))
    assert pulled["epoch"] == 1
    assert files_of(tmp_path / "down" / "chk_1") == {"a.bin": NEW, "b.bin": b"same"}
    assert run("verify", "r2://jobs/job/chk_1", "--deep", env=s3.env()).exit_code == 0


async def test_a_running_courier_needs_a_trigger_and_then_looks(s3, tmp_path):
    """The sidecar written again, with the very same bytes, is the trigger: one more ship, with the new bytes."""
    folder = write_checkpoint(tmp_path / "up", "slot_0", 1, {"a.bin": OLD})
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path / "up", "job")
        await told.first(Committed)
        change_one_byte(folder)
        os.utime(tmp_path / "up" / "slot_0.json")
        await courier.flush()
    assert len(told.of(Committed)) == 2
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == {"a.bin": NEW}
