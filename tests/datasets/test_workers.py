"""Worker processes: results in order, errors as they were, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from r2d1.datasets.workers import Workers
from r2d1.errors import FormatError, R2D1Error


def double(number):
    return 2 * number


def refuse(number):
    if number == 3:
        raise FormatError(f"number {number} is refused")
    return number


def stumble(number):
    return 1 // number


def tell_pid(number):
    print("printing does not disturb the results")
    return os.getpid()


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


class Untold(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one, other):
        super().__init__(one)


def untold(number):
    raise Untold("it went wrong", 2)


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_order(count):
    """Every item is done once, and its result comes in the order of the items."""
    with Workers(count) as workers:
        assert list(workers.map(double, range(50))) == [2 * n for n in range(50)]
        assert list(workers.map(double, [])) == []


def test_several_processes_are_used():
    """Work runs in other processes, at most as many as asked for; what they print does no harm."""
    with Workers(2) as workers:
        pids = set(workers.map(tell_pid, range(8)))
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("count", [1, 2])
def test_errors_are_raised_as_they_were(count):
    """An error of ours arrives unchanged, after the results before it."""
    found = []
    with pytest.raises(FormatError, match="number 3 is refused"), Workers(count) as workers:
        found.extend(workers.map(refuse, range(10)))
    assert found == [0, 1, 2]


def test_errors_of_others_carry_their_place():
    """A bug in a worker keeps its class and tells where it happened; one that cannot travel is told in words."""
    with pytest.raises(ZeroDivisionError) as caught, Workers(2) as workers:
        list(workers.map(stumble, [0, 1]))
    assert "in stumble" in caught.value.__notes__[0]
    with pytest.raises(R2D1Error, match="Untold: it went wrong"), Workers(2) as workers:
        list(workers.map(untold, [0, 1]))


def test_a_killed_worker_is_an_error():
    """A worker that was killed (as for want of memory) is an error with advice, not a hang."""
    with pytest.raises(R2D1Error, match=r"exit code -9\) while it ran die; if the system killed it"), Workers(2) as w:
        list(w.map(die, [0, 1]))


def test_the_window_is_bounded():
    """Items are taken only as results are; a long sequence is never held as a whole."""
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    with Workers(2) as workers:
        results = workers.map(double, items())
        next(results)
        assert len(taken) <= 5
        results.close()


SCRIPT = """
    import sys
    print("main module", flush=True)
    from r2d1.datasets.workers import Workers
    import slow_work
    with Workers(2) as workers:
        list(workers.map(slow_work.tell_and_wait, [sys.argv[1]] * 2))
"""
SLOW = """
    import threading
    def tell_and_wait(path):
        with open(path, "wb", buffering=0) as pipe:
            pipe.write(b".")
            threading.Event().wait()
"""


def test_workers_die_with_their_parent_and_leave_its_script_alone(tmp_path):
    """A script without a guard runs once, and when it is killed its workers end in the middle of their task."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    (tmp_path / "slow_work.py").write_text(textwrap.dedent(SLOW))
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, tmp_path / "script.py", tmp_path / "pipe"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as parent,
        (tmp_path / "pipe").open("rb", buffering=0) as pipe,
    ):
        assert pipe.read(1) + pipe.read(1) == b".."
        parent.kill()
        assert pipe.read() == b""  # the end comes only when nobody holds the other side any more
        assert parent.stdout.read() == b"main module\n"
