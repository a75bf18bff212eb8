"""Field case 77: verification so slow that people switch it off. Ours rides along: no byte is read or sent once more."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from r2d1.transfer import files
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import open_courier, open_fetcher

PART = 256 << 10
FILES = 8
SIZE = 4 * PART
TOTAL = FILES * SIZE


class Disk:
    """Counts the bytes of files that transfers read and write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.written = 0
        self._preadv, self._pwrite = os.preadv, os.pwrite
        counted = {**vars(os), "preadv": self._reading, "pwrite": self._writing}
        monkeypatch.setattr(files, "os", SimpleNamespace(**counted))  # there alone: locks are written elsewhere

    def _reading(self, *args: object) -> int:
        count = self._preadv(*args)
        self.read += count
        return count

    def _writing(self, *args: object) -> int:
        count = self._pwrite(*args)
        self.written += count
        return count

    def taken(self) -> tuple[int, int]:
        """Bytes read and written since this was last asked."""
        taken = (self.read, self.written)
        self.read = self.written = 0
        return taken


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


async def test_what_verifying_costs(s3, tmp_path, disk):
    """Shipped with every digest for two reads of each byte, pulled verified with none, looked at again with none."""
    contents = {f"{number}.bin": os.urandom(SIZE) for number in range(FILES)}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, contents)
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")
        assert disk.taken() == (2 * TOTAL, 0)  # hashed for the part's own check, then read again while it is sent
        await courier.ship(folder, "job")
        assert disk.taken() == (0, 0)
    sent = sum(record.received for record in s3.requests if record.operation == "UploadPart")
    assert sent == TOTAL
    count = len(s3.requests)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
        assert info.verified
        assert disk.taken() == (0, TOTAL)  # hashed on the way to the disk
        again = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
        assert again.cached and again.verified
        assert disk.taken() == (0, 0)
    brought = sum(record.sent for record in s3.requests[count:] if record.key.endswith(".bin"))
    assert brought == TOTAL
    assert files_of(info.local_dir) == contents


async def test_a_lost_journal_costs_one_read(s3, tmp_path, disk):
    """Who no longer knows that a folder was verified reads it once, and fetches nothing."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"a.bin": os.urandom(SIZE)})
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")
    disk.taken()
    (tmp_path / "up" / ".r2d1" / "journal.db").unlink()
    count = len(s3.requests)
    async with open_courier(s3, part_size=PART) as courier, open_fetcher(s3) as fetcher:
        assert not (await courier.ship(folder, "job")).is_new
        assert disk.taken() == (SIZE, 0)
        assert (await fetcher.pull("r2://jobs/job/latest", tmp_path / "up")).cached
    assert not any(record.key.endswith("/a.bin") for record in s3.requests[count:])
