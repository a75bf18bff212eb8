"""Field case 91: the main program ends before the background upload. Drained within a bound, or told loudly."""

from __future__ import annotations

import sys

import pytest

from r2d1.errors import FlushTimeout
from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import write_checkpoint
from tests.cli.shell import finished, started
from tests.remote_ends import open_courier

HEAD = "jobs/job/.r2d1/heads/chk_1.json"
BEGIN = """
import sys, threading
from r2d1 import Courier
courier = Courier.from_env(drain_timeout={drain})
"""
WATCH = "courier.watch('w', job_id='job')\n"
PYTHON = (sys.executable, "-W", "error::ResourceWarning", "-c")


def program(body: str, *, drain: float = 60) -> str:
    return BEGIN.format(drain=drain) + body


@pytest.fixture
def gate(s3, tmp_path):
    """A checkpoint whose upload waits at a gate."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Hold(gate)))
    yield gate
    gate.release()


def test_returning_from_main_waits_and_says_so(s3, gate, tmp_path):
    """The interpreter's end drains what is under way, names it, and ends with 0."""
    with started(program(WATCH), env=s3.env(), home=tmp_path, command=PYTHON) as child:
        child.wait_for("waiting at most 60 s for job/chk_1")
        gate.release()
        assert child.end().exit_code == 0
    assert s3.keys(HEAD) == [HEAD]


def test_what_is_left_at_the_end_is_told_loudly(s3, gate, tmp_path):
    """An upload that takes longer than the bound does not hold the program up; the checkpoint is named."""
    ended = finished(program(WATCH, drain=0.2), env=s3.env(), home=tmp_path, command=PYTHON)
    assert "NOT EVERYTHING IS IN THE BUCKET" in ended.stderr
    assert "job/chk_1" in ended.stderr
    assert s3.keys(HEAD) == []


def test_raising_in_main_keeps_the_error_and_drains(s3, gate, tmp_path):
    """In the context manager: the checkpoint is shipped, and the traceback is the program's own."""
    body = f"with courier:\n    {WATCH}    print('raising', file=sys.stderr, flush=True)\n    raise KeyError('mine')\n"
    with started(program(body), env=s3.env(), home=tmp_path, command=PYTHON) as child:
        child.wait_for("raising")
        gate.release()
        ended = child.end()
    assert ended.exit_code == 1
    assert ended.stderr.splitlines()[-1] == "KeyError: 'mine'"
    assert s3.keys(HEAD) == [HEAD]


def test_raising_in_main_without_context_manager_drains_too(s3, gate, tmp_path):
    """The error is shown, then the end of the interpreter waits for the upload."""
    with started(program(f"{WATCH}raise KeyError('mine')\n"), env=s3.env(), home=tmp_path, command=PYTHON) as child:
        child.wait_for("KeyError: 'mine'")
        child.wait_for("waiting at most 60 s for job/chk_1")
        gate.release()
        assert child.end().exit_code == 1
    assert s3.keys(HEAD) == [HEAD]


def test_sys_exit_in_a_thread(s3, gate, tmp_path):
    """It ends that thread alone; the program's own end drains."""
    body = f"{WATCH}thread = threading.Thread(target=sys.exit, args=[3])\nthread.start()\nthread.join()\nsys.exit(5)\n"
    with started(program(body), env=s3.env(), home=tmp_path, command=PYTHON) as child:
        child.wait_for("waiting at most 60 s for job/chk_1")
        gate.release()
        assert child.end().exit_code == 5
    assert s3.keys(HEAD) == [HEAD]


def test_nothing_left_is_silent(s3, tmp_path):
    """A program that flushed ends without a word."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    ended = finished(program(f"{WATCH}courier.flush(60)\n"), env=s3.env(), home=tmp_path, command=PYTHON)
    assert (ended.exit_code, ended.stderr) == (0, "")


async def test_the_async_block_drains_with_a_bound_and_raises(s3, gate, tmp_path):
    """What is not finished in time is named by the error that leaves the block."""
    with pytest.raises(FlushTimeout, match="job/chk_1") as caught:
        async with open_courier(s3, drain_timeout=0.2) as courier:
            await courier.watch(tmp_path / "w", "job")
            await gate.arrived.wait()
    assert caught.value.unfinished == ("job/chk_1",)
    assert s3.keys(HEAD) == []
