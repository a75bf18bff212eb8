"""Signals: what is finished, what is left, how a command says so, and the code it ends with."""

from __future__ import annotations

import signal

import anyio
import pytest

from r2d1.cli.running import Stop
from r2d1.testing import Answer, Fault, Gate, Hold, When
from r2d1.testing.d1 import held
from tests.checkpoints import files_of, random_files, write_checkpoint
from tests.cli.shell import answer, last_line, run, started, store_env

INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture
def gate(s3):
    """A gate that is opened in the end, so that the double can be closed."""
    gate = Gate()
    yield gate
    gate.release()


@pytest.fixture
def shipped(s3, tmp_path):
    """A checkpoint that the bucket has."""
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, random_files(a=5000, b=5000))
    assert run("ship", folder, "--job-id", "job", env=s3.env()).exit_code == 0
    return folder


@pytest.mark.parametrize(("number", "code"), [(INT, 130), (TERM, 4)])
def test_pull_stops_at_once_and_goes_on_later(number, code, s3, gate, shipped, tmp_path):
    """A pull that waits for bytes ends with the signal's code and no folder; the next one brings all."""
    s3.faults.add(Fault(When(operation="GetObject", key="*/b.bin"), Hold(gate)))
    pull = ("pull", "r2://jobs/job/latest", "--dest", "pulled")
    with started(*pull, env=s3.env(), home=tmp_path) as child:
        gate.arrived.wait_blocking()
        child.send(number)
        ended = child.end()
    assert ended.exit_code == code
    assert "the same command again" in last_line(ended)
    assert not (tmp_path / "pulled" / "chk_1").exists()
    again = ("pull", "r2://jobs/job/latest", "--dest", tmp_path / "pulled")
    assert run(*again, env=s3.env()).exit_code == 0
    assert files_of(tmp_path / "pulled" / "chk_1") == files_of(shipped)


@pytest.mark.parametrize(("number", "code"), [(INT, 130), (TERM, 4)])
def test_ship_stops_at_once_and_goes_on_later(number, code, s3, gate, tmp_path):
    """A ship in the middle of a file ends with the signal's code and no head; the next one commits."""
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, random_files(a=5000))
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Hold(gate)))
    ship = ("ship", folder, "--job-id", "job", "--json")
    with started(*ship, env=s3.env(), home=tmp_path) as child:
        gate.arrived.wait_blocking()
        child.send(number)
        ended = child.end()
    assert answer(ended)["error"] == f"stopped by {number.name} before the work was done"
    assert ended.exit_code == code
    assert s3.keys("jobs/job/.r2d1/heads/") == []
    assert run(*ship, env=s3.env()).exit_code == 0
    assert s3.keys("jobs/job/.r2d1/heads/") == ["jobs/job/.r2d1/heads/chk_1.json"]


def test_a_back_off_is_not_slept_through(s3, shipped, tmp_path):
    """A pull that waits before its next attempt ends at once."""
    s3.faults.add(Fault(When(method="GET"), Answer(503, "SlowDown", retry_after=100), times=None))
    with started("pull", "r2://jobs/job/latest", "--dest", "pulled", env=s3.env(), home=tmp_path) as child:
        child.wait_for("attempt 1 failed, trying again in 100.0 s")
        child.send(INT)
        assert child.end().exit_code == 130


def test_a_call_to_d1_is_not_waited_for(s3, d1, gate, tmp_path):
    """A ship whose row hangs in D1 ends at once; the checkpoint is in the bucket."""
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, random_files(a=50))
    d1.always(held(gate))
    env = {**s3.env(), **d1.settings_env()}
    with started("ship", folder, "--job-id", "job", env=env, home=tmp_path) as child:
        child.wait_for("chk_1: epoch 1 is in the bucket")
        gate.arrived.wait_blocking()
        child.send(INT)
        assert child.end().exit_code == 130


