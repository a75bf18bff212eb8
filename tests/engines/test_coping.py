"""What r2d1 does where a server lacks something: no ListParts, no conditions, other ETags, another order of keys."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from r2d1 import AsyncCourier, AsyncFetcher, Settings
from r2d1.events import BytesMoved, Event, Teller
from r2d1.objects import PAGE, BytesSource
from r2d1.objects.opening import open_store
from r2d1.observers import to_log
from r2d1.testing import Rules, S3Double
from r2d1.testing.rules import BUCKET_LEVEL
from tests.checkpoints import MIB, files_of, write_checkpoint
from tests.engines import journeys
from tests.engines.servers import S3Engine

pytestmark = pytest.mark.engines

#: More than a part of 16 MiB, less than one, nothing, hidden, below a folder, beside a folder whose name begins alike.
FILES = {"model.bin": 40 * MIB + 7, "small.bin": 1000, "empty": 0, ".hidden": 5, "a/b c+d/é.bin": 70_000, "a-b": 3}


@pytest.fixture
def bare() -> Iterator[S3Double]:
    """R2's own rules, but no operation on the bucket is permitted, and no listing of uploads or parts implemented."""
    rules = Rules(forbidden=BUCKET_LEVEL, missing=frozenset({"ListMultipartUploads", "ListParts"}))
    with S3Double(rules=rules) as double:
        yield double


@pytest.fixture(params=["cloudflare", "seaweedfs", "rclone", "bare"])
def settings(request: pytest.FixtureRequest) -> Settings:
    """The bucket alone: no D1, and nothing of this process's environment."""
    store = request.getfixturevalue(request.param)
    env = store.env() if isinstance(store, S3Double) else S3Engine.env(store)
    return Settings.from_env(environ=env)


@pytest.fixture
def job_id() -> str:
    return f"coping-{uuid4().hex[:8]}"


async def test_main_job_without_d1(settings: Settings, tmp_path: Path, job_id: str) -> None:
    """Files of all kinds go there and back on each server; a lost journal sends nothing again."""
    folder = write_checkpoint(tmp_path / "watched", "chk_1", 1, _random_files())
    assert await ship(settings, folder.parent, job_id) == ["chk_1"]
    await check_pull(settings, tmp_path / "pulled", job_id, folder)
    for journal in (folder.parent / ".r2d1").glob("journal.db*"):
        journal.unlink()
    assert await ship(settings, folder.parent, job_id) == []


async def test_a_slot_is_shipped_three_times(settings: Settings, tmp_path: Path, job_id: str) -> None:
    """Each state of a slot replaces the one before, and the ship before that is deleted."""
    for epoch in (1, 2, 3):
        folder = write_checkpoint(tmp_path / "watched", "slot_0", epoch, {"w.bin": os.urandom(20 * MIB)})
        assert await ship(settings, folder.parent, job_id) == ["slot_0"]
        await check_pull(settings, tmp_path / f"pulled{epoch}", job_id, folder)
    store = open_store(settings, tell=Teller(None))
    kept = [info.key async for info in store.list(f"jobs/{job_id}/") if info.key.endswith("w.bin")]
    await store.aclose()
    assert len(kept) == 2


async def test_an_interrupted_ship_goes_on(settings: Settings, tmp_path: Path, job_id: str) -> None:
    """A courier that is stopped in the middle of a file's parts leaves what the next one can finish."""
    folder = write_checkpoint(tmp_path / "watched", "chk_1", 1, {"model.bin": os.urandom(50 * MIB)})
    moved = anyio.Event()

    def observe(event: Event) -> None:
        if isinstance(event, BytesMoved):
            moved.set()

    async with anyio.create_task_group() as tasks:

        async def begin() -> None:
            async with AsyncCourier(settings, observer=observe) as courier:
                await courier.watch(folder.parent, job_id=job_id)
                await anyio.sleep_forever()

        tasks.start_soon(begin)
        with anyio.fail_after(journeys.PATIENCE_S):
            await moved.wait()
        tasks.cancel_scope.cancel()
    gc.collect()  # a connection that the cancelled courier left open would warn here
    assert await ship(settings, folder.parent, job_id) == ["chk_1"]
    await check_pull(settings, tmp_path / "pulled", job_id, folder)


@pytest.mark.parametrize("settings", ["cloudflare", "seaweedfs"], indirect=True)
async def test_two_couriers_make_one_checkpoint(settings: Settings, tmp_path: Path, job_id: str) -> None:
    """Two couriers with equal bytes under one name, at once, where conditions hold: one checkpoint, and it is whole."""
    files = {"model.bin": os.urandom(20 * MIB)}
    folders = [write_checkpoint(tmp_path / name, "chk_1", 1, files) for name in ("one", "two")]
    async with anyio.create_task_group() as tasks:
        for folder in folders:
            tasks.start_soon(ship, settings, folder.parent, job_id)
    await check_pull(settings, tmp_path / "pulled", job_id, folders[0])


@pytest.mark.parametrize("settings", ["cloudflare", "seaweedfs"], indirect=True)
async def test_more_than_a_page_in_folders(settings: Settings, job_id: str) -> None:
    """A listing of more than a page is whole, in whatever order the server has folders and files."""
    rng = random.Random(1)
    keys = {f"{job_id}/{name}" for name in ("a", "a/b", "a-b", "a0", "b/x", "b.x")}
    keys |= {f"{job_id}/{rng.choice('ab')}{rng.choice('-/.0')}{number:04}" for number in range(PAGE + 20)}
    store = open_store(settings, tell=Teller(None))
    pending = iter(sorted(keys))

    async def put() -> None:
        for key in pending:
            await store.put(key, BytesSource(b""))

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(put)
    listed = [info.key async for info in store.list(f"{job_id}/")]
    await store.aclose()
    assert sorted(listed) == sorted(keys)


async def ship(settings: Settings, directory: Path, job_id: str) -> list[str]:
    """Watch a directory, ship what is there, and return the names that were new."""
    async with AsyncCourier(settings, observer=to_log, drain_timeout=journeys.PATIENCE_S) as courier:
        await courier.watch(directory, job_id=job_id)
        report = await courier.flush(timeout=journeys.PATIENCE_S)
    return [shipped.name for shipped in report.shipped if shipped.is_new]


async def check_pull(settings: Settings, dest: Path, job_id: str, source: Path) -> None:
    """Pull the newest checkpoint and compare every byte."""
    async with AsyncFetcher(settings) as fetcher:
        info = await fetcher.pull(f"r2://jobs/{job_id}/latest", dest=dest)
    assert info.verified
    assert files_of(info.local_dir) == files_of(source)


def _random_files() -> dict[str, bytes]:
    return {path: os.urandom(size) for path, size in FILES.items()}
