"""Field case 64: an interrupted pull leaves files that look finished. Ours shows nothing until all is verified."""

from __future__ import annotations

import os
import signal

from r2d1.testing import Fault, When
from tests.checkpoints import files_of, write_checkpoint
from tests.children import Killer, child_env, started
from tests.remote_ends import open_courier, open_fetcher, stray_files

PART = 64 << 10
PULL = """
import sys
from r2d1 import Fetcher
Fetcher.from_env().pull(sys.argv[1], dest=sys.argv[2])
"""


async def ship(s3, directory, epoch: int) -> dict[str, bytes]:
    """Three files of five slices each."""
    files = {f"{name}.bin": os.urandom(5 * PART) for name in "abc"}
    folder = write_checkpoint(directory, "slot_0", epoch, files)
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")
    return files


def pull_and_die(s3, uri: str, dest, *, at_range: int) -> None:
    """Pull in a child that is killed with SIGKILL at the given range request."""
    killer = Killer()
    s3.faults.add(Fault(When(operation="GetObject", key="*.bin", nth=at_range), killer.hook))
    with started(PULL, uri, dest, env=child_env(s3.env())) as child:
        killer.victims.append(child)
        assert child.wait(timeout=60) == -signal.SIGKILL


def consumer_sees(dest) -> dict[str, bytes] | None:
    """What a consumer finds that takes every folder beside a sidecar for a checkpoint."""
    names = [path.stem for path in dest.glob("*.json") if (dest / path.stem).is_dir()]
    assert names in ([], ["slot_0"])
    assert [path.name for path in dest.iterdir() if not path.name.startswith(".") and path.is_dir()] == names
    return files_of(dest / "slot_0") if names else None


async def test_a_first_pull_killed_in_the_middle(s3, tmp_path):
    """Killed at 60 %: there is no folder to be taken for a checkpoint; the second pull ends it and tidies up."""
    files = await ship(s3, tmp_path / "up", 1)
    dest = tmp_path / "down"
    pull_and_die(s3, "r2://jobs/job/latest", dest, at_range=9)
    assert consumer_sees(dest) is None
    async with open_fetcher(s3) as fetcher:
        await fetcher.pull("r2://jobs/job/latest", dest)
    assert consumer_sees(dest) == files
    assert stray_files(dest) == []


async def test_a_pull_over_an_older_version_killed_in_the_middle(s3, tmp_path):
    """The old version stays in place, whole, until the new one is verified."""
    old = await ship(s3, tmp_path / "up", 1)
    dest = tmp_path / "down"
    async with open_fetcher(s3) as fetcher:
        await fetcher.pull("r2://jobs/job/latest", dest)
    new = await ship(s3, tmp_path / "up", 2)
    pull_and_die(s3, "r2://jobs/job/slot_0", dest, at_range=9)
    assert consumer_sees(dest) == old
    async with open_fetcher(s3) as fetcher:
        await fetcher.pull("r2://jobs/job/slot_0", dest)
    assert consumer_sees(dest) == new
    assert stray_files(dest) == []