@pytest.mark.parametrize("number", [INT, TERM])
def test_watch_finishes_what_is_under_way(number, s3, gate, tmp_path):
    """The first signal lets the upload finish: it is committed, and the code is 0."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(a=5000))
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Hold(gate)))
    with started("watch", "w", "--job-id", "job", env=s3.env(), home=tmp_path) as child:
        gate.arrived.wait_blocking()
        child.send(number)
        child.wait_for("at most 30 s; Ctrl-C or SIGTERM once more stops at once")
        gate.release()
        ended = child.end()
    assert ended.exit_code == 0
    assert s3.keys("jobs/job/.r2d1/heads/") == ["jobs/job/.r2d1/heads/chk_1.json"]


@pytest.mark.parametrize("once", [(), ("--once",)])
def test_watch_leaves_what_takes_longer(once, s3, gate, tmp_path):
    """When the grace is over what is left is named, the code is 4, and the next run ships it."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(a=5000))
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Hold(gate)))
    watch = ("watch", "w", "--job-id", "job", "--grace", "0.1", *once)
    with started(*watch, env=s3.env(), home=tmp_path) as child:
        gate.arrived.wait_blocking()
        child.send(TERM)
        ended = child.end()
    assert ended.exit_code == 4
    assert last_line(ended).startswith("r2d1 watch: stopped: 1 checkpoint not finished within 0.1 s: job/chk_1")
    assert s3.keys("jobs/job/.r2d1/heads/") == []
    assert run("watch", tmp_path / "w", "--job-id", "job", "--once", env=s3.env()).exit_code == 0
    assert s3.keys("jobs/job/.r2d1/heads/") == ["jobs/job/.r2d1/heads/chk_1.json"]


@pytest.mark.parametrize(("first", "second", "code"), [(TERM, INT, 130), (INT, TERM, 4)])
def test_a_second_signal_stops_a_watch_at_once(first, second, code, s3, gate, tmp_path):
    """Whatever is under way, and however long the grace is."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(a=5000))
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Hold(gate)))
    with started("watch", "w", "--job-id", "job", "--grace", "3600", env=s3.env(), home=tmp_path) as child:
        gate.arrived.wait_blocking()
        child.send(first)
        child.wait_for("once more stops at once")
        child.send(second)
        assert child.end().exit_code == code
    assert s3.keys("jobs/job/.r2d1/heads/") == []


@pytest.mark.parametrize("number", [INT, TERM])
def test_an_idle_watch_ends_with_0(number, tmp_path):
    """So does one whose directory never came."""
    for place in ("w", "never"):
        (tmp_path / "w").mkdir(exist_ok=True)
        with started("watch", place, "--job-id", "job", env=store_env(tmp_path), home=tmp_path) as child:
            child.wait_for("watching" if place == "w" else "waiting for it")
            child.send(number)
            assert child.end().exit_code == 0


def test_a_watch_that_never_got_to_scan_is_4(s3, gate, tmp_path):
    """The bucket does not answer the first question: the grace holds for that, too."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(a=50))
    s3.faults.add(Fault(When(operation="ListObjectsV2"), Hold(gate), times=None))
    with started("watch", "w", "--job-id", "job", "--grace", "0.1", env=s3.env(), home=tmp_path) as child:
        gate.arrived.wait_blocking()
        child.send(TERM)
        ended = child.end()
    assert ended.exit_code == 4
    assert "w was not scanned within 0.1 s" in last_line(ended)


class Ended(Exception):
    """Stands for the end of the process."""


def end_now(number: int):
    raise Ended(number)


async def test_one_more_signal_ends_the_process_on_the_spot():
    """After the one that cancels, the next one does not wait for anything."""
    stop = Stop(gently=True, end_now=end_now, within_s=3600)
    stop.take(TERM)
    assert stop.asked.is_set() and not stop.scope.cancel_called
    stop.take(TERM)
    assert stop.scope.cancel_called
    with pytest.raises(Ended):
        stop.take(INT)


async def test_a_command_that_hangs_is_cut_off():
    """Cancelled and not ended in time, the process is ended by a thread of its own."""
    numbers: list[int] = []
    ended = anyio.Event()
    loop_thread = anyio.lowlevel.current_token()

    def end(number: int):
        numbers.append(number)
        anyio.from_thread.run_sync(ended.set, token=loop_thread)

    stop = Stop(gently=False, end_now=end, within_s=0.01)
    stop.take(INT)
    with anyio.fail_after(60):
        await ended.wait()
    assert numbers == [INT]
