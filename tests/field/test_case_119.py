"""Field case 119: it degrades after days. A job that rotates its checkpoints under constant faults stays as it was."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from r2d1 import AsyncCourier, Settings
from r2d1.checkpoint import Identity
from r2d1.courier import folder as folder_module
from r2d1.events import Committed, Event
from r2d1.journal import Done, Journal, scope_of
from tests.checkpoints import MIB, write_checkpoint
from tests.children import child_env
from tests.remote_ends import Hasty, Told, bodies_sent, open_courier

KEPT = 5
FILES = {"a.bin": b"a" * 300, "sub/b.bin": b"b"}

#: The bucket in a process of its own, where about every twentieth request meets some mishap.
SERVER = """
import json, random, sys
from r2d1.testing import Answer, CutRequest, Fault, Reset, Rules, S3Double, Swallow, When

rng = random.Random(119)
mishaps = [Answer(503, "SlowDown"), Answer(500), Reset(), Swallow(), CutRequest(after=100)]
unlucky = When(matches=lambda call: rng.random() < 0.01)
with S3Double(rules=Rules.lenient(), faults=[Fault(unlucky, each, times=None) for each in mishaps]) as double:
    print(json.dumps(double.env()), flush=True)
    sys.stdin.read()
    print(json.dumps([double.faults.fired(), double.open_uploads]), flush=True)
"""


@contextmanager
def unlucky_bucket(counts: list[int]):
    """The environment of such a bucket; in the end how many faults there were, and how many uploads are open."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", SERVER], env=child_env(), text=True, **pipes) as double:
        yield json.loads(double.stdout.readline())
        double.stdin.close()
        counts += json.loads(double.stdout.readline())


class Tally:
    """An observer that counts and keeps nothing; ``reach`` waits for so many commits."""

    def __init__(self) -> None:
        self.seen: Counter[type[Event]] = Counter()
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.seen[type(event)] += 1
        self._news.set()

    async def reach(self, commits: int) -> None:
        async with asyncio.timeout(60):
            while self.seen[Committed] < commits:
                self._news.clear()
                await self._news.wait()


@dataclass(frozen=True)
class Sample:
    """What may grow: open files, tasks, entries of the watch, rows of the journal, pages of its file, memory."""

    fds: int
    tasks: int
    entries: int
    rows: dict[str, int]
    pages: int
    memory: int


def rows_of(directory: Path) -> tuple[dict[str, int], int]:
    with closing(sqlite3.connect(directory / ".r2d1" / "journal.db")) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}
        return rows, db.execute("PRAGMA page_count").fetchone()[0]


def sample(courier: AsyncCourier, directory: Path) -> Sample:
    fds = len(os.listdir("/dev/fd"))
    rows, pages = rows_of(directory)
    statm = Path("/proc/self/statm")
    memory = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
    return Sample(fds, len(asyncio.all_tasks()), len(courier._folders[0].entries), rows, pages, memory)


def rotate(directory: Path, epoch: int) -> None:
    """The trainer's own: the newest is written, the oldest of those it keeps is deleted, sidecar first."""
    write_checkpoint(directory, f"chk_{epoch:05d}", epoch, FILES)
    if epoch > KEPT:
        old = directory / f"chk_{epoch - KEPT:05d}"
        old.with_name(f"{old.name}.json").unlink()
        shutil.rmtree(old)


async def live(directory: Path, count: int, at: int, **options) -> tuple[Sample, Sample]:
    """Ship so many checkpoints one after another; what was there after ``at`` of them, and in the end."""
    counts: list[int] = []
    directory.mkdir()
    with unlucky_bucket(counts) as env:
        tally, samples = Tally(), []
        settings = Settings.from_env(environ=env)
        async with AsyncCourier(settings, observer=tally, rng=Hasty()) as courier:
            await courier.watch(directory, "job", poll_every=0.05, **options)
            for epoch in range(1, count + 1):
                rotate(directory, epoch)
                await tally.reach(epoch)
                if epoch in (at, count):
                    await courier.flush()
                    samples.append(sample(courier, directory))
    assert tally.seen[Committed] == count
    assert counts[0] > count // 10  # there were faults
    assert counts[1] == 0
    return samples[0], samples[1]


def assert_flat(early: Sample, late: Sample) -> None:
    assert late.fds <= early.fds + 8  # as many connections as are allowed at once
    assert late.tasks <= early.tasks + 2
    assert late.entries <= KEPT + 1
    assert late.rows["digests"] <= (KEPT + 1) * len(FILES)
    assert not any(late.rows[table] for table in ("ships", "sent", "uploads", "parts", "owed"))


