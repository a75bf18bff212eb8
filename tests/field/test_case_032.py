"""Field case 32: whole shards in memory. A process that may not have as much memory as the file ships and pulls it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from r2d1.testing import Rules, S3Double
from tests.checkpoints import MIB, write_sidecar
from tests.children import child_env, run_script

LIMIT = 300 * MIB
#: The C library sets address space aside for a heap of each thread, as many as there are cores; that is not on trial.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}

#: One direction in a process whose address space is bounded, with eight parts of 16 MiB in flight.
WORK = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))
from r2d1 import Courier, Fetcher, Settings

direction, where = sys.argv[1:]
settings = Settings.from_env(concurrency=8)
if direction == "up":
    with Courier(settings) as courier:
        print(courier.ship(where, job_id="job").sent_bytes)
else:
    with Fetcher(settings) as fetcher:
        print(fetcher.pull("r2://jobs/job/latest", dest=where).verified)
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the limit of the address space has no effect"
)


@pytest.fixture
def spooling(tmp_path) -> Iterator[S3Double]:
    """A bucket that keeps its bodies on the disk, so that the test's own process is small as well."""
    (tmp_path / "spool").mkdir()
    with S3Double(rules=Rules.r2(), spool_dir=tmp_path / "spool", spool_above=MIB) as double:
        yield double


def make_hole(folder: Path, size: int) -> None:
    """A checkpoint of one file that takes no disk and is read like anything else."""
    folder.mkdir(parents=True)
    with (folder / "model.bin").open("wb") as file:
        file.truncate(size)
    write_sidecar(folder, 1)


def ship_and_pull(s3: S3Double, tmp_path: Path, size: int) -> None:
    make_hole(tmp_path / "up" / "chk_1", size)
    env = child_env(s3.env(), ONE_HEAP)
    assert int(run_script(WORK, "up", tmp_path / "up" / "chk_1", env=env, timeout=500)) == size
    assert run_script(WORK, "down", tmp_path / "down", env=env, timeout=500).strip() == "True"
    assert (tmp_path / "down" / "chk_1" / "model.bin").stat().st_size == size


def test_a_file_larger_than_the_memory(spooling, tmp_path):
    """320 MiB go up and come down in a process that may have 300 MiB in all, its code included."""
    ship_and_pull(spooling, tmp_path, 320 * MIB)


@pytest.mark.soak
def test_four_gibibytes_through_a_slow_store(spooling, tmp_path):
    """4 GiB to a store that takes 100 MiB a second in all: what waits for it does not pile up."""
    spooling.throttle = 100.0 * MIB
    ship_and_pull(spooling, tmp_path, 4 << 30)
