"""Field case 95: hashing and directory walks on the event loop. Ours does neither there."""

from __future__ import annotations

import builtins
import io
import json
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from r2d1.events import Committed
from r2d1.tasks import in_thread
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import Told, open_courier, open_fetcher

PART = 1 << 20
#: Every call by which r2d1 can reach a disk; hashing goes along with reading and writing, block by block.
CALLS = [
    *((os, name) for name in ("open", "read", "pread", "preadv", "write", "pwrite", "fsync", "ftruncate", "truncate")),
    *((os, name) for name in ("scandir", "listdir", "stat", "lstat", "readlink", "statvfs")),
    *((os, name) for name in ("mkdir", "makedirs", "rename", "replace", "unlink", "remove", "rmdir", "link", "utime")),
    (io, "open"),
    (builtins, "open"),
    (sqlite3, "connect"),
    (json, "loads"),
    (json, "dumps"),
]
#: Documents up to this size may be read and made on the loop: heads, records, hints; not manifests.
SMALL = 16 << 10


def callers() -> list[str]:
    """The functions that are running in this thread, the innermost first; found without touching a disk."""
    frame, found = sys._getframe(2), []
    while frame is not None and len(found) < 8:
        found.append(f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found


class Witness:
    """Wraps the calls; ``seen`` are all of them by name, ``caught`` those made on the loop's own thread.

    Lock files are left out: they are opened and locked, which is neither reading nor walking.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.loop_thread = threading.get_ident()
        self.is_watching = False
        self.seen: set[str] = set()
        self.caught: list[str] = []
        self._roots = (str(root), "/proc")
        for module, name in CALLS:
            monkeypatch.setattr(module, name, self._wrapped(name, getattr(module, name)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.is_watching = True
        try:
            yield
        finally:
            self.is_watching = False

    def _wrapped(self, name: str, func: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            result = func(*args, **kwargs)
            if self.is_watching:
                self.seen.add(name)
                if threading.get_ident() == self.loop_thread and self._matters(name, args, result):
                    self.caught.append(f"{name}{args!r:.100} <- {' <- '.join(callers())}")
            return result

        return call

    def _matters(self, name: str, args: tuple[object, ...], result: object) -> bool:
        """Whether a file of the test's is touched, by name or by descriptor, or a large document is made or read."""
        if name in ("loads", "dumps"):
            return len(result if isinstance(result, str) else args[0]) > SMALL
        is_ours = bool(args) and (isinstance(args[0], int) or str(args[0]).startswith(self._roots))
        return is_ours and not any("open_lock" in caller or "held" in caller for caller in callers())


@pytest.fixture
def witness(monkeypatch, tmp_path) -> Witness:
    return Witness(monkeypatch, tmp_path)


def write_backlog(directory: Path) -> dict[str, bytes]:
    """A file of many parts, and many small ones in folders."""
    files = {f"{n % 10}/{n}.bin": b"%d" % n for n in range(200)} | {"big.bin": os.urandom(9 * PART + 1)}
    write_checkpoint(directory, "chk_1", 1, files)
    return files


async def test_nothing_touches_a_disk_on_the_loop(s3, tmp_path, witness):
    """Watching, shipping, pulling, pulling again and pulling a prefix: every disk access is on a worker thread."""
    files = write_backlog(tmp_path / "up")
    told = Told()
    with witness.watching():
        async with open_courier(s3, part_size=PART, observer=told) as courier:
            await courier.watch(tmp_path / "up", "job", poll_every=0.2)
            await in_thread(lambda: write_checkpoint(tmp_path / "up", "chk_2", 2, {"a.bin": b"a"}))
            await told.until(lambda: len(told.of(Committed)) == 2)
            await courier.flush()
        async with open_fetcher(s3) as fetcher:
            info = await fetcher.pull("r2://jobs/job/chk_1", tmp_path / "down")
            again = await fetcher.pull("r2://jobs/job/chk_1", tmp_path / "down")
            await fetcher.pull("r2://jobs/job/chk_1/3", tmp_path / "prefix")
            await fetcher.pull("r2://jobs/job/chk_1/3", tmp_path / "prefix")
        async with open_courier(s3, part_size=PART) as courier:
            await courier.watch(tmp_path / "down", "job")
            await courier.flush()
    assert witness.caught == []
    assert witness.seen >= {"preadv", "pwrite", "scandir", "fsync", "open", "connect"}
    assert files_of(info.local_dir) == files
    assert again.cached
