"""Field case 63: more than 1,000 objects. Every listing goes on to its end, whatever the size of a page."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from r2d1 import AsyncCourier, AsyncFetcher, Settings
from r2d1.documents import Head
from r2d1.errors import MissingObjects
from r2d1.fetcher.prefix import list_prefix
from r2d1.keys import CheckpointKeys
from r2d1.remote import Remote
from r2d1.testing import MemoryStore, Rules, S3Double
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import bodies_sent, open_courier, open_fetcher

FILES = {f"{n % 7}/{n:04d}.bin": n.to_bytes(2, "big") for n in range(2500)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint of 2,500 files on disk."""
    return write_checkpoint(tmp_path_factory.mktemp("up"), "chk_1", 1, FILES)


@pytest.fixture(scope="module")
def shipped(folder):
    """A bucket that has it; filled without a socket, which would take most of the time."""

    async def ship() -> MemoryStore:
        store = MemoryStore()
        async with AsyncCourier(Settings(), given=Remote(store, None)) as courier:
            await courier.ship(folder, "job")
        return store

    return anyio.run(ship)


@pytest.fixture(params=[1000, 7])
def s3(request, shipped):
    """The same objects behind a socket, with so many to a page."""
    with S3Double(rules=replace(Rules.lenient(), page_size=request.param)) as double:
        for key in shipped.model.keys():
            stored = shipped.model.stored(key)
            double.model.place(key, stored.blob, etag=stored.etag)
        yield double


async def test_a_courier_looks_at_every_page(s3, folder):
    """A courier without a journal finds all 2,500 objects in the bucket, and sends nothing."""
    async with open_courier(s3) as courier:
        result = await courier.ship(folder, "job")
    assert not result.is_new
    assert bodies_sent(s3) == []


async def test_a_fetcher_looks_at_every_page(s3, tmp_path):
    """When objects are missing, all of them are named from all pages."""
    missing = ("jobs/job/chk_1/0/0000.bin", "jobs/job/chk_1/3/1501.bin", "jobs/job/chk_1/6/2498.bin")
    async with open_fetcher(s3) as fetcher:
        for key in missing:
            s3.delete(key)
        with pytest.raises(MissingObjects) as caught:
            await fetcher.pull("r2://jobs/job/latest", tmp_path)
    assert caught.value.keys == missing


async def test_all_of_them_are_pulled(shipped, tmp_path):
    """All 2,500 files come back, and below the prefix all are found."""
    async with AsyncFetcher(Settings(), given=Remote(shipped, None)) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path)
        wanted = await list_prefix(shipped, "jobs/job/chk_1", 1 << 24)
    assert {one.path for one in wanted} >= FILES.keys()
    assert files_of(info.local_dir) == FILES


async def test_the_newest_among_many(s3, folder):
    """Below 1,500 deleted names lies the one that counts: ``latest`` reads every page of hints to find it."""
    for epoch in range(2, 1502):
        name = f"chk_{epoch:04d}"
        head = Head(1, name, epoch, 1.0, f"jobs/job/{name}", f"blake3:{0:064x}", deleted=True)
        s3.put(f"jobs/job/.r2d1/heads/{name}.json", head.encode())
        s3.put(CheckpointKeys("job", name).hint(epoch), b"{}")
    heads = MemoryStore(s3.model)  # 1,500 heads are read, and it is the listing that is on trial
    page_size, pages = s3.model.rules.page_size, 0

    async def count(operation: str, key: str) -> None:
        nonlocal pages
        pages += operation == "ListObjectsV2" and key == "jobs/job/.r2d1/latest/"

    heads.before = count
    async with AsyncFetcher(Settings(), given=Remote(heads, None)) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", folder.parent)
    assert (info.epoch, info.cached) == (1, True)
    assert pages == -(-1501 // page_size)
