"""Courier and Fetcher for blocking callers: each method is one call of the async one, on one background loop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from r2d1.catalog import r2_only
from r2d1.courier import AsyncCourier
from r2d1.courier.report import Shipped, ShipReport, Status
from r2d1.errors import Closed, FlushError
from r2d1.events import Event, Notice, Observer
from r2d1.fetcher import AsyncFetcher
from r2d1.fetcher.info import FetchInfo
from r2d1.observers import to_log
from r2d1.settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_MOST_TOLD = 1000


class _Loop:
    """The one background event loop of the process, started when first needed; a forked child gets its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.provider = BlockingPortalProvider()
        self.open_couriers: dict[int, Courier] = {}
        self.is_exit_hooked = False
        self.told: set[str] = set()  # what settings had to say, to the log

    def hook_exit(self) -> None:
        """Drain before the interpreter joins its threads; ``atexit`` would come after that, and never be reached."""
        if not self.is_exit_hooked:
            threading._register_atexit(_drain_at_exit)  # type: ignore[attr-defined]
            self.is_exit_hooked = True


_loop = _Loop()


def _start_anew_in_child() -> None:
    global _loop  # noqa: PLW0603  # the one piece of global state: a child's loop is not its parent's
    # anyio's own clean-up of the inherited portal, at the child's end, would wait for a thread that is not here.
    # It has no public way to say so; without the attribute the child ends as anyio lets it.
    portal = getattr(_loop.provider, "_portal", None)
    if portal is not None:
        portal._event_loop_thread_id = None
    _loop = _Loop()


os.register_at_fork(after_in_child=_start_anew_in_child)


def _drain_at_exit() -> None:
    for courier in list(_loop.open_couriers.values()):
        courier._drain_at_exit()


def _documented(source: Callable[..., Any]) -> Callable[[F], F]:
    """Give a blocking method the docstring of its async original, so that the two never tell different stories."""

    def copy(method: F) -> F:
        method.__doc__ = source.__doc__
        return method

    return copy


def _call(portal: BlockingPortal, func: Callable[..., Awaitable[T]], *args: Any, **kwargs: Any) -> T:
    """Run a coroutine function on the background loop and wait; whatever interrupts the wait cancels it."""

    async def run() -> T:
        return await func(*args, **kwargs)

    future = portal.start_task_soon(run)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _settled(settings: Settings, options: Mapping[str, Any]) -> dict[str, Any]:
    return {**options, "observer": _Settled(settings, options.get("observer"))}


class _Settled:
    """An observer that passes on what settings have to say once only: to the log once a process, else once a door."""

    def __init__(self, settings: Settings, observer: Observer | None) -> None:
        self._observer = observer or to_log
        self._told = _loop.told if observer is None else set()
        self._texts = {*settings.notices(), r2_only(settings)}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice) and event.text in self._texts:
            if event.text in self._told:
                return
            if len(self._told) < _MOST_TOLD:
                self._told.add(event.text)
        self._observer(event)


