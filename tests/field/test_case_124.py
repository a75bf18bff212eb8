"""Field case 124: a symbolic link planted in the destination. It is refused or replaced; what it leads to is untouched."""

from __future__ import annotations

import os

import pytest

from r2d1.errors import R2D1Error, UnsafeDestination
from tests.checkpoints import files_of, write_checkpoint, write_files
from tests.remote_ends import open_courier, open_fetcher

FILES = {"a.bin": b"new", "sub/b.bin": b"new too"}
MINE = {"a.bin": b"mine", "sub/b.bin": b"mine", "chk_1.json": b"mine"}


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "OUTSIDE"
    write_files(folder, MINE)
    yield folder
    assert files_of(folder) == MINE


@pytest.fixture
async def shipped(s3, tmp_path):
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, FILES)
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")


def plant(dest, outside, what):
    """Put a link where a pull will come by."""
    path = dest / what
    path.parent.mkdir(parents=True, exist_ok=True)
    target = outside if not what.endswith((".json", ".bin")) else outside / path.name
    path.symlink_to(target)


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize(
    "what", ["chk_1", "chk_1/sub", "chk_1/a.bin", "chk_1.json", ".r2d1/aside-chk_1", ".r2d1/sidecar-chk_1"]
)
async def test_links_that_are_replaced(s3, tmp_path, outside, what):
    """The checkpoint's own names, and what lies below them, are replaced by what was pulled."""
    plant(tmp_path / "dest", outside, what)
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "dest")
    assert info.local_dir == tmp_path / "dest" / "chk_1"
    assert not info.local_dir.is_symlink()
    assert files_of(info.local_dir) == FILES
    assert not any(path.is_symlink() for path in (tmp_path / "dest").rglob("*"))


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("what", [".r2d1", ".r2d1/pull", ".r2d1/journal.db", ".r2d1/pull-chk_1.lock"])
async def test_links_that_are_refused(s3, tmp_path, outside, what):
    """A link in the place of r2d1's own files is named, and nothing is placed."""
    plant(tmp_path / "dest", outside, what)
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(R2D1Error, match=r"\.r2d1"):
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "dest")
    assert not (tmp_path / "dest" / "chk_1").exists()


@pytest.mark.usefixtures("shipped")
@pytest.mark.parametrize("what", ["a.bin", "sub"])
async def test_links_in_the_staging_folder(s3, tmp_path, outside, what):
    """A name of the staging folder created beforehand as a link leads nowhere."""
    head = s3.get("jobs/job/.r2d1/heads/chk_1.json").decode()
    binding = head.partition("blake3:")[2][:16]
    plant(tmp_path / "dest", outside, f".r2d1/pull/chk_1@{binding}/{what}")
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(UnsafeDestination, match=what):
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "dest")
    assert not (tmp_path / "dest" / "chk_1").exists()


async def test_links_in_the_way_of_a_prefix(s3, tmp_path, outside):
    """File by file: a folder that is a link is refused by name, a file that is one is replaced."""
    dest = tmp_path / "dest"
    s3.put("datasets/mnist/a.bin", b"new")
    plant(dest, outside, "a.bin")
    async with open_fetcher(s3) as fetcher:
        await fetcher.pull("r2://datasets/mnist", dest)
        assert (dest / "a.bin").read_bytes() == b"new"
        assert not (dest / "a.bin").is_symlink()
        s3.put("datasets/mnist/sub/b.bin", b"new")
        plant(dest, outside / "sub", "sub")
        with pytest.raises(UnsafeDestination, match="'sub' on the way is a link"):
            await fetcher.pull("r2://datasets/mnist", dest)
    assert os.readlink(dest / "sub") == str(outside / "sub")
