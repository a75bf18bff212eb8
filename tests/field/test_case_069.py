"""Field case 69: a download goes through memory. Ours holds a few blocks, whatever the size and the number of objects."""

from __future__ import annotations

import json

import pytest

from r2d1.testing import Rules, S3Double
from tests.checkpoints import MIB, write_sidecar
from tests.children import child_env, run_script

RANGES = 16
SMALL = 500

SHIP = (
    "import sys; from r2d1 import Courier\nwith Courier.from_env() as courier: courier.ship(sys.argv[1], job_id='job')"
)

#: Pulls each URI it is given, one after another, and prints after each the process's peak of memory in bytes.
PULL = """
import json, re, sys
from pathlib import Path
from r2d1 import Fetcher, Settings

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

ranges, dest, *uris = sys.argv[1:]
peaks = []
with Fetcher(Settings.from_env(concurrency=int(ranges))) as fetcher:
    for number, uri in enumerate(uris):
        info = fetcher.pull(uri, dest=f"{dest}/{number}")
        assert info.found and not info.cached
        peaks.append(peak())
print(json.dumps(peaks))
"""


@pytest.fixture
def s3(tmp_path):
    """A bucket whose bodies lie on the disk."""
    spool = tmp_path / "spool"
    spool.mkdir()
    with S3Double(rules=Rules.lenient(), spool_dir=spool, spool_above=1 << 20) as double:
        yield double


def ship_hole(s3, tmp_path, size: int) -> None:
    """Ship a checkpoint of one file that is a hole: it takes no disk, and is read like anything else."""
    folder = tmp_path / "up" / "chk_1"
    folder.mkdir(parents=True)
    with (folder / "model.bin").open("wb") as file:
        file.truncate(size)
    write_sidecar(folder, 1)
    run_script(SHIP, folder, env=child_env(s3.env()), timeout=600)


def peaks(s3, dest, *uris: str) -> list[int]:
    return json.loads(run_script(PULL, RANGES, dest, *uris, env=child_env(s3.env()), timeout=3000))


def assert_flat_for_a_large_one(s3, tmp_path, size: int) -> None:
    """16 ranges of 16 MiB in flight would be 256 MiB if any were held whole."""
    for number in range(20):
        s3.put(f"warm/{number}.bin", bytes(MIB))
    ship_hole(s3, tmp_path, size)
    warm, large = peaks(s3, tmp_path / "down", "r2://warm", "r2://jobs/job/latest")
    assert (tmp_path / "down" / "1" / "chk_1" / "model.bin").stat().st_size == size
    assert large - warm < 64 * MIB


def assert_flat_for_many(s3, tmp_path, count: int) -> None:
    """So many small objects below one prefix, against a tenth of them: a kilobyte each at the most."""
    for number in range(count):
        s3.put(f"{'few' if number % 10 == 0 else 'many'}/{number % 100}/{number}.bin", b"%d" % number)
    few, many = peaks(s3, tmp_path / "down", "r2://few", "r2://many")
    assert sum(path.is_file() for path in (tmp_path / "down" / "1").glob("*/*.bin")) == count * 9 // 10
    assert many - few < 16 * MIB + count * 1024


def test_one_large_object_in_many_ranges(s3, tmp_path):
    """256 MiB in 16 parallel ranges."""
    assert_flat_for_a_large_one(s3, tmp_path, RANGES * 16 * MIB)


def test_many_small_objects(s3, tmp_path):
    """Hundreds of objects below a prefix."""
    assert_flat_for_many(s3, tmp_path, SMALL)


@pytest.mark.soak
def test_four_gibibytes(s3, tmp_path):
    """The same bound for 4 GiB."""
    assert_flat_for_a_large_one(s3, tmp_path, 4 << 30)


@pytest.mark.soak
def test_a_hundred_thousand_objects(s3, tmp_path):
    """The same bound for each of 100,000 objects."""
    assert_flat_for_many(s3, tmp_path, 100_000)
