"""Field case 49: a write to D1 is committed, but the answer is lost. One row, with the right values, whatever was heard."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from r2d1.catalog import DDL
from r2d1.events import Retried, RowOwed, RowWritten
from r2d1.testing.d1 import Fault, cut, empty, lost_reply, refused
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, assert_nothing_left, open_courier

ROWS = "SELECT job_id, name, epoch, timestamp, r2_prefix, metadata FROM checkpoints"
METADATA = {"loss": 0.25, "note": 'it\'s; "quoted" -- 日本'}


def not_committed() -> Fault:
    """D1 says that it broke, before it did anything."""
    return refused(500, 7500, "internal error; reference = x")


#: What befalls one write after another; the next one goes well.
MISHAPS: dict[str, list[Callable[[], Fault]]] = {
    "committed, no answer": [lost_reply],
    "not committed, 7500": [not_committed],
    "both in turn": [lost_reply, not_committed, lost_reply],
    "the other way round": [not_committed, lost_reply],
    "committed, half an answer": [lambda: cut(20)],
    "committed, an empty answer": [empty],
}


def writes(d1) -> list[str]:
    """The body of every request that wrote rows."""
    return [json.dumps(call.body) for call in list(d1.requests) if "INSERT" in json.dumps(call.body)]


def expected(epoch: int) -> dict[str, object]:
    name = f"chk_{epoch}"
    return {
        "job_id": "job",
        "name": name,
        "epoch": epoch,
        "timestamp": 1_748_000_000.0 + epoch,
        "r2_prefix": f"jobs/job/{name}",
        "metadata": METADATA,
    }


def rows(d1) -> list[dict[str, object]]:
    return [{**row, "metadata": json.loads(row["metadata"])} for row in d1.sql(f"{ROWS} ORDER BY epoch")]


@pytest.mark.parametrize("mishap", MISHAPS)
async def test_one_row_with_the_right_values(s3, d1, tmp_path, mishap):
    """The same statement is sent until an answer comes, and there is one row; the checkpoint was never in doubt."""
    d1.sql(DDL)
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"a"}, metadata=METADATA)
    told = Told()
    d1.script(*(make() for make in MISHAPS[mishap]))
    async with open_courier(s3, d1, observer=told) as courier:
        await courier.ship(folder, "job")
        await told.first(RowWritten)
    assert rows(d1) == [expected(1)]
    sent = writes(d1)
    assert len(sent) == len(MISHAPS[mishap]) + 1
    assert len(set(sent)) == 1
    assert [event.attempt for event in told.of(Retried)] == list(range(1, len(sent)))
    assert told.of(RowOwed) == []
    assert_nothing_left(s3, tmp_path)


async def test_the_answer_is_lost_every_time(s3, d1, tmp_path):
    """Tries are bounded: the row counts as owed, the checkpoint is in the bucket, and the next start settles it once."""
    d1.sql(DDL)
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"a"}, metadata=METADATA)
    told = Told()
    d1.always(lost_reply())
    async with open_courier(s3, d1, observer=told) as courier:
        await courier.ship(folder, "job")
        assert courier.status().rows_owed == ("job/chk_1",)
    assert "attempts" in told.of(RowOwed)[0].error
    assert len(told.of(RowOwed)) == 1  # said once, however often it is tried
    assert len(writes(d1)) <= 8 * 4  # now, by flush, and at the end
    d1.always(None)
    async with open_courier(s3, d1) as courier:
        await courier.watch(tmp_path, "job")
        report = await courier.flush()
    assert report.rows_owed == ()
    assert rows(d1) == [expected(1)]
    assert len(set(writes(d1))) == 1
