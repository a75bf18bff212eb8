"""What a thread opens for a task that ``asyncio`` cancels meanwhile is closed: descriptors, journals, locks."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import warnings
from collections.abc import Awaitable
from pathlib import Path

import anyio
import pytest

from r2d1 import Settings
from r2d1.checkpoint import Identity, LocalFile
from r2d1.courier.folder import Folder, WatchOptions
from r2d1.datasets import large_files
from r2d1.datasets.label_files import LabelFile
from r2d1.events import Teller
from r2d1.journal import Journal
from r2d1.objects import BytesSource, r2_client
from r2d1.objects.r2 import R2Store
from r2d1.testing import MemoryStore
from r2d1.transfer import download, hashing, upload
from r2d1.transfer.files import HELD
from r2d1.transfer.lane import Lane
from tests.checkpoints import write_checkpoint
from tests.remote_ends import open_courier, open_fetcher

PATIENCE_S = 60.0
SIZE = HELD + 1  # more than is read in one go
TELL = Teller(lambda event: None)


class Slow:
    """A function that, called in a thread, waits until it may go on; it keeps what it was given and has returned.

    As long as it keeps that, no garbage collection closes what nobody closed.
    """

    def __init__(self, patch: pytest.MonkeyPatch, owner: object, name: str, *, only: object = None) -> None:
        self.called, self.may_go_on = threading.Event(), threading.Event()
        self.kept: list[object] = []
        original = getattr(owner, name)

        def slow(*args, **options):
            if only is not None and args[0] != only:
                return original(*args, **options)
            self.called.set()
            assert self.may_go_on.wait(PATIENCE_S)
            result = original(*args, **options)
            self.kept.append((args, result))
            return result

        patch.setattr(owner, name, slow)

    async def cancelling(self, call: Awaitable[object]) -> None:
        """Run ``call`` in a task that is cancelled while it waits for the function, which then comes to its end."""
        task = asyncio.ensure_future(call)
        assert await anyio.to_thread.run_sync(self.called.wait, PATIENCE_S)
        task.cancel()
        self.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert self.kept


def open_below(root: Path) -> list[str]:
    """The files below a folder that this process has open."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:  # that of the listing itself
            continue
    return [name for name in names if name.startswith(f"{root}/")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.fixture
def lane() -> Lane:
    return Lane(MemoryStore(), TELL)


def identity_of(path: Path) -> Identity:
    return Identity.of(os.stat(path))


async def test_a_file_to_be_hashed(lane, path, monkeypatch):
    slow = Slow(monkeypatch, hashing, "open_unchanged")
    await slow.cancelling(
        hashing.digest_file(lane, path, identity_of(path), algorithm="blake3", part_size=lane.part_size)
    )
    assert open_below(path.parent) == []


class NoLog:
    """A ship that begins."""

    async def sent_file(self, file):
        return None

    async def open_file(self, file):
        return None


async def test_a_file_to_be_sent(lane, path, monkeypatch):
    slow = Slow(monkeypatch, upload, "open_unchanged")
    file = LocalFile(path.name, path.name, identity_of(path))
    await slow.cancelling(
        upload.upload_file(lane, NoLog(), folder=path.parent, prefix="p", file=file, progress=lambda *_: None)
    )
    assert open_below(path.parent) == []


async def test_a_file_to_be_fetched(lane, path, monkeypatch):
    slow = Slow(monkeypatch, download, "_open_staged")
    wanted = download.Wanted(path.name, "k", SIZE, None, lane.part_size)
    await slow.cancelling(download.fetch_file(lane, wanted, path, lambda *_: None))
    assert open_below(path.parent) == []


async def test_labels_to_be_sent_in_parts(path, monkeypatch):
    file = LabelFile(path.name, path, identity_of(path))
    slow = Slow(monkeypatch, os, "open", only=path)

    async def read() -> None:
        async with large_files._opened(file):
            raise AssertionError

    await slow.cancelling(read())
    assert open_below(path.parent) == []


async def test_the_journal_of_a_watched_directory(lane, tmp_path, monkeypatch):
    slow = Slow(monkeypatch, Journal, "__init__")
    folder = Folder(tmp_path, "job", "scope", WatchOptions(), lane, lambda *_: None, lambda: None)

    async def watch() -> None:
        async with folder.opened():
            raise AssertionError

    await slow.cancelling(watch())
    assert open_below(tmp_path) == []
    async with folder.opened():  # and nothing holds its lock
        pass


@pytest.mark.parametrize("uri", ["r2://jobs/job/chk_1", "r2://jobs/job/chk_1/sub"], ids=["checkpoint", "prefix"])
async def test_the_journal_of_a_pull(s3, tmp_path, monkeypatch, uri):
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"sub/a.bin": b"a"})
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
    async with open_fetcher(s3) as fetcher:
        with monkeypatch.context() as patch:
            await Slow(patch, Journal, "__init__").cancelling(fetcher.pull(uri, tmp_path / "down"))
        assert open_below(tmp_path / "down") == []
        await fetcher.pull(uri, tmp_path / "down")


async def test_a_store_that_is_being_connected(s3, monkeypatch):
    """No client is made for nobody: its coroutine would never be awaited. The next call connects."""
    store = R2Store(Settings.from_env(environ=s3.env()), tell=TELL)
    with monkeypatch.context() as patch:
        slow = Slow(patch, r2_client, "_config")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            await slow.cancelling(store.head("k"))
            gc.collect()
    assert [str(one.message) for one in said] == []
    await store.put("k", BytesSource(b"x"))
    await store.aclose()


def test_a_size_the_disk_refuses_leaves_nothing_open(tmp_path, monkeypatch):
    """The file is open already when the disk says that it will not get so large."""

    def refuse(fd: int, size: int) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
        download._open_staged(tmp_path / "a.bin", 1 << 40)
    assert open_below(tmp_path) == []
