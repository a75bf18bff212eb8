"""Field case 14: R2 refuses uneven parts. Every size around a part's is shipped in equal parts and comes back."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from r2d1.errors import ConfigError
from r2d1.events import Teller
from r2d1.objects.r2 import R2Store
from r2d1.settings import Settings
from r2d1.testing import Rules, S3Double
from tests.checkpoints import MIB, files_of, write_checkpoint
from tests.remote_ends import open_courier, open_fetcher, settings_of


@pytest.fixture
def r2() -> Iterator[S3Double]:
    with S3Double(rules=Rules.r2()) as double:
        yield double


@pytest.mark.parametrize("part_size", [5 * MIB, 7_000_001])
async def test_sizes_around_a_part(r2, tmp_path, part_size):
    """One byte less than a part, a part, one byte more, and two and a half: all come back byte for byte."""
    sizes = {"less": part_size - 1, "just": part_size, "more": part_size + 1, "two_and_a_half": part_size * 5 // 2}
    files = {name: os.urandom(size) for name, size in sizes.items()}
    write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    async with open_courier(r2, tuning={"part_size": part_size}) as courier:
        await courier.ship(tmp_path / "up" / "chk_1", "job")
    by_file = {}
    for record in r2.requests:
        if record.operation == "UploadPart":
            by_file.setdefault(record.key.rpartition("/")[2], []).append((record.part_number, record.received))
    assert {name: [size for _, size in sorted(parts)] for name, parts in by_file.items()} == {
        "more": [part_size, 1],
        "two_and_a_half": [part_size, part_size, sizes["two_and_a_half"] - 2 * part_size],
    }
    async with open_fetcher(r2) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files


class Dribbling:
    """A source that gives 1 to 4,096 bytes at a time, whatever it is asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def blocks(self, block_size: int) -> Iterator[bytes]:
        rng, at = random.Random(14), 0
        while at < self.size:
            step = rng.randint(1, 4096)
            yield self._data[at : at + step]
            at += step


async def test_a_reader_that_gives_little_at_a_time(r2):
    """Parts made from such a reader are whole parts all the same."""
    data = os.urandom(11 * MIB)
    store = R2Store(settings_of(r2), tell=Teller(None))
    try:
        upload = await store.create_upload("k")
        cuts = [data[:5242880], data[5242880 : 2 * 5242880], data[2 * 5242880 :]]
        parts = [await store.put_part("k", upload, n, Dribbling(cut)) for n, cut in enumerate(cuts, 1)]
        await store.complete_upload("k", upload, parts)
    finally:
        await store.aclose()
    assert r2.get("k") == data


@pytest.mark.parametrize("part_size", [0, 1, 5 * MIB - 1, 5 << 30, "16 MiB"])
def test_silly_part_sizes_are_refused_at_once(part_size):
    """A part size that R2 would refuse is a configuration error before anything is sent."""
    with pytest.raises(ConfigError, match="part_size"):
        Settings.from_env(environ={}, part_size=part_size)
