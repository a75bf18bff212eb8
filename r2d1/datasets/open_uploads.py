"""Uploads that are open in a bucket, written down until they end: a later run gives up what a killed one left.

Only what is written down here is ours to give up. Another upload of the same key may be that of a run on another
machine, and so may one whose file a living run holds locked.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from r2d1.errors import NotSupported, R2D1Error, RemoteError
from r2d1.events import Teller
from r2d1.localstate import close_lock, open_lock, try_lock, wait_for_lock
from r2d1.objects import ObjectStore
from r2d1.tasks import entered, in_thread

_NAME = re.compile(r"uploads-[0-9a-f]{16}\.jsonl", re.ASCII)


@dataclass(frozen=True, slots=True)
class Left:
    """An upload that a run began and did not end; ``where`` is that of its store."""

    where: str
    key: str
    upload_id: str


class OpenUploads:
    """What this run has open: a line for each beginning and end, in a file of its own that it holds locked.

    There is no file before the first one, and none is left when all have ended. All calls block for a moment.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._open: set[str] = set()
        self._file: tuple[Path, int] | None = None

    def began(self, where: str, key: str, upload_id: str) -> None:
        """Note an upload; ``R2D1Error`` when the disk does not take it."""
        with self._lock:
            self._open.add(upload_id)
            self._write({"where": where, "key": key, "upload_id": upload_id})

    def ended(self, upload_id: str) -> None:
        """Note that an upload was completed or aborted."""
        with self._lock:
            self._open.discard(upload_id)
            self._write({"ended": upload_id})

    def close(self) -> None:
        """Let go of the file; what has not ended is left to a later run. Safe to call twice."""
        with self._lock:
            if self._file is not None:
                path, handle = self._file
                self._file = None
                if not self._open:
                    path.unlink(missing_ok=True)
                close_lock(handle)

    def _write(self, line: dict[str, str]) -> None:
        try:
            if self._file is None:
                self._file = self._made()
            os.write(self._file[1], json.dumps(line).encode() + b"\n")
        except OSError as exc:
            raise R2D1Error(
                f"{self._folder}: an open upload cannot be noted: {exc.strerror}. Free some space, or mend the folder"
            ) from exc

    def _made(self) -> tuple[Path, int]:
        while True:
            path = self._folder / f"uploads-{secrets.token_hex(8)}.jsonl"
            handle = open_lock(path)
            wait_for_lock(handle)
            if os.fstat(handle).st_nlink:
                return path, handle
            close_lock(handle)  # another run found it before it was locked, and took it for one that was left


async def give_up_left(store: ObjectStore, folder: Path, tell: Teller) -> None:
    """Abort the uploads in this bucket that runs which are dead have noted in ``folder``."""
    for path in await in_thread(_noted, folder):
        async with entered(_claimed(path)) as left:
            if left is not None and all([await _is_given_up(store, each, tell) for each in left]):
                await in_thread(_remove, path)


async def _is_given_up(store: ObjectStore, left: Left, tell: Teller) -> bool:
    if left.where != store.where:
        return False
    try:
        await store.abort_upload(left.key, left.upload_id)
    except (NotSupported, RemoteError) as error:
        tell.notice("warning", f"an upload that an earlier run left open could not be aborted: {error}")
        return False
    return True


def _noted(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_file())


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


@contextmanager
def _claimed(path: Path) -> Iterator[Sequence[Left] | None]:
    """What is noted in a file and has not ended; None while the run that notes it lives, or where nobody can tell."""
    handle = open_lock(path)
    try:
        yield _read(handle) if try_lock(handle) else None
    finally:
        close_lock(handle)


def _read(handle: int) -> list[Left]:
    found: dict[str, Left] = {}
    with open(handle, "rb", closefd=False) as lines:
        for line in lines:
            try:
                noted = json.loads(line)
                if (ended := noted.get("ended")) is not None:
                    found.pop(ended, None)
                else:
                    found[noted["upload_id"]] = Left(noted["where"], noted["key"], noted["upload_id"])
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # the run was killed while it wrote this line
    return list(found.values())
