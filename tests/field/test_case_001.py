"""Field case 1: files created right after a new folder are never seen. Every checkpoint is shipped, each once."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio

from r2d1 import AsyncCourier, Settings
from r2d1.events import Committed, WatchStarted
from r2d1.remote import Remote
from r2d1.tasks import in_thread
from r2d1.testing import MemoryStore
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told

COUNT = 200


def copy_fast(built: Path, watched: Path, step: int) -> None:
    """A folder three levels deep, three files and the sidecar, in one go."""
    name = f"chk_{step:04d}"
    deep = watched / name / "run" / "sub" / "deeper"
    os.makedirs(deep)
    for file in sorted((built / name / "run" / "sub" / "deeper").iterdir()):
        shutil.copyfile(file, deep / file.name)
    shutil.copyfile(built / f"{name}.json", watched / f"{name}.json")


async def test_two_hundred_folders_made_in_an_instant(tmp_path):
    """200 of 200 checkpoints are shipped by events alone, each once, without a later touch or the periodic scan.

    The bucket is one in memory: what is on trial here is the watching.
    """
    built, watched = tmp_path / "built", tmp_path / "watched"
    watched.mkdir()
    files = {f"run/sub/deeper/{name}.bin": name.encode() for name in ("a", "b", "c")}
    for step in range(COUNT):
        write_checkpoint(built, f"chk_{step:04d}", step, files)
    told, store = Told(), MemoryStore()
    async with AsyncCourier(Settings(), observer=told, given=Remote(store, None)) as courier:
        await courier.watch(watched, "job", poll_every=3600)
        assert told.of(WatchStarted)[0].backend == "events"
        for step in range(COUNT):
            await in_thread(copy_fast, built, watched, step)
            await anyio.sleep(0)
        await told.until(lambda: len(told.of(Committed)) == COUNT)
    assert sorted(event.name for event in told.of(Committed)) == [f"chk_{step:04d}" for step in range(COUNT)]
    sent = [record.key for record in store.requests if record.operation == "PutObject" and record.key.endswith(".bin")]
    assert len(sent) == len(set(sent)) == 3 * COUNT