class Courier:
    """Ships checkpoints to R2 as they appear and records each in D1, for blocking callers.

        courier = Courier.from_config(cfg["secrets"])
        courier.watch("/root/checkpoints", job_id="my_run")     # returns at once
        ...                                                     # train
        courier.flush(timeout=300)

    The same as ``AsyncCourier``, without ``await``: the work is done on one background thread of the process.
    A context manager drains when left; without one, ``close`` does, and leaving the interpreter with work
    unfinished waits at most ``drain_timeout`` seconds and says loudly what was left.
    """

    def __init__(self, settings: Settings, **options: Any) -> None:
        self._async = AsyncCourier(settings, **_settled(settings, options))
        self._drain_timeout = float(options.get("drain_timeout", 60.0))
        self._opening = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._contexts: list[AbstractContextManager[Any]] = []
        self._pid = os.getpid()

    @classmethod
    @_documented(AsyncCourier.from_env)
    def from_env(cls, **options: Any) -> Self:
        return cls(Settings.from_env(), **options)

    @classmethod
    @_documented(AsyncCourier.from_config)
    def from_config(cls, secrets: Mapping[str, object], **options: Any) -> Self:
        return cls(Settings.from_config(secrets), **options)

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and os.getpid() != self._pid:
            return  # a child that ends: its own error tells more than that this is not its courier
        self._leave(kind, error, traceback)

    def close(self) -> None:
        """Drain for at most ``drain_timeout`` seconds, then stop. Raises ``FlushError`` when something was left."""
        self._leave(None, None, None)

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._check_process()
        with self._opening:
            contexts, self._contexts, self._portal = self._contexts, [], None
        _loop.open_couriers.pop(id(self), None)
        if not contexts:
            return
        keeper, courier = contexts
        try:
            courier.__exit__(kind, error, traceback)
        finally:
            keeper.__exit__(None, None, None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Courier is not pickled: make a new one in the other process")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Closed("this courier belongs to the parent process; make a new one after the fork")

    def _opened(self) -> BlockingPortal:
        self._check_process()
        with self._opening:
            if self._portal is None:
                portal = _loop.provider.__enter__()
                try:
                    context = portal.wrap_async_context_manager(self._async)
                    context.__enter__()
                except BaseException:
                    _loop.provider.__exit__(None, None, None)
                    raise
                self._portal, self._contexts = portal, [_loop.provider, context]
                _loop.open_couriers[id(self)] = self
                _loop.hook_exit()
            return self._portal

    def _drain_at_exit(self) -> None:
        status = self._async.status()
        busy = [*status.in_flight, *status.queued, *status.waiting]
        if busy:
            _say(f"waiting at most {self._drain_timeout:g} s for {', '.join(busy)}; call flush() or close() yourself")
        try:
            self.close()
        except FlushError as error:
            _say(f"NOT EVERYTHING IS IN THE BUCKET at exit: {error}")
        except KeyboardInterrupt:
            with _loop.provider as portal:
                portal.call(self._async.stop)
            _say(f"STOPPED AT ONCE, not everything is in the bucket; the next start goes on: {', '.join(busy)}")

    @_documented(AsyncCourier.watch)
    def watch(
        self,
        watch_dir: str | os.PathLike[str],
        job_id: str,
        poll_every: float = 30,
        blocking: bool = False,
        *,
        ordered: bool = True,
        settle_timeout: float = 60.0,
        force_polling: bool = False,
        newest_first: bool = False,
        keep_local: int | None = None,
        snapshot: str | None = None,
    ) -> None:
        portal = self._opened()
        _call(
            portal,
            self._async.watch,
            watch_dir,
            job_id,
            poll_every,
            ordered=ordered,
            settle_timeout=settle_timeout,
            force_polling=force_polling,
            newest_first=newest_first,
            keep_local=keep_local,
            snapshot=snapshot,
        )
        if blocking:
            _call(portal, anyio.sleep_forever)

    @_documented(AsyncCourier.flush)
    def flush(self, timeout: float | None = 300) -> ShipReport:
        return _call(self._opened(), self._async.flush, timeout)

    @_documented(AsyncCourier.ship)
    def ship(
        self, path: str | os.PathLike[str], job_id: str, *, ordered: bool = True, settle_timeout: float = 60.0
    ) -> Shipped:
        return _call(self._opened(), self._async.ship, path, job_id, ordered=ordered, settle_timeout=settle_timeout)

    @_documented(AsyncCourier.status)
    def status(self) -> Status:
        async def ask() -> Status:
            return self._async.status()

        return _call(self._opened(), ask)


class Fetcher:
    """Brings checkpoints and datasets from R2 to the local disk, for blocking callers.

        info = Fetcher.from_env().pull("r2://jobs/my_run/latest", dest="/root/checkpoints")

    The same as ``AsyncFetcher``, without ``await``. Used as a context manager it keeps its connections from
    one pull to the next.
    """

    def __init__(self, settings: Settings, **options: Any) -> None:
        options = _settled(settings, options)
        self._make: Callable[[], AsyncFetcher] = lambda: AsyncFetcher(settings, **options)
        self._make()  # what is missing is told here, not at the first pull
        self._kept: AsyncFetcher | None = None
        self._contexts: list[AbstractContextManager[Any]] = []
        self._pid = os.getpid()

    @classmethod
    @_documented(AsyncFetcher.from_env)
    def from_env(cls, **options: Any) -> Self:
        return cls(Settings.from_env(), **options)

    @classmethod
    @_documented(AsyncFetcher.from_config)
    def from_config(cls, secrets: Mapping[str, object], **options: Any) -> Self:
        return cls(Settings.from_config(secrets), **options)

    def __enter__(self) -> Self:
        fetcher = self._make()
        portal = _loop.provider.__enter__()
        context = portal.wrap_async_context_manager(fetcher)
        context.__enter__()
        self._kept, self._contexts = fetcher, [_loop.provider, context]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        contexts, self._contexts, self._kept = self._contexts, [], None
        if os.getpid() != self._pid:
            return  # of a child: what the parent opened is the parent's to close
        for context in reversed(contexts):
            context.__exit__(None, None, None)

    def close(self) -> None:
        """Release what the context manager keeps; safe to call twice."""
        self.__exit__(None, None, None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Fetcher is not pickled: make a new one in the other process")

    @_documented(AsyncFetcher.pull)
    def pull(self, source: str, dest: str | os.PathLike[str], force: bool = False) -> FetchInfo:
        if os.getpid() != self._pid and self._kept is not None:
            raise Closed("this fetcher belongs to the parent process; make a new one after the fork")
        with _loop.provider as portal:
            return _call(portal, self._pull, source, dest, force)

    async def _pull(self, source: str, dest: str | os.PathLike[str], force: bool) -> FetchInfo:
        if self._kept is not None:
            return await self._kept.pull(source, dest, force)
        async with self._make() as fetcher:
            return await fetcher.pull(source, dest, force)


def _say(text: str) -> None:
    sys.stderr.write(f"[r2d1] {text}\n")
    sys.stderr.flush()
