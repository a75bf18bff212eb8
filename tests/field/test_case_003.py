"""Field case 3: no events at all on network file systems and mounts. The periodic scan finds what events do not tell."""

from __future__ import annotations

import logging

import anyio

from r2d1.events import Committed, WatchStarted
from r2d1.observers import to_log
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, open_courier


async def silence(folder, backend, *, task_status):
    """An event source that never yields."""
    task_status.started()
    await anyio.sleep_forever()


async def test_the_scan_finds_a_checkpoint_without_any_event(s3, tmp_path, caplog):
    """A checkpoint is shipped within the documented interval, and the log names the backend and that interval."""
    told = Told()

    def observer(event):
        to_log(event)
        told(event)

    caplog.set_level(logging.INFO, logger="r2d1")
    async with open_courier(s3, observer=observer, events=silence) as courier:
        await courier.watch(tmp_path, "job", poll_every=0.2)
        write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"a"})
        assert (await told.first(Committed)).name == "chk_1"
    assert f"watching {tmp_path} for job job (events, full scan every 0.2 s)" in caplog.messages


async def test_polling_can_be_forced(s3, tmp_path):
    """With ``force_polling`` the backend is polling, and a checkpoint is found long before the full scan."""
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job", poll_every=3600, force_polling=True)
        write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"a"})
        await told.first(Committed)
    assert told.of(WatchStarted)[0].backend == "polling"
