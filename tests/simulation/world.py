"""A world for couriers: one bucket and one catalog that obey the doubles' rules, machines that crash, an observer.

One seed fixes everything: what is written when, how long each request takes, what fails, who dies.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from r2d1 import keys
from r2d1.courier import AsyncCourier
from r2d1.courier.folder import Folder
from r2d1.digest import hex_of
from r2d1.errors import RemoteUnavailable, Throttled
from r2d1.events import Event, Teller
from r2d1.fetcher import AsyncFetcher
from r2d1.keys import CheckpointKeys
from r2d1.objects.resilient import Resilient
from r2d1.remote import Remote
from r2d1.retry import Brake, RetryPolicy
from r2d1.settings import Settings
from r2d1.tasks import inline
from r2d1.testing.bucket import Bucket
from r2d1.testing.d1_rules import D1Rules
from r2d1.testing.memory import MemoryStore
from r2d1.testing.model_catalog import ModelCatalog
from r2d1.testing.rules import Rules
from r2d1.testing.stored import StoredObject

JOB = "job"
AT_ONCE = 2  # parts in flight of a courier
PART = 64  # bytes a part: many parts without many bytes


class Crash(BaseException):
    """The process is gone: nothing of it runs any further."""


@dataclass(slots=True)
class Process:
    """A courier's or fetcher's process: alive until it crashes, after which no request and no thread call works."""

    world: World
    crash_after: int | None = None
    is_dead: bool = False

    def step(self) -> None:
        """Something is about to touch the world; this may be the moment it dies."""
        if self.crash_after is not None:
            self.crash_after -= 1
            if self.crash_after <= 0:
                self.is_dead = True
        if self.is_dead:
            raise Crash


_current: ContextVar[Process | None] = ContextVar("process", default=None)


def _on_thread_call(func: Callable[..., object]) -> None:
    if (process := _current.get()) is not None:
        process.step()


@dataclass(slots=True)
class Counts:
    """What was injected in a run."""

    requests: int = 0
    faults: int = 0
    crashes: int = 0
    pulls: int = 0
    sent: int = 0  # bytes of checkpoints' files that the store took
    sent_again: int = 0  # bytes that may have to be sent a second time for what was injected


@dataclass(slots=True)
class World:
    """Bucket, catalog and chance of one run."""

    seed: int
    root: Path
    faults_per_request: float = 0.03
    rng: random.Random = field(init=False)
    bucket: Bucket = field(init=False)
    d1: D1Rules = field(init=False)
    log: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    expected: dict[str, dict[int, list[dict[str, bytes]]]] = field(default_factory=dict)
    days: int = 0  # by which the bucket's clock has jumped
    removed: set[str] = field(default_factory=set)
    _heads: dict[str, tuple[StoredObject | None, list[tuple[str, str]]]] = field(default_factory=dict)
    _checked: dict[str, tuple[StoredObject, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.bucket = Bucket(
            Rules(min_part_size=1, write_interval_s=1.0),
            clock=lambda: 1_700_000_000 + 86_400 * self.days + anyio.current_time(),
        )
        self.d1 = D1Rules()

    # -- remote ends with chance -----------------------------------------------------------------------

    def remote(self, process: Process) -> Remote:
        async def before(operation: str, key: str) -> None:
            await anyio.sleep(self.rng.random() * 0.05)
            process.step()
            self.log.append(f"{operation} {key}")
            self.counts.requests += 1
            self._maybe_fail(operation, key, is_reply=False)

        async def after(operation: str, key: str) -> None:
            self.observe()
            record = store.log.newest()
            if key.endswith(".bin") and record.status == 200:
                self.counts.sent += record.received
            await anyio.sleep(self.rng.random() * 0.05)
            process.step()
            self._maybe_fail(operation, key, is_reply=True)

        store = MemoryStore(self.bucket, name="sim", before=before, after=after)
        tell = Teller(None)
        policy = RetryPolicy(attempts=6, budget_s=60, base_s=0.2, cap_s=5)
        resilient = Resilient(store, policy=policy, brake=Brake(self.rng), tell=tell)
        return Remote(resilient, _Catalog(self, process))

    def _maybe_fail(self, operation: str, key: str, *, is_reply: bool) -> None:
        if self.rng.random() >= self.faults_per_request:
            return
        self.counts.faults += 1
        self.counts.sent_again += PART
        kind = RemoteUnavailable if is_reply or self.rng.random() < 0.7 else Throttled
        raise kind(operation, key, reason="scripted", status=503 if kind is Throttled else None)

    # -- the observer ----------------------------------------------------------------------------------

    def observe(self) -> None:
        """What must hold after every single request, looked up past all doors."""
        for key in self.bucket.keys(keys.heads_prefix(JOB)):
            for named, digest in self._named_by(key):
                self._check_object(named, digest)

    def written(self) -> int:
        """Bytes of all versions of all checkpoints that trainers have finished so far."""
        versions = (files for epochs in self.expected.values() for versions in epochs.values() for files in versions)
        return sum(len(data) for files in versions for data in files.values())

    def live_heads(self) -> list[dict[str, Any]]:
        """The heads that are not deleted, as they are now."""
        heads = (json.loads(self._read(key)) for key in self.bucket.keys(keys.heads_prefix(JOB)))
        return [head for head in heads if not head["deleted"]]

    def head_names(self) -> list[str]:
        return [key.rpartition("/")[2].removesuffix(".json") for key in self.bucket.keys(keys.heads_prefix(JOB))]

    def head(self, name: str) -> dict[str, Any]:
        return json.loads(self._read(CheckpointKeys(JOB, name).head))  # type: ignore[no-any-return]

    def _named_by(self, key: str) -> list[tuple[str, str]]:
        """Every object that a head stands for, with its digest; the manifest first. Read again when the head is."""
        stored = self.bucket.stored(key)
        known = self._heads.get(key)
        if known is None or known[0] is not stored:
            head = json.loads(self._read(key))
            named = [] if head["deleted"] else self._named(head)
            known = self._heads[key] = (stored, named)
        return known[1]

    def _named(self, head: dict[str, Any]) -> list[tuple[str, str]]:
        manifest = CheckpointKeys(JOB, head["name"]).manifest(head["prefix"])
        self._check_object(manifest, head["manifest"])
        files = json.loads(self._read(manifest))["files"]
        parts = [(f"{head['prefix']}/{entry.get('key', entry['path'])}", entry["digest"]) for entry in files]
        return [(manifest, head["manifest"]), *parts]

    def _check_object(self, key: str, digest: str) -> None:
        stored = self.bucket.stored(key)
        assert stored is not None, f"a head names {key}, which is not there"
        if self._checked.get(key) != (stored, digest):
            assert f"blake3:{hex_of(self._read(key))}" == digest, f"{key}: other bytes than are said of it"
            self._checked[key] = (stored, digest)

    def _read(self, key: str) -> bytes:
        stored = self.bucket.stored(key)
        assert stored is not None, f"{key} is not there"
        return b"".join(bytes(block) for block in stored.blob.blocks(0, stored.size, 1 << 20))

    # -- processes -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def process(self, crash_after: int | None = None) -> AsyncIterator[Process]:
        """Run what is in the block as one process; a crash ends the block and nothing else."""
        process = Process(self, crash_after)
        token = _current.set(process)
        thread_token = inline.set(_on_thread_call)
        try:
            yield process
        except BaseException:
            if not process.is_dead:
                raise
            self.counts.crashes += 1
            self.counts.sent_again += AT_ONCE * PART
        finally:
            process.is_dead = True
            inline.reset(thread_token)
            _current.reset(token)

    @asynccontextmanager
    async def courier(self, process: Process, directory: Path, **options: object) -> AsyncIterator[AsyncCourier]:
        courier = AsyncCourier(
            Settings(concurrency=AT_ONCE),
            given=self.remote(process),
            rng=random.Random(self.rng.getrandbits(64)),
            events=_silence,
            observer=_quiet,
            drain_timeout=3600,
        )
        async with courier:
            courier._lane.part_size = PART
            await courier.watch(directory, JOB, poll_every=5, **options)  # type: ignore[arg-type]
            yield courier

    async def pull(self, process: Process, uri: str, dest: Path) -> tuple[str, int, dict[str, bytes]] | None:
        async with AsyncFetcher(
            Settings(), given=self.remote(process), rng=random.Random(self.rng.getrandbits(64)), observer=_quiet
        ) as fetcher:
            info = await fetcher.pull(uri, dest)
        self.counts.pulls += 1
        if not info.found:
            return None
        assert info.name is not None and info.epoch is not None
        return info.name, info.epoch, files_of(info.local_dir)

    def check_pulled(self, pulled: tuple[str, int, dict[str, bytes]]) -> None:
        """Pulled bytes are exactly some version that a trainer wrote under this name and epoch."""
        name, epoch, files = pulled
        assert files in self.expected[name][epoch], f"{name}@{epoch}: pulled bytes are no version that was written"


async def _silence(folder: Folder, backend: str, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Events never come: the periodic scan must find everything."""
    task_status.started()
    await anyio.sleep_forever()


def _quiet(event: Event) -> None: ...


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class _Catalog(ModelCatalog):
    """The catalog with latency, faults and death."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world.d1)
        self._world, self._process = world, process

    async def _chance(self, func: Callable[[], Awaitable[object]], what: str) -> object:
        world = self._world
        await anyio.sleep(world.rng.random() * 0.05)
        self._process.step()
        world.log.append(f"D1 {what}")
        world._maybe_fail("D1", what, is_reply=False)
        result = await func()
        await anyio.sleep(world.rng.random() * 0.05)
        self._process.step()
        world._maybe_fail("D1", what, is_reply=True)
        return result

    async def put(self, rows):  # type: ignore[no-untyped-def]
        put = super().put
        await self._chance(lambda: put(rows), "put")

    async def remove(self, job_id, names):  # type: ignore[no-untyped-def]
        remove = super().remove
        await self._chance(lambda: remove(job_id, names), "remove")

    async def rows(self, job_id, *, limit=None):  # type: ignore[no-untyped-def]
        rows = super().rows
        return await self._chance(lambda: rows(job_id, limit=limit), "rows")
