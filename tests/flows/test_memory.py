"""Memory does not grow with a checkpoint: 512 MiB take no more of it than 64 MiB, in both directions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.checkpoints import MIB, write_sidecar
from tests.children import child_env, run_script

#: How far the two peaks may lie apart, in bytes.
SLACK = 16 * MIB

#: The double in a process of its own, with bodies on the disk; it says where it is and serves until its input ends.
SERVER = """
import json, sys
from r2d1.testing import Rules, S3Double

with S3Double(rules=Rules.lenient(), spool_dir=sys.argv[1], spool_above=1 << 20) as double:
    print(json.dumps(double.env()), flush=True)
    sys.stdin.read()
"""

#: One direction once; prints the process's peak of resident memory in bytes.
WORK = """
import re, sys
from pathlib import Path
from r2d1 import Courier, Fetcher

direction, where, job = sys.argv[1:]
if direction == "up":
    with Courier.from_env() as courier:
        courier.ship(where, job_id=job)
else:
    with Fetcher.from_env() as fetcher:
        assert fetcher.pull(f"r2://jobs/{job}/latest", dest=where).verified
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


@contextmanager
def server(spool: Path) -> Iterator[dict[str, str]]:
    spool.mkdir()
    command = [sys.executable, "-c", SERVER, str(spool)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=child_env(), text=True, **pipes) as double:
        yield json.loads(double.stdout.readline())
        double.stdin.close()
        assert double.wait(timeout=60) == 0


@pytest.fixture
def r2_env(tmp_path) -> Iterator[dict[str, str]]:
    """The environment that leads to a bucket which takes none of the memory of the process on trial."""
    with server(tmp_path / "spool") as env:
        yield env


@pytest.fixture
def embedded_env(tmp_path) -> dict[str, str]:
    """The environment of the embedded store, which runs in the process on trial."""
    return {"R2D1_STORE_URL": (tmp_path / "bucket").as_uri()}


def peaks(env: dict[str, str], root: Path, size: int) -> dict[str, int]:
    """The peak of a process that ships ``size`` bytes, and of one that pulls them."""
    job = f"job-{size}"
    folder = root / job / "chk_1"
    folder.mkdir(parents=True)
    with (folder / "model.bin").open("wb") as file:
        file.truncate(size)  # a hole takes no disk, and is read like anything else
    write_sidecar(folder, 1)
    run = child_env(env)
    up = run_script(WORK, "up", folder, job, env=run, timeout=600)
    down = run_script(WORK, "down", root / "down" / job, job, env=run, timeout=600)
    assert (root / "down" / job / "chk_1" / "model.bin").stat().st_size == size
    return {"up": int(up), "down": int(down)}


def assert_alike(small: dict[str, int], large: dict[str, int]) -> None:
    print(f"peaks in bytes: {small} and {large}")
    for direction in small:
        assert large[direction] - small[direction] < SLACK, f"{direction}: {small} and {large}"


def test_half_a_gibibyte(r2_env, tmp_path):
    """512 MiB against 64 MiB: less than 16 MiB between the peaks, up and down."""
    assert_alike(peaks(r2_env, tmp_path, 64 * MIB), peaks(r2_env, tmp_path, 512 * MIB))


def test_the_embedded_store(embedded_env, tmp_path):
    """The same where the bucket is a directory; less data, since all of it is written to a disk twice."""
    assert_alike(peaks(embedded_env, tmp_path, 64 * MIB), peaks(embedded_env, tmp_path, 192 * MIB))


@pytest.mark.soak
def test_three_gibibytes(r2_env, tmp_path):
    """3 GiB against 64 MiB: the same."""
    assert_alike(peaks(r2_env, tmp_path, 64 * MIB), peaks(r2_env, tmp_path, 3 << 30))


@pytest.mark.soak
def test_three_gibibytes_in_the_embedded_store(embedded_env, tmp_path):
    """3 GiB against 64 MiB in the embedded store: the same."""
    assert_alike(peaks(embedded_env, tmp_path, 64 * MIB), peaks(embedded_env, tmp_path, 3 << 30))
