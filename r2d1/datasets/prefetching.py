"""Prefetch: units of a published set, verified and on disk before the training loop asks for them, in its order."""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from r2d1.bases import Base, Data
from r2d1.datasets.background import Background, Results
from r2d1.datasets.cache import Pin, UnitCache
from r2d1.datasets.manifest import ShardManifest
from r2d1.datasets.unit_source import Ranking, UnitSource, believed_manifest, checked_bases, open_readers
from r2d1.errors import ConfigError, FormatError
from r2d1.events import Observer, Teller
from r2d1.settings import Settings
from r2d1.tasks import in_thread, one_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from r2d1.datasets.spec import DatasetSpec

STREAMS = 8
DEPTH = 8


class UnitNotFound(ConfigError, IndexError):
    """A unit was asked for that the set does not have."""


@dataclass(slots=True)
class _Unit:
    """A unit on its way: ``pin`` once it is on the disk, or the ``error`` that is raised when its turn comes."""

    number: int
    pin: Pin | None = None
    error: Exception | None = None
    done: anyio.Event = field(default_factory=anyio.Event)


@dataclass(slots=True)
class _Plan:
    """What was asked for."""

    dataset: ShardManifest | DatasetSpec
    units: Iterable[int] | None
    cache: UnitCache
    bases: tuple[Base, ...]
    streams: int
    depth: int
    trusted: Collection[str]
    settings: Settings | None
    tell: Teller
    manifest: ShardManifest | None = None


class Prefetch:
    """Unit ids in the order asked for, each cached and verified when it is given: ``for`` and ``async for`` both work.

    The work is done on a thread of its own, which neither a busy event loop nor a blocking training step slows down;
    it ends with the iteration, an error, a wait that is cancelled, ``close`` or ``aclose``, or when the last
    reference goes. A unit stays in the cache at least until the next one is asked for (the last one until the end
    is), however small the limit.
    An error is raised in the place of the unit that it is about; the ones before it are given first.
    """

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._work: Background[int] = Background(_Pipeline(plan).run, name="prefetch")

    @property
    def manifest(self) -> ShardManifest:
        """What is being read; of a spec it is known when the first unit was given (``FormatError`` before)."""
        if self._plan.manifest is None:
            raise FormatError("the manifest is known when the first unit was given")
        return self._plan.manifest

    def path(self, unit: int) -> Path:
        """The file of a unit that was given: its bytes as published."""
        return self._plan.cache.path(self.manifest.unit_sha256s[unit])

    def rows(self, unit: int) -> NDArray[np.uint16]:
        """The rows of a unit that was given: a read-only array of shape ``(unit, seq_len + 1)``.

        ``ConfigError`` when it is not in the cache: not given yet, or no longer.
        """
        import numpy as np

        try:
            data = self.path(unit).read_bytes()
        except FileNotFoundError as exc:
            text = f"unit {unit} is not in the cache: its rows can be read once it was given, until it is evicted"
            raise ConfigError(text) from exc
        return np.frombuffer(data, dtype="<u2").reshape(self.manifest.unit, self.manifest.seq_len + 1)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        try:
            future = self._work.ask()
            try:
                return future.result()
            finally:
                future.cancel()
        except anyio.EndOfStream:
            self.close()
            raise StopIteration from None
        except BaseException:
            self.close()
            raise

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        try:
            future = self._work.ask() if self._work.is_started else await in_thread(self._work.ask)
            return await asyncio.wrap_future(future)
        except anyio.EndOfStream:
            await self.aclose()
            raise StopAsyncIteration from None
        except BaseException:
            await self.aclose()
            raise

    def close(self) -> None:
        """Stop and let go of everything but the cache; safe to call twice, and from another thread.

        The iteration has ended then, for a thread that waits for a unit, too.
        """
        self._work.close()

    async def aclose(self) -> None:
        """``close`` beside a running event loop."""
        with anyio.CancelScope(shield=True):
            await in_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


def prefetch(
    manifest: ShardManifest | DatasetSpec,
    unit_ids: Iterable[int] | None,
    cache: str | os.PathLike[str] | UnitCache,
    bases: Sequence[str | Base],
    streams: int = STREAMS,
    depth: int = DEPTH,
    *,
    trusted: Collection[str] = (),
    settings: Settings | None = None,
    observer: Observer | None = None,
) -> Prefetch:
    """Bring units of a published set into ``cache`` and give their ids in the order of ``unit_ids``.

        for unit in prefetch(manifest, range(100), "cache", bases=["https://data.example/sets/od-a-v1", mirror]):
            ...                                             # train on cache/<sha256 of the unit>

    ``unit_ids`` is taken step by step and may be endless; ``None`` stands for all units. At most ``depth`` units are
    ready or under way ahead of the one that was given last, at most ``streams`` under way at once. A unit lies at
    ``<cache>/<its sha256>``; what is cached is checked and not fetched. ``bases`` are asked in their order: three
    wrong answers for a unit, and the next base is asked for it; a base that failed three units in a row is asked
    last from then on.

    A ``DatasetSpec`` in place of the manifest must be signed by one of the ``trusted`` public keys (hexadecimal);
    the manifest then comes from a base and is believed as far as the spec goes. ``cache`` may be a ``UnitCache``
    with a limit. Proxy and private CA are those of ``settings``.

    ``ConfigError`` at once for arguments that make no sense. While iterating: ``UnitNotFound`` (an ``IndexError``)
    for an id that the set does not have, ``IntegrityError`` when all bases serve wrong bytes,
    ``RemoteUnavailable`` when they fail, ``NoSpace``.
    """
    if streams < 1 or depth < 1:
        raise ConfigError(f"streams {streams} and depth {depth} must be 1 or more")
    is_bound = isinstance(manifest, ShardManifest)
    if not is_bound and not trusted:
        raise ConfigError("a dataset spec is believed when it is signed: give the public keys that you trust")
    store = cache if isinstance(cache, UnitCache) else UnitCache(cache)
    plan = _Plan(manifest, unit_ids, store, checked_bases(bases), streams, depth, trusted, settings, Teller(observer))
    if isinstance(manifest, ShardManifest):
        _set_manifest(plan, manifest)
    return Prefetch(plan)


