"""Following directories: file system events where they come, a full scan where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
from watchfiles import awatch

from r2d1.courier.folder import Folder
from r2d1.localstate import is_remote_file_system
from r2d1.tasks import in_thread, one_error

#: How long watchfiles gathers events (ms): short, since a scan costs little and a checkpoint should start at once.
_DEBOUNCE_MS, _STEP_MS = 100, 10


class EventSource(Protocol):
    """Rouses a folder whenever something happens in it; calls ``task_status.started()`` once events flow."""

    async def __call__(self, folder: Folder, backend: str, *, task_status: anyio.abc.TaskStatus[None]) -> None: ...


def backend_of(path: Path, *, force_polling: bool) -> str:
    """``"events"``, or ``"polling"`` where events cannot be trusted (asked for, or a network file system)."""
    return "polling" if force_polling or is_remote_file_system(path) else "events"


async def follow_events(folder: Folder, backend: str, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Rouse the folder whenever something happens in it; started once events flow; never ends by itself.

    Only the directory itself is watched: a checkpoint's trigger is its sidecar, which lies there.
    """
    stop = anyio.Event()
    with one_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_rouse_on_events, folder, backend, stop)
            try:
                await anyio.sleep(0)  # watchfiles sets its watcher up in the first step of that task
                task_status.started()
                await anyio.sleep_forever()
            finally:
                stop.set()  # watchfiles waits in a thread, which a cancellation alone would not end


async def _rouse_on_events(folder: Folder, backend: str, stop: anyio.Event) -> None:
    try:
        async for _ in awatch(
            folder.path,
            watch_filter=None,
            debounce=_DEBOUNCE_MS,
            step=_STEP_MS,
            stop_event=stop,
            force_polling=backend == "polling",
            recursive=False,
            ignore_permission_denied=True,
        ):
            folder.rouse()
    except (OSError, RuntimeError, UnicodeEncodeError) as exc:  # out of inotify watches, an exotic file system or name
        folder.tell.notice(
            "warning",
            f"{folder.path}: no file system events ({exc}); scanning every {folder.options.poll_every:g} s instead",
        )


async def until_there(path: Path, folder: Folder) -> None:
    """Wait for a directory that does not exist (yet)."""
    pause = min(1.0, folder.options.poll_every)
    while not await in_thread(path.is_dir):
        with anyio.move_on_after(pause):
            await folder.wake.wait()
        folder.wake = anyio.Event()


async def scan_forever(folder: Folder) -> None:
    """Scan when roused, when something is due, and every ``poll_every`` seconds; ends when the directory is gone."""
    while True:
        with anyio.move_on_after(folder.next_look()):
            await folder.wake.wait()
        folder.wake = anyio.Event()
        if not await folder.scan():
            return
