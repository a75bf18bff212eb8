"""Field case 125: links, loops and special files in the source. The policy is kept, and nothing hangs."""

from __future__ import annotations

import json
import os
import socket

import pytest

from r2d1 import Settings
from r2d1.courier import AsyncCourier
from r2d1.errors import FlushError
from r2d1.events import ShipFailed
from r2d1.remote import Remote
from r2d1.testing import MemoryStore
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import Told, open_courier, open_fetcher


def link(target):
    return lambda path: path.symlink_to(target)


def bind(path):
    """A socket's name may not be long."""
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind(path.name)
    finally:
        os.chdir(here)


async def test_links_inside_the_folder_are_followed_to_files(s3, tmp_path):
    """A link to a file inside is shipped as that file, one to a folder inside is left out and listed."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"real.bin": b"bytes", "sub/x": b"x"})
    (folder / "best.bin").symlink_to("real.bin")
    (folder / "latest").symlink_to("sub")
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
    assert json.loads(s3.get("jobs/job/chk_1/r2d1.manifest.json"))["extra"] == {"left_out": ["latest"]}
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/chk_1", tmp_path / "down")
    assert files_of(info.local_dir) == {"best.bin": b"bytes", "real.bin": b"bytes", "sub/x": b"x"}
    assert not (info.local_dir / "best.bin").is_symlink()


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (link("/etc/hostname"), "leaves the checkpoint folder"),
        (link(".."), "leaves the checkpoint folder"),
        (link("missing"), "broken"),
        (link("odd"), "cannot be read"),
        (os.mkfifo, "neither a file nor a folder"),
        (bind, "neither a file nor a folder"),
    ],
)
async def test_what_fails_a_checkpoint(tmp_path, plant, said):
    """The checkpoint fails at once and names the path, nothing of it is sent, and the next one is shipped."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"a"})
    plant(folder / "odd")
    write_checkpoint(tmp_path, "chk_2", 2, {"a.bin": b"a"})
    told, store = Told(), MemoryStore()
    async with AsyncCourier(Settings(), observer=told, given=Remote(store, None)) as courier:
        await courier.watch(tmp_path, "job")
        with pytest.raises(FlushError) as error:
            await courier.flush()
        assert error.value.failed == ("job/chk_1",)
        (failure,) = [event for event in told.of(ShipFailed) if event.name == "chk_1"]
        assert str(folder / "odd") in failure.error
        assert said in failure.error
        (folder / "odd").unlink()
        os.utime(tmp_path / "chk_1.json")
        await courier.flush()
    keys = [record.key for record in store.requests if record.operation == "PutObject"]
    assert "jobs/job/chk_2/a.bin" in keys
    assert not any(key.endswith("odd") for key in keys)
