"""Field case 8: checkpoints made while the courier was down are ignored, or all sent again. Neither happens."""

from __future__ import annotations

from r2d1.events import AlreadyThere, Committed, RowWritten, ShipStarted
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, assert_nothing_left, bodies_sent, open_courier


async def test_a_backlog_is_shipped_once(s3, d1, tmp_path):
    """The first start ships steps 1 to 3, the second sends no data and writes no row.

    Four begin at once, so that one may overtake another; of more, case 117 shows the order.
    """
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, f"chk_{step}", step, {"a.bin": b"%d" % step})
    first = Told()
    async with open_courier(s3, d1, observer=first) as courier:
        await courier.watch(tmp_path, "job")
        await courier.flush()
    assert sorted(event.epoch for event in first.of(ShipStarted)) == [1, 2, 3]
    assert sorted(event.epoch for event in first.of(Committed)) == [1, 2, 3]
    rows = d1.sql("SELECT * FROM checkpoints ORDER BY epoch")
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    count, calls = len(s3.requests), len(d1.requests)
    second = Told()
    async with open_courier(s3, d1, observer=second) as courier:
        await courier.watch(tmp_path, "job")
        report = await courier.flush()
    assert report.shipped == ()
    assert bodies_sent(s3, count) == []
    assert [record.method for record in s3.requests[count:] if record.method not in ("GET", "HEAD")] == []
    assert not any("INSERT" in str(call.body) for call in list(d1.requests)[calls:])
    assert second.of(Committed) + second.of(RowWritten) + second.of(AlreadyThere) == []
    assert d1.sql("SELECT * FROM checkpoints ORDER BY epoch") == rows
    assert_nothing_left(s3, tmp_path)