def _set_manifest(plan: _Plan, manifest: ShardManifest) -> None:
    plan.cache.require_room((plan.depth + 2) * manifest.layout.unit_size)
    plan.manifest = manifest


class _Pipeline:
    """The stages: ids are taken as the window allows, fetched by several workers, and given in their order."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._by_sha256: dict[str, tuple[anyio.Lock, list[int]]] = {}
        self._pins: set[Pin] = set()

    async def run(self, results: Results[int]) -> None:
        try:
            try:
                await self._run(results)
            finally:
                await results.wanted()  # until then the unit that was given last may be read
        finally:
            for pin in self._pins:
                pin.release()

    async def _run(self, results: Results[int]) -> None:
        plan = self._plan
        async with open_readers(plan.bases, settings=plan.settings, connections=plan.streams) as readers:
            if not isinstance(plan.dataset, ShardManifest):
                found = await believed_manifest(readers, plan.dataset, trusted=plan.trusted, tell=plan.tell)
                _set_manifest(plan, found)
            assert plan.manifest is not None
            source = UnitSource(readers, plan.manifest, Ranking(len(readers)), plan.tell)
            with one_error():
                await self._stages(source, results)

    async def _stages(self, source: UnitSource, results: Results[int]) -> None:
        window = anyio.Semaphore(self._plan.depth, fast_acquire=True)
        ordered_in, ordered = anyio.create_memory_object_stream[_Unit](self._plan.depth)
        work_in, work = anyio.create_memory_object_stream[_Unit](self._plan.depth)
        async with ordered_in, ordered, work_in, work, anyio.create_task_group() as tasks:
            tasks.start_soon(self._take_ids, source.manifest, window, ordered_in, work_in)
            for _ in range(self._plan.streams):
                tasks.start_soon(self._fetch, source, work.clone())
            await self._give(ordered, window, results)
            tasks.cancel_scope.cancel()

    async def _take_ids(
        self,
        manifest: ShardManifest,
        window: anyio.Semaphore,
        ordered: MemoryObjectSendStream[_Unit],
        work: MemoryObjectSendStream[_Unit],
    ) -> None:
        async with ordered, work:
            for number in range(manifest.n_units) if self._plan.units is None else self._plan.units:
                await window.acquire()
                unit = _Unit(operator.index(number))
                if not 0 <= unit.number < manifest.n_units:
                    unit.error = UnitNotFound(f"unit {unit.number} of a set with {manifest.n_units} units")
                    unit.done.set()
                else:
                    await work.send(unit)
                await ordered.send(unit)

    async def _fetch(self, source: UnitSource, work: MemoryObjectReceiveStream[_Unit]) -> None:
        async with work:
            async for unit in work:
                try:
                    unit.pin = await self._obtain(source, unit.number)
                except Exception as exc:  # raised when its turn comes, after the units before it
                    unit.error = exc
                unit.done.set()

    async def _obtain(self, source: UnitSource, number: int) -> Pin:
        sha256 = source.manifest.unit_sha256s[number]
        async with self._alone(sha256):
            pin = await in_thread(self._found, sha256, source.manifest.layout.unit_size)
            if pin is None:
                pin = await source.fetch(number, partial(self._stored, sha256))
            return pin

    def _found(self, sha256: str, size: int) -> Pin | None:
        """Pins are noted on the thread that makes them: none is lost when this task is cancelled meanwhile."""
        pin = self._plan.cache.pin(sha256, size)
        if pin is not None:
            self._pins.add(pin)
        return pin

    def _stored(self, sha256: str, data: Data) -> Pin:
        pin = self._plan.cache.store(sha256, data)
        self._pins.add(pin)
        return pin

    @asynccontextmanager
    async def _alone(self, sha256: str) -> AsyncGenerator[None, None]:
        """Units with the same bytes are fetched one after another, so that the second finds the first one's file."""
        lock, waiting = self._by_sha256.setdefault(sha256, (anyio.Lock(fast_acquire=True), []))
        waiting.append(1)
        try:
            async with lock:
                yield
        finally:
            waiting.pop()
            if not waiting:
                self._by_sha256.pop(sha256, None)

    async def _give(
        self, ordered: MemoryObjectReceiveStream[_Unit], window: anyio.Semaphore, results: Results[int]
    ) -> None:
        """Give the units in order; the one given last is held until the next is asked for."""
        held: _Unit | None = None
        async for unit in ordered:
            await unit.done.wait()
            if unit.error is not None:
                raise unit.error
            await results.give(unit.number)
            window.release()
            self._let_go(held)
            held = unit

    def _let_go(self, unit: _Unit | None) -> None:
        if unit is not None and unit.pin is not None:
            unit.pin.release()
            self._pins.discard(unit.pin)
