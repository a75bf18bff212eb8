"""AsyncCourier: watches directories and brings each checkpoint into the bucket as soon as its sidecar is there."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import anyio
import anyio.abc

from r2d1 import keys, remote
from r2d1.courier import standing
from r2d1.courier.deliver import Delivery, deliver
from r2d1.courier.folder import Folder, Phase, WatchOptions
from r2d1.courier.follow import Following
from r2d1.courier.looking import OUTDATED, until_ready
from r2d1.courier.payer import Payer
from r2d1.courier.report import Shipped, ShipReport, Status
from r2d1.courier.shipyard import Shipyard, journal_of
from r2d1.courier.watch import EventSource, follow_events
from r2d1.errors import (
    CheckpointError,
    Closed,
    FlushError,
    FlushTimeout,
    RemoteError,
    Superseded,
)  # fmt: skip
from r2d1.events import BytesMoved, Event, Observer, ShipFailed, Teller
from r2d1.journal import scope_of
from r2d1.observers import to_log
from r2d1.remote import Remote
from r2d1.settings import Settings
from r2d1.tasks import in_thread, one_error

__all__ = ["AsyncCourier", "ShipReport", "Shipped", "Status"]

#: Checkpoints being shipped at once; their parts share the budget ``Settings.concurrency``.
_CHECKPOINTS_AT_ONCE = 4
#: How long a flush waits for rows once everything is in the bucket.
_ROWS_PATIENCE_S = 10.0
_ROOM_PATIENCE_S = 30.0
_REMEMBERED = 1000


class AsyncCourier:
    """Ships checkpoints to R2 as they appear and records each in D1.

        async with AsyncCourier.from_env() as courier:
            await courier.watch("ckpts", job_id="my_run")
            ...                                             # train
            report = await courier.flush(timeout=300)

    Leaving the block drains for at most ``drain_timeout`` seconds, then closes; an error inside the block or
    a cancellation is never replaced. Everything is bounded: at most four checkpoints and
    ``settings.concurrency`` parts (or as many as pay) are in flight, and memory does not grow with their size.

    Args:
        settings: from ``Settings.from_env``, ``Settings.from_config`` or made by hand.
        observer: called with every ``r2d1.events.Event`` on the event loop; must not block. By default events go
            to the logger ``r2d1``.
        drain_timeout: seconds that leaving the block waits for unfinished checkpoints.
        given: a store and a catalog in place of those the settings name (closed with the courier).
        rng: where ship ids and jitter come from.
        events: what rouses a watched directory; file system events unless a test scripts them.

    Raises ``ConfigError`` when the settings lack what R2 needs.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Observer | None = None,
        drain_timeout: float = 60.0,
        given: Remote | None = None,
        rng: random.Random | None = None,
        events: EventSource = follow_events,
    ) -> None:
        self.settings = settings
        self._observer = observer or to_log
        self._tell = Teller(self._observe)
        self._drain_timeout = drain_timeout
        self._given = given
        self._rng = rng or random.SystemRandom()
        self._events = events
        self._pid = os.getpid()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stack = AsyncExitStack()
        self._folders: list[Folder] = []
        self._change = anyio.Event()
        self._sent_bytes = 0
        self._moves: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)
        self._last_error: str | None = None
        self._stopped = False
        if given is None:
            settings.require_r2()

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """A courier with settings from the environment (and ``.env``, with the extra ``dotenv``).

        ``options`` are the arguments of the class beside ``settings``. Settings that no variable gives
        (``concurrency``, ``bandwidth_limit``, …) are arguments of ``Settings.from_env``: give its result to the class.
        """
        return cls(Settings.from_env(), **options)

    @classmethod
    def from_config(cls, secrets: Mapping[str, object], **options: Any) -> Self:
        """A courier with settings from the ``secrets`` block of a job file, exported to ``os.environ`` too."""
        return cls(Settings.from_config(secrets), **options)

    # -- life -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._check_process()
        if self._tasks is not None:
            raise Closed("this courier was entered before; make a new one")
        ends = await self._stack.enter_async_context(
            remote.opened(self.settings, tell=self._tell, rng=self._rng, given=self._given)
        )
        self._lane = ends.lane(self.settings, self._tell)
        self._payer = Payer(ends.store, ends.catalog, self._tell, self._changed) if ends.catalog is not None else None
        self._yard = Shipyard(self._lane, self._payer, self._rng, self._changed)
        self._tasks = await anyio.create_task_group().__aenter__()
        for _ in range(_CHECKPOINTS_AT_ONCE):
            self._tasks.start_soon(self._yard.run)
        if self._payer is not None:
            self._tasks.start_soon(self._payer.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._tasks is not None
        is_cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        ended = error if is_cancelled else None
        try:
            if not self._stopped:
                await self._drain(error)
        except (Closed, anyio.get_cancelled_exc_class()) as left:
            if not self._stopped:
                raise
            ended = None if isinstance(left, Closed) else left
        finally:
            self._tasks.cancel_scope.cancel()
            is_ours = await self._close(ended)
        return is_ours and is_cancelled

    async def _drain(self, error: BaseException | None) -> None:
        """Bring out what is there; where the block failed, let nobody take what is left for the error."""
        if error is not None and not isinstance(error, Exception):
            return
        try:
            await self.flush(timeout=self._drain_timeout)
        except FlushError as left:
            if error is None:
                raise
            self._tell.notice("error", f"left unfinished while {type(error).__name__} ended the block: {left}")

    async def _close(self, ended: BaseException | None) -> bool:
        """Wait for what was stopped, and let go of all; True where ``stop`` alone has ``ended`` the block."""
        assert self._tasks is not None
        try:
            with one_error():
                if ended is None or not self._stopped:
                    await self._tasks.__aexit__(None, None, None)
                    return False
                return bool(await self._tasks.__aexit__(type(ended), ended, ended.__traceback__))
        finally:  # also when that raises because the caller was cancelled
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncCourier is not pickled: make a new one in the other process")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Closed("this courier belongs to the parent process; make a new one after the fork")

    def _require_open(self) -> anyio.abc.TaskGroup:
        self._check_process()
        if self._tasks is None or self._tasks.cancel_scope.cancel_called:
            raise Closed("the courier is not open; use `async with AsyncCourier(...) as courier:`")
        return self._tasks

    # -- verbs ----------------------------------------------------------------------------------------

    async def watch(
        self,
        watch_dir: str | os.PathLike[str],
        job_id: str,
        poll_every: float = 30,
        *,
        ordered: bool = True,
        settle_timeout: float = 60.0,
        force_polling: bool = False,
        newest_first: bool = False,
        keep_local: int | None = None,
        snapshot: str | None = None,
    ) -> None:
        """Ship every checkpoint that is in ``watch_dir`` or appears there. Returns after the first scan.

        Args:
            watch_dir: the directory whose direct children are checkpoints; one that does not exist yet is
                waited for (then this returns at once).
            job_id: the training run, 1 to 128 bytes of text without a slash.
            poll_every: seconds between full scans, which find what events did not tell (network file systems).
            ordered: False on file systems whose times mean nothing: files newer than the sidecar are then fine.
            settle_timeout: seconds a checkpoint may lack a listed file before it counts as failed.
            force_polling: use no file system events.
            newest_first: for links that cannot keep up: the newest checkpoint goes first, what it passes is listed
                and shipped when there is time.
            keep_local: delete local checkpoints beyond the newest ``keep_local``, each only after its manifest was
                read back from the bucket and all its objects were seen there; never one that was pulled to resume
                from.
            snapshot: ``"hardlink"`` pins the files of a checkpoint while it is shipped, so that the trainer's
                rotation cannot take them away.

        Raises ``NameRefused`` for the job id, ``LockHeld`` when another courier on this host has the directory,
        ``AccessRefused`` or ``BucketNotFound`` when the bucket refuses.
        """
        tasks = self._require_open()
        path = Path(watch_dir).absolute()
        options = WatchOptions(
            float(poll_every), ordered, settle_timeout, force_polling, newest_first, keep_local, snapshot
        )
        if any(folder.path == path for folder in self._folders):
            raise CheckpointError(f"{path} is watched already by this courier")
        folder = self._folder(path, job_id, options)
        self._folders.append(folder)
        try:
            await tasks.start(Following(folder, self._payer, self._events).run)
        except BaseException:
            self._folders.remove(folder)
            raise

    async def flush(self, timeout: float | None = 300) -> ShipReport:
        """Scan once more, then wait until everything with a sidecar is in the bucket. Rows get ten seconds more.

        Where ``keep_local`` asks for room on the disk, it has been made, unless that takes half a minute.

        ``timeout`` is seconds, None waits for ever. Raises ``FlushError`` naming the checkpoints that failed;
        ``FlushTimeout`` (also a ``TimeoutError``) when time ran out: the work goes on and can be resumed.
        """
        self._require_open()
        try:
            with anyio.fail_after(timeout):
                for folder in list(self._folders):
                    await self._opened(folder)
                    if folder.journal is not None:
                        await folder.scan(retry=True)
                await self._until(lambda: not standing.unfinished(self._folders))
                with anyio.move_on_after(_ROOM_PATIENCE_S):
                    await self._until(lambda: not any(folder.is_crowded for folder in self._folders))
                self._tell_bare()
                await self._try_rows()
        except TimeoutError:
            raise standing.flush_error(self._folders, f"not finished after {timeout:g} s", FlushTimeout) from None
        if standing.failed(self._folders):
            raise standing.flush_error(self._folders, "some checkpoints are not in the bucket", FlushError)
        owed = tuple(self._payer.names()) if self._payer else ()
        return ShipReport(tuple(self._yard.shipped), self._yard.already, owed)

    def _tell_bare(self) -> None:
        """A forgotten sidecar is the likeliest mistake, and a flush the moment to learn of it."""
        for folder in self._folders:
            if folder.bare:
                names = ", ".join(folder.bare[:5]) + (", …" if len(folder.bare) > 5 else "")
                self._tell.notice(
                    "warning",
                    f"{folder.path}: not shipped, as they have no sidecar (r2d1.write_sidecar writes it): {names}",
                    once=f"bare {folder.path} {names}",
                )

    async def _try_rows(self) -> None:
        """Give the rows that are owed a moment: a catalog that is away must not hold up what is in the bucket."""
        if self._payer is not None:
            payer = self._payer
            payer.hurry()
            with anyio.move_on_after(_ROWS_PATIENCE_S):
                await self._until(lambda: payer.is_settled)

    async def _opened(self, folder: Folder) -> None:
        """Have a directory that appeared a moment ago followed before a flush looks: it may hold checkpoints."""
        while folder.journal is None and folder.trouble is None and await in_thread(folder.path.is_dir):
            folder.rouse()
            with anyio.move_on_after(0.1):
                await self._change.wait()

    async def ship(
        self, path: str | os.PathLike[str], job_id: str, *, ordered: bool = True, settle_timeout: float = 60.0
    ) -> Shipped:
        """Ship one checkpoint (its folder or its sidecar) without watching, and write its row.

        ``ordered`` and ``settle_timeout`` are those of ``watch``.

        Raises ``CheckpointError`` when it is not complete within ``settle_timeout`` seconds, ``LockHeld`` when a
        courier already holds its directory, ``RemoteError`` when the store does not take it.
        """
        self._require_open()
        folder_path = Path(path).absolute()
        folder_path = folder_path.with_name(folder_path.name.removesuffix(".json"))
        folder = self._folder(folder_path.parent, job_id, WatchOptions(settle_timeout=settle_timeout))
        async with folder.opened():
            while True:
                local = await until_ready(self._lane, folder_path, ordered=ordered, timeout=settle_timeout)
                if await in_thread(journal_of(folder).is_outdated, folder.scope, local.name, local):
                    raise CheckpointError(f"{folder_path}: {OUTDATED}")
                delivery = Delivery(
                    self._lane, journal_of(folder), folder.scope, self._keys(folder, local.name), local, self._rng
                )
                try:
                    shipped, manifest = await deliver(delivery)
                except Superseded as exc:
                    self._tell.notice("warning", f"{exc}; settling it anew")
                    continue
                except (RemoteError, OSError) as exc:
                    await folder.note_refusal(local, str(exc))
                    raise
                self._yard.note(shipped)
                if self._payer is not None:
                    await self._payer.owe(folder, shipped.name, manifest, shipped.prefix)
                    await self._try_rows()
                return shipped

    def status(self) -> Status:
        """What is queued, in flight, waiting, failed and parked now; cheap, and safe to call often."""
        now = time.monotonic()
        recent = sum(count for at, count in self._moves if now - at < 10)
        return Status(
            queued=standing.names(self._folders, Phase.QUEUED),
            in_flight=standing.names(self._folders, Phase.SHIPPING),
            waiting=standing.whys(self._folders, Phase.WAITING, Phase.STALE),
            failed={**standing.troubles(self._folders), **standing.whys(self._folders, Phase.FAILED)},
            parked={**standing.tried_before(self._folders), **standing.whys(self._folders, Phase.PARKED)},
            rows_owed=tuple(self._payer.names()) if self._payer else (),
            sent_bytes=self._sent_bytes,
            rate=recent / 10,
            last_commit=self._yard.shipped[-1] if self._yard.shipped else None,
            last_commit_at=self._yard.last_commit_at,
            last_error=self._last_error,
        )

    def stop(self) -> None:
        """Stop everything at once and leave what is unfinished resumable; a drain under way ends as well.

        The block of this courier ends at what it awaits next, without an error. Calling this again does nothing.
        """
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
            self._stopped = True
            self._changed()

    # -- inside ---------------------------------------------------------------------------------------

    def _observe(self, event: Event) -> None:
        if isinstance(event, BytesMoved):
            self._sent_bytes += event.count
            self._moves.append((time.monotonic(), event.count))
        elif isinstance(event, ShipFailed):
            self._last_error = f"{event.job_id}/{event.name}: {event.error}"
        self._observer(event)

    def _folder(self, path: Path, job_id: str, options: WatchOptions) -> Folder:
        scope = scope_of(self._lane.store.where, keys.check_job_id(job_id))
        return Folder(path, job_id, scope, options, self._lane, self._yard.enqueue, self._changed)

    def _keys(self, folder: Folder, name: str) -> keys.CheckpointKeys:
        return keys.CheckpointKeys(folder.job_id, keys.check_name(name))

    def _changed(self) -> None:
        self._change.set()
        self._change = anyio.Event()

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            if self._stopped:
                raise Closed("the courier was stopped")
            await self._change.wait()