@pytest.mark.parametrize("snapshot", [None, "hardlink"])
async def test_an_hour_in_seconds(tmp_path, monkeypatch, snapshot):
    """Two dozen checkpoints, five kept: files, tasks and journal are in the end what they were after ten."""
    monkeypatch.setattr(folder_module, "_MOST_GONE", 3)
    early, late = await live(tmp_path / "w", 24, 10, snapshot=snapshot)
    assert_flat(early, late)
    assert late.rows["done"] <= 3 + KEPT + 1
    assert late.pages <= early.pages + 2


@pytest.mark.soak
async def test_days(tmp_path):
    """Five thousand: memory and the journal's file, too, are what they were after the first fifteen hundred."""
    early, late = await live(tmp_path / "w", 5000, 1500)
    assert_flat(early, late)
    assert late.rows["done"] <= 1000 + KEPT + 1
    assert late.pages <= early.pages * 1.1 + 10
    assert late.memory <= early.memory + 24 * MIB


async def test_what_was_rotated_away_while_nobody_watched(s3, tmp_path):
    """A courier that starts drops the digests of what is gone, and keeps those of what is there: nothing is sent."""
    for epoch in (1, 2, 3):
        write_checkpoint(tmp_path, f"chk_{epoch}", epoch, FILES)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job")
    assert rows_of(tmp_path)[0]["digests"] == 3 * len(FILES)
    for epoch in (1, 2):
        (tmp_path / f"chk_{epoch}.json").unlink()
        shutil.rmtree(tmp_path / f"chk_{epoch}")
    count, told = len(s3.requests), Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job")
    assert rows_of(tmp_path)[0]["digests"] == len(FILES)
    assert bodies_sent(s3, count) == []


async def test_a_checkpoint_that_comes_back(s3, tmp_path):
    """Moved away and back after its digests were dropped: it is still known as shipped, and nothing is sent."""
    watched, aside = tmp_path / "w", tmp_path / "aside"
    aside.mkdir()
    for epoch in (1, 2):
        write_checkpoint(watched, f"chk_{epoch}", epoch, FILES)
    async with open_courier(s3) as courier:
        await courier.watch(watched, "job", poll_every=0.05)
        await courier.flush()
        for name in ("chk_1.json", "chk_1"):
            os.rename(watched / name, aside / name)
        await courier.flush()
        assert rows_of(watched)[0]["digests"] == len(FILES)
        count = len(s3.requests)
        for name in ("chk_1", "chk_1.json"):
            os.rename(aside / name, watched / name)
        report = await courier.flush()
        assert len(report.shipped) == 2
    assert bodies_sent(s3, count) == []


def test_names_that_share_their_beginning(tmp_path):
    """What is gone takes nothing along: not its neighbours' digests, not those of files placed by a prefix pull."""
    journal = Journal(tmp_path / "state")
    directory = tmp_path / "w"
    identity = Identity(1, 2, 3, 4)
    here = ["chk_1-a/x", "chk_1.b/x", "chk_10/x", "file", f"pulled/x\0{'bucket'}", "zed\0bucket key"]
    gone = ["chk_1/x", "chk_1/y/z", "chk_0/x", "other", "gone\0bucket key", "zz/x"]
    for path in here:
        (directory / path.partition("\0")[0]).parent.mkdir(parents=True, exist_ok=True)
        (directory / path.partition("\0")[0]).touch()
    paths = {name: Path(f"{directory}/{name}") for name in [*here, *gone]}
    paths["outside"] = tmp_path / "w0" / "x"
    for path in paths.values():
        journal.record_digest(path, identity, 0, "blake3:00", ())
    journal.forget_gone(directory)
    left = {name for name, path in paths.items() if journal.digest(path, identity, "blake3", 0)}
    assert left == {*here, "outside"}
    journal.close()


def test_only_the_oldest_of_what_is_gone_is_dropped(tmp_path):
    """What is here is kept whatever its epoch, and so is every other job."""
    journal = Journal(tmp_path)
    scope, other = scope_of("bucket", "job"), scope_of("bucket", "other")
    for epoch in range(10):
        for each in (scope, other):
            journal.record_done(each, f"chk_{epoch}", Done("state", epoch, "prefix", "blake3:00", "shipped"))
    journal.trim_done(scope, ["chk_0", "chk_9", "never heard of"], keep=3)
    assert sorted(journal.all_done(scope)) == ["chk_0", "chk_7", "chk_8", "chk_9"]
    assert len(journal.all_done(other)) == 10
    journal.close()
