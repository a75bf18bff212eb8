"""What the disk refuses in the middle of a pull: told with file, reason and room, and gone on with later."""

from __future__ import annotations

import errno
import os
import shutil
from collections import namedtuple

import pytest

from r2d1 import Settings
from r2d1.errors import NoSpace, R2D1Error, UnsafeDestination
from r2d1.fetcher import AsyncFetcher
from r2d1.objects import BytesSource
from r2d1.objects.local import LocalStore
from r2d1.remote import Remote
from r2d1.testing import MemoryStore
from tests.checkpoints import MIB, files_of, random_files, write_checkpoint
from tests.remote_ends import open_courier, open_fetcher

NAMED = "r2://jobs/job/chk_1"
PART = MIB
Usage = namedtuple("Usage", "total used free")


class FullDisk:
    """A disk that takes so many bytes more, by ``os.pwrite`` and ``os.write``, and then says why not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int, code: int = errno.ENOSPC) -> None:
        self.room, self.code = room, code
        self._monkeypatch = monkeypatch
        self._pwrite, self._write = os.pwrite, os.write
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "write", self.write)

    def _take(self, data: memoryview) -> memoryview:
        if not self.room:
            raise OSError(self.code, os.strerror(self.code))
        data = memoryview(data)[: self.room]
        self.room -= len(data)
        return data

    def pwrite(self, fd: int, data: memoryview, at: int) -> int:
        return self._pwrite(fd, self._take(data), at)

    def write(self, fd: int, data: memoryview) -> int:
        return self._write(fd, self._take(data))

    def mend(self) -> None:
        self._monkeypatch.undo()


async def shipped(s3, tmp_path, **sizes: int) -> dict[str, bytes]:
    files = random_files(**sizes)
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")
    return files


@pytest.mark.parametrize("transport", ["wire", "aioboto3"])
async def test_a_disk_that_becomes_full(s3, tmp_path, monkeypatch, transport):
    """The file, the system's words, and the room are named; the next pull brings the rest alone."""
    files = await shipped(s3, tmp_path, a=3 * PART)
    disk = FullDisk(monkeypatch, room=PART + PART // 2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: Usage(0, 0, 4 * PART))
    async with open_fetcher(s3, tuning={"transport": transport, "concurrency": 1}) as fetcher:
        with pytest.raises(NoSpace) as caught:
            await fetcher.pull(NAMED, tmp_path / "down")
        text = str(caught.value)
        assert text.startswith(f"pulling 'jobs/job/chk_1/a.bin' into {tmp_path / 'down' / '.r2d1' / 'pull'}")
        assert f"/a.bin: {os.strerror(errno.ENOSPC)}; " in text
        assert " bytes are to be pulled and 4,194,304 are free on that disk" in text
        assert not (tmp_path / "down" / "chk_1").exists()
        disk.mend()
        before = len(s3.requests)
        info = await fetcher.pull(NAMED, tmp_path / "down")
    assert files_of(info.local_dir) == files
    ranges = [
        record for record in s3.requests[before:] if record.operation == "GetObject" and record.key.endswith(".bin")
    ]
    assert len(ranges) == 2  # of three


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EIO, R2D1Error),
        (errno.EROFS, UnsafeDestination),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, UnsafeDestination),
    ],
)
@pytest.mark.parametrize("size", [PART + 1, 10], ids=["large", "small"])
async def test_each_refusal_has_its_class(s3, tmp_path, monkeypatch, code, kind, size):
    """Of a file that is written while it comes and of one that is held until it is whole."""
    await shipped(s3, tmp_path, a=size)
    FullDisk(monkeypatch, room=0, code=code)
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(R2D1Error, match=rf"a\.bin' into /.*/a\.bin: {os.strerror(code)}") as caught:
            await fetcher.pull(NAMED, tmp_path / "down")
    assert type(caught.value) is kind


async def test_the_buckets_own_disk_is_not_blamed(tmp_path, monkeypatch):
    """A bucket that is a directory reads from its disk and writes to none: the room is lacking at the destination."""
    store = LocalStore(tmp_path / "bucket")
    await store.put("data/a.bin", BytesSource(bytes(PART)))
    FullDisk(monkeypatch, room=0)
    async with AsyncFetcher(Settings(), given=Remote(store, None)) as fetcher:
        with pytest.raises(NoSpace, match=r"pulling 'data/a\.bin' into .*; 1,048,576 bytes are to be pulled"):
            await fetcher.pull("r2://data", tmp_path / "down")


async def test_of_a_prefix_what_is_placed_is_not_counted(s3, tmp_path, monkeypatch):
    """The room that is asked for is that of the files which are still to come."""
    s3.put("data/a.bin", b"x" * 1000)
    s3.put("data/b.bin", b"x" * 2000)
    FullDisk(monkeypatch, room=1000)
    async with open_fetcher(s3, tuning={"concurrency": 1}) as fetcher:
        with pytest.raises(NoSpace, match=r"b\.bin' .*; 2,000 bytes are to be pulled"):
            await fetcher.pull("r2://data", tmp_path / "down")


async def test_a_destination_that_cannot_be_made(tmp_path):
    """A file in the way is named; nothing of the operating system's own goes out."""
    (tmp_path / "down").write_bytes(b"")
    async with AsyncFetcher(Settings(), given=Remote(MemoryStore(), None)) as fetcher:
        with pytest.raises(
            UnsafeDestination, match=rf"pulling 'r2://jobs/job/latest' into {tmp_path}/down: File exists"
        ):
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
