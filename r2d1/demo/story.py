"""The demo told step by step: a trainer is killed, another machine goes on, and nothing was lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from r2d1.courier import AsyncCourier
from r2d1.demo import network, trainer
from r2d1.demo.trainer import name_of
from r2d1.errors import R2D1Error
from r2d1.events import Committed, Event, Observer
from r2d1.fetcher import AsyncFetcher
from r2d1.settings import Settings

JOB = "demo"
EPOCHS = 10
KILLED_IN = 7
_LONGEST_LINE = 1 << 16

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Ending:
    """What came out: the losses of the last epoch, and how much was shipped how often."""

    engine: str
    epochs: int
    resumed_from: int
    loss: float
    loss_uninterrupted: float
    is_equal: bool
    shipped: int
    shipped_while_training: int
    sent_bytes: int


@dataclass(slots=True)
class _Tally:
    """Counts what is committed, and passes every event on."""

    observer: Observer
    commits: list[Committed] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Committed):
            self.commits.append(event)
        self.observer(event)


async def tell(root: Path, *, say: Say, observer: Observer) -> Ending:
    """Play the demo below ``root``, an empty directory; ``say`` gets a sentence a step.

    Raises ``R2D1Error`` when anything does not come out as it should.
    """
    settings = Settings.from_env(environ={"R2D1_STORE_URL": (root / "bucket").absolute().as_uri()})
    engine = "numpy" if network.has_numpy() else "python"
    tally = _Tally(observer)
    say(f"a bucket without any account: R2D1_STORE_URL={settings.store_url}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_train_undisturbed, root / "undisturbed", engine)
        while_training = await _first_machine(root / "machine-1", settings, engine, tally, say)
        resumed = await _second_machine(root / "machine-2", settings, engine, tally, say)
    return _compared(root, engine, resumed, tally, while_training, say)


async def _first_machine(home: Path, settings: Settings, engine: str, tally: _Tally, say: Say) -> int:
    """Train and ship until the trainer is killed; returns how many checkpoints were shipped by then."""
    home.mkdir()
    say(f"machine 1 trains {EPOCHS} epochs ({engine}) in a process of its own, and a courier ships what it writes")
    async with AsyncCourier(settings, observer=tally) as courier:
        await courier.watch(home, job_id=JOB)
        async with _trainer(home, engine, "--hang-in", str(KILLED_IN)) as process:
            async for told in _lines(process):
                if told.get("hangs"):
                    break
                say(f"  epoch {told['epoch']}: loss {told['loss']:.5f}; in the bucket so far: {len(tally.commits)}")
            process.kill()
            code = await process.wait()
        while_training = len(tally.commits)
        half = sorted(path.name for path in (home / name_of(KILLED_IN)).iterdir())
        say(f"the trainer was killed (exit {code}) while it wrote {name_of(KILLED_IN)}: {', '.join(half)}, no sidecar")
        report = await courier.flush(timeout=60)
    newest = max(one.epoch for one in report.shipped)
    say(
        f"the courier had shipped {len(report.shipped)} checkpoints, the newest {name_of(newest)}; "
        f"of {name_of(KILLED_IN)} nothing"
    )
    return while_training


async def _second_machine(home: Path, settings: Settings, engine: str, tally: _Tally, say: Say) -> int:
    """Pull the newest checkpoint into a fresh folder, go on from it to the end, ship; returns its epoch."""
    uri = f"r2://jobs/{JOB}/latest"
    async with AsyncFetcher(settings, observer=tally.observer) as fetcher:
        info = await fetcher.pull(uri, home)
    if not info.found or info.epoch is None or not info.verified:
        raise R2D1Error(f"{uri} was not found again")
    count = round(info.size_mb * 2**20)
    say(f"machine 2, with an empty disk, pulls {uri}: {info.name}, {count} bytes, every one verified")
    before = len(tally.commits)
    async with AsyncCourier(settings, observer=tally) as courier:
        await courier.watch(home, job_id=JOB)
        async with _trainer(home, engine) as process:
            async for told in _lines(process):
                say(f"  epoch {told['epoch']}: loss {told['loss']:.5f}; from here: {len(tally.commits) - before}")
            if code := await process.wait():
                raise R2D1Error(f"the trainer ended with exit code {code}")
        report = await courier.flush(timeout=60)
    say(f"flush: {len(report.shipped)} checkpoints shipped from machine 2, the pulled one was not sent again")
    return info.epoch


async def _train_undisturbed(home: Path, engine: str) -> None:
    """The same training without courier and without interruption, to compare with."""
    async with _trainer(home, engine) as process:
        async for _ in _lines(process):
            pass
        if code := await process.wait():
            raise R2D1Error(f"the undisturbed trainer ended with exit code {code}")


@asynccontextmanager
async def _trainer(home: Path, engine: str, *more: str) -> AsyncIterator[Process]:
    """A trainer in a child process, which is killed when the block is left before it has ended."""
    command = [sys.executable, "-m", trainer.__name__, str(home), "--epochs", str(EPOCHS), "--engine", engine, *more]
    package_home = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package_home, os.environ.get("PYTHONPATH")]))
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None, env={**os.environ, "PYTHONPATH": path}
    )
    async with process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()


async def _lines(process: Process) -> AsyncIterator[dict[str, float]]:
    """What the trainer says, until it ends."""
    assert process.stdout is not None
    stream = BufferedByteReceiveStream(process.stdout)
    while True:
        try:
            yield json.loads(await stream.receive_until(b"\n", _LONGEST_LINE))
        except (anyio.EndOfStream, anyio.IncompleteRead):
            return


def _compared(root: Path, engine: str, resumed: int, tally: _Tally, while_training: int, say: Say) -> Ending:
    """Compare the resumed run's last checkpoint with the undisturbed run's, byte for byte."""
    last = name_of(EPOCHS)
    ours, theirs = root / "machine-2", root / "undisturbed"
    names = ("model.json", "optimizer.json")
    is_equal = all((ours / last / name).read_bytes() == (theirs / last / name).read_bytes() for name in names)
    losses = [json.loads((home / f"{last}.json").read_bytes())["metadata"]["loss"] for home in (ours, theirs)]
    ending = Ending(
        engine=engine,
        epochs=EPOCHS,
        resumed_from=resumed,
        loss=losses[0],
        loss_uninterrupted=losses[1],
        is_equal=is_equal and losses[0] == losses[1],
        shipped=len(tally.commits),
        shipped_while_training=while_training,
        sent_bytes=sum(commit.sent_bytes for commit in tally.commits),
    )
    word = "the same in every bit" if ending.is_equal else "DIFFERENT"
    say(f"after epoch {EPOCHS}: loss {losses[0]:.8f} resumed, {losses[1]:.8f} uninterrupted, weights {word}")
    return ending
