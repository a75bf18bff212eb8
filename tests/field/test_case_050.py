"""Field case 50: D1 hangs, and the rest stops with it. Ours goes on shipping; the rows wait, survive, and are written once."""

from __future__ import annotations

import json
import random
import signal

import pytest

from r2d1 import AsyncCourier
from r2d1.catalog import DDL, D1Catalog
from r2d1.d1 import D1Client
from r2d1.events import Committed, RowOwed, RowWritten, Teller
from r2d1.objects.opening import open_store
from r2d1.remote import Remote
from r2d1.retry import Brake, RetryPolicy
from r2d1.secret import Secret
from r2d1.testing import Gate
from r2d1.testing.d1 import held
from tests.checkpoints import write_checkpoint
from tests.cli.shell import finished, last_line, started
from tests.remote_ends import Hasty, Told, bodies_sent, settings_of

STEPS = range(1, 5)


@pytest.fixture
def hanging(d1):
    """D1 hangs on every write until the gate opens."""
    d1.sql(DDL)
    gate = Gate()
    d1.script(None)  # the first call only reads
    d1.always(held(gate))
    yield gate
    gate.release()


def rows(d1) -> list[int]:
    return [int(row["epoch"]) for row in d1.sql("SELECT epoch FROM checkpoints ORDER BY epoch")]


def writes(d1) -> int:
    """How many requests wrote rows."""
    return sum("INSERT" in json.dumps(call.body) for call in list(d1.requests))


def test_uploads_go_on_and_the_rows_survive_a_restart(s3, d1, hanging, tmp_path):
    """While the first row hangs, three more are shipped; SIGTERM ends it with code 4; the next run writes four rows."""
    watched = tmp_path / "w"
    write_checkpoint(watched, "chk_1", 1, {"a.bin": b"1"})
    env = {**s3.env(), **d1.settings_env()}
    watch = ("watch", "w", "--job-id", "job")
    with started(*watch, "--grace", "0.5", env=env, home=tmp_path) as child:
        hanging.arrived.wait_blocking()
        for step in STEPS[1:]:
            write_checkpoint(watched, f"chk_{step}", step, {"a.bin": b"%d" % step})
            child.wait_for(f"chk_{step}: epoch {step} is in the bucket")
        child.send(signal.SIGTERM)
        ended = child.end()
    assert ended.exit_code == 4
    assert "D1 rows are still owed for job/chk_1" in last_line(ended)
    sent = len(bodies_sent(s3))
    assert rows(d1) == []
    d1.stop()  # what hung is lost with its connection
    d1.always(None)
    d1.start()
    d1.requests.clear()
    assert finished(*watch, "--once", env={**s3.env(), **d1.settings_env()}, home=tmp_path).exit_code == 0
    assert rows(d1) == list(STEPS)
    assert writes(d1) <= 2  # many rows in one
    assert len(bodies_sent(s3)) == sent


def impatient(s3, d1, told: Told) -> Remote:
    """The two ends as settings open them, but for a D1 client that waits for an answer for a fifth of a second."""
    settings, tell, rng = settings_of(s3, d1), Teller(told), Hasty()
    client = D1Client(
        base_url=settings.d1_base_url,
        account_id=d1.account_id,
        database_id=d1.database_id,
        api_token=Secret(d1.api_token),
        policy=RetryPolicy(attempts=2),
        tell=tell,
        brake=Brake(rng),
        timeout_s=0.2,
    )
    store = open_store(settings, tell=tell, policy=RetryPolicy(), brake=Brake(rng))
    return Remote(store, D1Catalog(client))


async def test_a_call_that_hangs_ends_by_our_own_time_out(s3, d1, hanging, tmp_path):
    """The courier says that the row is owed and why, ships on, and writes all rows when D1 is back."""
    told = Told()
    given = impatient(s3, d1, told)
    async with AsyncCourier(settings_of(s3, d1), given=given, observer=told, rng=random.Random(50)) as courier:
        await courier.watch(tmp_path, "job")
        write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"1"})
        owed = await told.first(RowOwed)
        assert "no whole answer within 0.2 s" in owed.error
        for step in STEPS[1:]:
            write_checkpoint(tmp_path, f"chk_{step}", step, {"a.bin": b"%d" % step})
        await told.until(lambda: len(told.of(Committed)) == len(STEPS))
        assert courier.status().is_healthy
        assert "job/chk_1" in courier.status().rows_owed
        d1.always(None)
        hanging.release()
        report = await courier.flush()
        assert report.rows_owed == ()
    assert rows(d1) == list(STEPS)
    assert {event.epoch for event in told.of(RowWritten)} == set(STEPS)
