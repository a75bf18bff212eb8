"""Field case 10: the watched root is removed and made anew, and the watch is a zombie. Ours notices and goes on."""

from __future__ import annotations

import shutil

import pytest

from r2d1.errors import FlushError
from r2d1.events import Committed, Notice, WatchStarted
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, open_courier


async def test_a_root_that_was_made_anew_is_followed(s3, tmp_path):
    """After ``rm -rf W; mkdir W`` step 9 is shipped, by the new directory's own events."""
    watched = tmp_path / "watched"
    write_checkpoint(watched, "chk_1", 1, {"a.bin": b"a"})
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(watched, "job", poll_every=0.2)
        await told.first(Committed)
        shutil.rmtree(watched)
        watched.mkdir()
        write_checkpoint(watched, "chk_9", 9, {"a.bin": b"a"})
        await told.until(lambda: len(told.of(Committed)) == 2)
        await told.until(lambda: len(told.of(WatchStarted)) == 2)
    assert told.of(Committed)[-1].epoch == 9


async def test_a_root_that_is_gone_shows(s3, tmp_path):
    """While the root is missing the health is not green and a flush says so; when it is back all is well."""
    watched = tmp_path / "watched"
    watched.mkdir()
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(watched, "job", poll_every=0.2)
        assert courier.status().is_healthy
        shutil.rmtree(watched)
        await told.until(lambda: any("is not there" in event.text for event in told.of(Notice)))
        assert not courier.status().is_healthy
        with pytest.raises(FlushError, match="is not there"):
            await courier.flush(timeout=10)
        write_checkpoint(watched, "chk_9", 9, {"a.bin": b"a"})
        await told.first(Committed)
        assert courier.status().is_healthy
