"""Couriers and fetchers joined to the doubles, what they tell, and what they must leave behind: nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio

from r2d1 import AsyncCourier, AsyncFetcher, Settings
from r2d1.events import Event, Notice
from r2d1.keys import STATE_DIR
from r2d1.testing import D1Double, RequestRecord, S3Double

E = TypeVar("E", bound=Event)

#: Long enough for any machine; a test that waits so long has failed.
PATIENCE_S = 60.0


#: Pieces in flight where a test counts what was under way; by itself the number grows while that pays.
IN_FLIGHT = 8
FIXED = {"concurrency": IN_FLIGHT}


class Hasty(random.Random):
    """Chance without jitter: retries follow one another at once. Ship ids stay random."""

    def uniform(self, a: float, b: float) -> float:
        return min(a, b)


class Told:
    """An observer that keeps every event and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._news = anyio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    def of(self, kind: type[E]) -> list[E]:
        """The events of a kind so far, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def notices(self, level: str) -> list[str]:
        return [event.text for event in self.of(Notice) if event.level == level]

    async def until(self, is_reached: Callable[[], object]) -> None:
        """Wait until the events so far satisfy the test; each new one asks again."""
        with anyio.fail_after(PATIENCE_S):
            while not is_reached():
                await self._news.wait()

    async def first(self, kind: type[E]) -> E:
        await self.until(lambda: self.of(kind))
        return self.of(kind)[0]


def settings_of(s3: S3Double, d1: D1Double | None = None, **tuning: Any) -> Settings:
    """Settings that lead to the doubles and know nothing of this process's environment."""
    return Settings.from_env(environ={**s3.env(), **(d1.settings_env() if d1 else {})}, **tuning)


@asynccontextmanager
async def open_courier(
    s3: S3Double, d1: D1Double | None = None, *, part_size: int | None = None, tuning: Any = None, **options: Any
) -> AsyncIterator[AsyncCourier]:
    """A courier that does not dawdle between retries; ``part_size`` may be smaller than R2 would take."""
    options = {"rng": Hasty(), "drain_timeout": PATIENCE_S, "observer": Told()} | options
    async with AsyncCourier(settings_of(s3, d1, **(tuning or {})), **options) as courier:
        if part_size is not None:
            courier._lane.part_size = part_size
        yield courier


@asynccontextmanager
async def open_fetcher(
    s3: S3Double, d1: D1Double | None = None, *, tuning: Any = None, **options: Any
) -> AsyncIterator[AsyncFetcher]:
    """A fetcher that does not dawdle between retries."""
    options = {"rng": Hasty(), "observer": Told()} | options
    async with AsyncFetcher(settings_of(s3, d1, **(tuning or {})), **options) as fetcher:
        yield fetcher


def since(s3: S3Double, count: int) -> list[RequestRecord]:
    """The requests after the first ``count``."""
    return s3.requests[count:]


def bodies_sent(s3: S3Double, since: int = 0) -> list[RequestRecord]:
    """The requests that carried a checkpoint's bytes: files, sidecars, manifests, parts."""
    return [
        record
        for record in s3.requests[since:]
        if record.operation in ("PutObject", "UploadPart")
        and not any(f"/{STATE_DIR}/{room}/" in record.key for room in ("heads", "latest", "ships"))
    ]


def operations(records: list[RequestRecord]) -> list[str]:
    return [record.operation for record in records]


def assert_nothing_left(s3: S3Double, *directories: Path) -> None:
    """Clean: no pending tasks, no open uploads, no stray temporary files in the directories."""
    current = asyncio.current_task()
    pending = [task for task in asyncio.all_tasks() if task is not current]
    assert pending == []
    assert s3.open_uploads == 0
    for directory in directories:
        assert stray_files(directory) == []


def stray_files(directory: Path) -> list[str]:
    """What a pull or a snapshot staged and did not take away; journals and locks stay for ever."""
    state = directory / STATE_DIR
    kept = ("journal.db", "journal.db-wal", "journal.db-shm")
    return [
        path.relative_to(directory).as_posix()
        for path in sorted(state.rglob("*"))
        if path.is_file() and path.name not in kept and path.suffix != ".lock"
    ]
