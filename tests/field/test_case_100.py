"""Field case 100: a failure in the background reaches whoever can act on it, by every door."""

from __future__ import annotations

import pytest

from r2d1 import Courier
from r2d1.errors import FlushError
from r2d1.events import ShipFailed
from r2d1.testing import Answer, Fault, When
from tests.checkpoints import write_checkpoint
from tests.cli.shell import last_line, run
from tests.remote_ends import PATIENCE_S, Told, open_courier, settings_of

FILES = {"a.bin": b"a" * 100}


def refuse_from_the_second(s3):
    """The bucket takes ``chk_1`` and nothing afterwards."""
    late = When(matches=lambda call: call.method == "PUT" and "chk_1" not in call.key)
    s3.faults.add(Fault(late, Answer(403, "AccessDenied"), times=None))


async def test_health_turns_bad_and_flush_names_all(s3, tmp_path):
    """At the first failure the status does; five more are each named by ``flush``, and by the end of the block."""
    refuse_from_the_second(s3)
    told = Told()
    async with open_courier(s3, observer=told, drain_timeout=0.1) as courier:
        await courier.watch(tmp_path, "job")
        write_checkpoint(tmp_path, "chk_1", 1, FILES)
        await told.until(lambda: courier.status().last_commit is not None)
        assert courier.status().is_healthy
        write_checkpoint(tmp_path, "chk_2", 2, FILES)
        await told.first(ShipFailed)
        assert not courier.status().is_healthy
        assert "AccessDenied" in (courier.status().last_error or "")
        for epoch in range(3, 8):
            write_checkpoint(tmp_path, f"chk_{epoch}", epoch, FILES)
        with pytest.raises(FlushError, match="AccessDenied") as caught:
            await courier.flush()
        assert {f"job/chk_{epoch}" for epoch in range(2, 8)} <= {*caught.value.failed, *caught.value.unfinished}
        s3.faults.clear()
        await courier.flush()
        assert courier.status().is_healthy


def test_the_command_ends_with_1_and_names_the_newest(s3, tmp_path):
    """``watch --once`` over six checkpoints of which five are refused: the exit code says so, and a line each."""
    refuse_from_the_second(s3)
    for epoch in range(1, 7):
        write_checkpoint(tmp_path / "w", f"chk_{epoch}", epoch, FILES)
    result = run("watch", tmp_path / "w", "--job-id", "job", "--once", env=s3.env())
    assert result.exit_code == 1
    assert "chk_6" in result.stderr
    assert "AccessDenied" in result.stderr
    assert last_line(result)


def test_closing_a_blocking_courier_raises(s3, tmp_path):
    """Fire and forget, then the end of the ``with`` block: the failure comes out there at the latest."""
    refuse_from_the_second(s3)
    write_checkpoint(tmp_path, "chk_2", 2, FILES)
    with pytest.raises(FlushError, match="chk_2"), Courier(settings_of(s3), drain_timeout=PATIENCE_S) as courier:
        courier.watch(tmp_path, "job")
