"""Following one directory for as long as the courier lives, through its vanishing and coming back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.abc

from r2d1.courier.folder import Folder
from r2d1.courier.payer import Payer
from r2d1.courier.room import keep_room
from r2d1.courier.watch import EventSource, backend_of, scan_forever, until_there
from r2d1.errors import R2D1Error, RemoteError
from r2d1.events import WatchStarted
from r2d1.heads import list_heads
from r2d1.tasks import in_thread, one_error

_LIST_HEADS_PATIENCE_S = 15.0
_SILENT = f"no answer within {_LIST_HEADS_PATIENCE_S:g} s"


@dataclass(frozen=True, slots=True)
class Following:
    """One directory being followed."""

    folder: Folder
    payer: Payer | None
    events: EventSource

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Follow for ever; started once the first scan is done, or when the directory is not there yet."""
        is_started = False
        while True:
            try:
                is_started = await self._follow_once(task_status, is_started=is_started)
            except (R2D1Error, OSError) as error:
                if not is_started:
                    raise
                self.folder.trouble = str(error)
                self.folder.tell.notice("error", f"{self.folder.path}: cannot be followed, trying again: {error}")
                self.folder.changed()
                await anyio.sleep(self.folder.options.poll_every)

    async def _follow_once(self, task_status: anyio.abc.TaskStatus[None], *, is_started: bool) -> bool:
        """Wait for the directory and follow it until it is gone."""
        folder = self.folder
        if not await in_thread(folder.path.is_dir):
            missing = f"{folder.path} is not there; waiting for it"
            if is_started:  # it was there before: nothing that a trainer writes now is shipped
                folder.trouble = missing
                folder.changed()
            folder.tell.notice("warning" if is_started else "info", missing)
            if not is_started:
                task_status.started()
            is_started = True
            await until_there(folder.path, folder)
        async with folder.opened():
            folder.trouble, folder.root = None, None
            await self._follow_opened(None if is_started else task_status)
        return True

    async def _follow_opened(self, task_status: anyio.abc.TaskStatus[None] | None) -> None:
        folder = self.folder
        names = await self._list_heads()
        backend = await in_thread(partial(backend_of, folder.path, force_polling=folder.options.force_polling))
        with one_error():
            async with anyio.create_task_group() as tasks:
                await tasks.start(self.events, folder, backend)
                if self.payer is not None:
                    tasks.start_soon(self.payer.reconcile, folder, names)
                folder.tell(WatchStarted(str(folder.path), folder.job_id, backend, folder.options.poll_every))
                if (keep := folder.options.keep_local) is not None:
                    tasks.start_soon(keep_room, folder, keep)
                is_there = await folder.scan()
                folder.want_room()
                if task_status is not None:
                    task_status.started()
                if is_there:
                    await scan_forever(folder)
                tasks.cancel_scope.cancel()

    async def _list_heads(self) -> Sequence[str]:
        """The names this job has heads for. A store that is away now is asked no further: the journal is believed."""
        folder = self.folder
        try:
            with anyio.fail_after(_LIST_HEADS_PATIENCE_S):
                names = [of.name async for of in list_heads(folder.lane.store, folder.job_id)]
        except (TimeoutError, RemoteError) as error:
            if isinstance(error, RemoteError) and not error.transient:
                raise
            folder.tell.notice(
                "warning", f"the heads of {folder.job_id!a} could not be listed, going on without: {error or _SILENT}"
            )
            return []
        folder.heads = frozenset(names)
        return names
