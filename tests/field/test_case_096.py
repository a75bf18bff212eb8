"""Field case 96: fork after the client exists. A child gets a clear error or a fresh start, never a hang."""

from __future__ import annotations

import json
import pickle

import pytest

from r2d1 import AsyncCourier, AsyncFetcher, Courier, Fetcher
from tests.checkpoints import write_checkpoint
from tests.children import child_env, run_script
from tests.remote_ends import settings_of

#: A parent with everything open, and two workers that are forked from it, as a data loader's are.
PARENT = """
import asyncio, json, multiprocessing, sys
from pathlib import Path
from r2d1 import AsyncCourier, AsyncFetcher, Courier, Fetcher

watched, other, dest = map(Path, sys.argv[1:])

def told(func):
    try:
        func()
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "went on"

def worker(number, answers):
    answers.put({
        "watch": told(lambda: courier.watch(other, job_id="other")),
        "flush": told(lambda: courier.flush(timeout=10)),
        "close": told(courier.close),
        "kept fetcher": told(lambda: kept.pull("r2://jobs/job/latest", dest / "kept")),
        "loose fetcher": told(lambda: loose.pull("r2://jobs/job/latest", dest / f"loose{number}")),
        "async courier": told(lambda: asyncio.run(enter(AsyncCourier, in_parent))),
        "same directory": told(lambda: Courier.from_env().watch(watched, job_id="job")),
        "fresh": told(lambda: fresh(number)),
    })

async def enter(kind, made):
    async with made:
        pass

def fresh(number):
    with Courier.from_env() as mine:
        mine.ship(other / str(number) / f"chk_{number}", job_id="job")

in_parent = AsyncCourier.from_env()
courier = Courier.from_env()
courier.watch(watched, job_id="job")
courier.flush(timeout=60)
loose = Fetcher.from_env()
with Fetcher.from_env() as kept:
    kept.pull("r2://jobs/job/latest", dest / "parent")
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    children = [fork.Process(target=worker, args=(number, answers)) for number in (11, 12)]
    for child in children:
        child.start()
    print(json.dumps([answers.get(timeout=60) for _ in children]))
    for child in children:
        child.join(60)
        assert child.exitcode == 0, child.exitcode
    kept.pull("r2://jobs/job/latest", dest / "after")
courier.flush(timeout=60)
courier.close()
"""


def test_two_forked_workers(s3, d1, tmp_path):
    """What the parent opened refuses in a child, at once and with advice; new objects work there, and the parent goes on."""
    watched, other, dest = tmp_path / "watched", tmp_path / "other", tmp_path / "down"
    write_checkpoint(watched, "chk_1", 1, {"a.bin": b"a"})
    for number in (11, 12):
        write_checkpoint(other / str(number), f"chk_{number}", number, {"a.bin": b"%d" % number})
    env = child_env(s3.env(), d1.settings_env(), {"PYTHONWARNINGS": "ignore"})
    printed = run_script(PARENT, watched, other, dest, env=env)
    for answer in json.loads(printed.splitlines()[-1]):
        advice = "belongs to the parent process; make a new one after the fork"
        for refused in ("watch", "flush", "close", "async courier"):
            assert answer[refused] == f"Closed: this courier {advice}"
        assert answer["kept fetcher"] == f"Closed: this fetcher {advice}"
        assert answer["same directory"].startswith("LockHeld: the directory")
        assert answer["loose fetcher"] == answer["fresh"] == "went on"
    assert (dest / "after" / "chk_12").is_dir()
    assert {row["name"] for row in d1.sql("SELECT name FROM checkpoints")} == {"chk_1", "chk_11", "chk_12"}


@pytest.mark.parametrize("kind", [Courier, Fetcher, AsyncCourier, AsyncFetcher])
def test_pickling_says_what_to_do(s3, kind):
    """None of them travels to another process by pickle: the error says to make a new one there."""
    with pytest.raises(TypeError, match=f"{kind.__name__} is not pickled: make a new one in the other process"):
        pickle.dumps(kind(settings_of(s3)))


def test_a_child_of_a_running_loop(s3, tmp_path):
    """Forked from inside of a running event loop, a child refuses the parent's courier and ends by itself."""
    script = """
import asyncio, os, sys
from r2d1 import AsyncCourier, Courier

async def main():
    async with AsyncCourier.from_env() as courier:
        await courier.watch(sys.argv[1], "job")
        if (pid := os.fork()) == 0:
            status = 1
            try:
                courier.status()
                await courier.flush()
            except Exception as error:
                status = 0 if "make a new one after the fork" in str(error) else 2
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

asyncio.run(main())
"""
    tmp_path.joinpath("w").mkdir()
    env = child_env(s3.env(), {"PYTHONWARNINGS": "ignore"})
    assert run_script(script, tmp_path / "w", env=env).split() == ["0"]
