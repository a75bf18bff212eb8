"""Field case 56: D1 refuses every call for minutes. Uploads go on, D1 is asked seldom, and the rows come later."""

from __future__ import annotations

import anyio

from r2d1.events import Committed, RowWritten
from r2d1.testing.d1 import throttled
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, open_courier

COUNT = 50
NAMES = [f"chk_{epoch:03d}" for epoch in range(1, COUNT + 1)]


def write_backlog(directory) -> None:
    for epoch, name in enumerate(NAMES, start=1):
        write_checkpoint(directory, name, epoch, {"a.bin": name.encode()})


def rows(d1) -> list[object]:
    return [row["name"] for row in d1.sql("SELECT name FROM checkpoints ORDER BY epoch")]


async def test_a_block_that_is_lifted(s3, d1, tmp_path):
    """All 50 are in the bucket while D1 asks for a second's rest again and again; then all rows come, in a few calls."""
    write_backlog(tmp_path)
    d1.always(throttled("1"))
    told = Told()
    started = anyio.current_time()
    async with open_courier(s3, d1, observer=told) as courier:
        await courier.watch(tmp_path, "job")
        await told.until(lambda: len(told.of(Committed)) == COUNT)
        refused = len(d1.requests)
        assert 1 <= refused <= 4 + 2 * (anyio.current_time() - started)  # at most once a second for each who asks
        assert len(courier.status().rows_owed) >= COUNT - 4  # all but those that are in the bucket this very moment
        assert courier.status().failed == {}
        d1.always(None)
        await told.until(lambda: len(told.of(RowWritten)) == COUNT)
        assert courier.status().rows_owed == ()
        taken = [request for request in d1.requests if request.status == 200]
    assert rows(d1) == NAMES
    assert len(taken) <= 12  # far fewer than checkpoints: many rows travel in one call


async def test_a_block_that_outlives_the_courier(s3, d1, tmp_path):
    """D1 asks for five minutes: one call, all 50 in the bucket; the next courier finds the debt and pays it."""
    write_backlog(tmp_path)
    d1.always(throttled("300"))
    told = Told()
    async with open_courier(s3, d1, observer=told) as courier:
        await courier.watch(tmp_path, "job")
        await told.until(lambda: len(told.of(Committed)) == COUNT)
        assert len(d1.requests) <= 2
        assert len(courier.status().rows_owed) >= COUNT - 4  # all but those that are in the bucket this very moment
        courier.stop()  # before the drain, which would give the rows ten seconds more
    d1.always(None)
    before = len(s3.requests)
    async with open_courier(s3, d1) as courier:
        await courier.watch(tmp_path, "job")
        report = await courier.flush()
    assert report.rows_owed == ()
    assert rows(d1) == NAMES
    assert not any(record.key.endswith(".bin") for record in s3.requests[before:])
