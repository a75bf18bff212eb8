"""The real package r2d1 0.2.1 reads what we ship, and we read what it ships; in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from r2d1.events import AlreadyThere
from tests.checkpoints import files_of, write_checkpoint
from tests.children import child_env
from tests.remote_ends import Told, bodies_sent, open_courier, open_fetcher

pytestmark = pytest.mark.interop

OLD_VERSION = "0.2.1"
#: What the old line needs besides the settings it shares with us.
ACCOUNT = {"R2D1_ACCOUNT_ID": "0123456789abcdef0123456789abcdef"}

PULL = """
import importlib.metadata, json, sys
from r2d1 import Fetcher
from r2d1.d1 import D1Client

D1Client._BASE = sys.argv[3]
info = Fetcher.from_env().pull(sys.argv[1], dest=sys.argv[2])
print(json.dumps({"version": importlib.metadata.version("r2d1"), "found": info.found, "epoch": info.epoch,
                  "dir": str(info.local_dir)}))
"""

SHIP = """
import importlib.metadata, json, sys
from pathlib import Path
from r2d1 import Courier
from r2d1.d1 import D1Client

D1Client._BASE = sys.argv[3]
courier = Courier.from_env()
if courier._d1 is not None:
    courier._d1.ensure_checkpoints_table()
courier._scan(Path(sys.argv[1]), sys.argv[2])  # what its thread does once in poll_every seconds
courier.flush(timeout=60)
print(json.dumps({"version": importlib.metadata.version("r2d1")}))
"""


@pytest.fixture(scope="session")
def old_python() -> str:
    """The interpreter that has r2d1 0.2.1."""
    path = os.environ.get("R2D1_OLD_PYTHON")
    if not path:
        pytest.fail(
            "R2D1_OLD_PYTHON must name an interpreter with r2d1==0.2.1, boto3 and requests; `nox -s interop` does"
        )
    return path


@pytest.fixture
def old(old_python, s3, d1, tmp_path):
    """Runs a script of the old line against the doubles; with D1 or, as it calls that, in R2-only mode."""

    def run(script: str, *args: object, has_d1: bool) -> dict[str, object]:
        given: Mapping[str, str] = {**s3.env(), **ACCOUNT, **(d1.settings_env() if has_d1 else {})}
        env = {name: value for name, value in child_env(given).items() if name != "PYTHONPATH"}
        command = [old_python, "-c", script, *map(str, args), d1.url]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.stdout, done.stderr)
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["version"] == OLD_VERSION
        assert "error" not in done.stdout, done.stdout
        return said

    return run


FILES = {"checkpoint.pt": b"weights" * 1_500_000, "config.json": b"{}", ".hidden": b"h", "sub/folder.bin": b"below"}
#: What the old line's pulls bring besides the files, and leave in the folder.
LEFTOVERS = {"r2d1.manifest.json", "chk_0042.json", "slot_0.json"}


def assert_brought(folder: Path, files: dict[str, bytes]) -> None:
    found = files_of(folder)
    assert {path: found[path] for path in files} == files
    assert set(found) - set(files) <= LEFTOVERS


@pytest.mark.parametrize("has_d1", [True, False], ids=["by D1", "by its scan"])
async def test_it_pulls_what_we_shipped(old, s3, d1, tmp_path, has_d1):
    """Its fetcher finds ``latest`` and a named checkpoint of ours, and brings every file."""
    async with open_courier(s3, d1) as courier:
        await courier.ship(write_checkpoint(tmp_path / "up", "chk_0007", 7, {"checkpoint.pt": b"seven"}), "my_run")
        await courier.ship(write_checkpoint(tmp_path / "up", "chk_0042", 42, FILES), "my_run")
    said = old(PULL, "r2://jobs/my_run/latest", tmp_path / "down", has_d1=has_d1)
    assert (said["found"], said["epoch"]) == (True, 42)
    assert said["dir"] == str(tmp_path / "down" / "chk_0042")
    assert_brought(tmp_path / "down" / "chk_0042", FILES)
    old(PULL, "r2://jobs/my_run/chk_0042", tmp_path / "named", has_d1=has_d1)
    assert_brought(tmp_path / "named", FILES)


async def test_it_pulls_a_slot_shipped_twice(old, s3, d1, tmp_path):
    """A slot's second ship lies elsewhere in the bucket: the row leads its fetcher there."""
    newer = {"checkpoint.pt": b"newer" * 5000, "config.json": b"{'n': 2}"}
    async with open_courier(s3, d1) as courier:
        await courier.ship(write_checkpoint(tmp_path / "up", "slot_0", 1, FILES), "my_run")
        shutil.rmtree(tmp_path / "up" / "slot_0")
        shipped = await courier.ship(write_checkpoint(tmp_path / "up", "slot_0", 2, newer), "my_run")
    assert "/.r2d1/v/" in shipped.prefix
    said = old(PULL, "r2://jobs/my_run/latest", tmp_path / "down", has_d1=True)
    assert said["epoch"] == 2
    assert_brought(tmp_path / "down" / "slot_0", newer)


async def test_it_finds_nothing_where_nothing_is(old, s3, d1, tmp_path):
    """A fresh start of ours is one for it as well."""
    async with open_courier(s3, d1) as courier:
        await courier.ship(write_checkpoint(tmp_path / "up", "chk_0042", 42, FILES), "another_run")
    said = old(PULL, "r2://jobs/my_run/latest", tmp_path / "down", has_d1=True)
    assert said["found"] is False


#: The old courier ships the files of the folder itself, without its sub-folders.
FLAT = {path: data for path, data in FILES.items() if "/" not in path}


@pytest.mark.parametrize("has_d1", [True, False], ids=["by D1", "by listing"])
async def test_we_pull_what_it_shipped(old, s3, d1, tmp_path, has_d1):
    """What its courier shipped is found as ``latest`` and by name, and brought whole though nothing vouches for it."""
    write_checkpoint(tmp_path / "up", "chk_0007", 7, {"checkpoint.pt": b"seven"})
    write_checkpoint(tmp_path / "up", "chk_0042", 42, FLAT, files=sorted(FLAT))
    old(SHIP, tmp_path / "up", "my_run", has_d1=has_d1)
    assert len(d1.sql("SELECT name FROM sqlite_master WHERE name = 'checkpoints'")) == has_d1
    async with open_fetcher(s3, d1 if has_d1 else None) as fetcher:
        latest = await fetcher.pull("r2://jobs/my_run/latest", tmp_path / "down")
        named = await fetcher.pull("r2://jobs/my_run/chk_0007", tmp_path / "down")
    assert (latest.name, latest.epoch, latest.verified) == ("chk_0042", 42, False)
    assert files_of(latest.local_dir) == FLAT
    assert files_of(named.local_dir) == {"checkpoint.pt": b"seven"}
    assert (tmp_path / "down" / "chk_0042.json").read_bytes() == (tmp_path / "up" / "chk_0042.json").read_bytes()


@pytest.mark.parametrize(("ours", "theirs"), [(43, 42), (42, 43)])
async def test_both_lines_in_one_job(old, s3, d1, tmp_path, ours, theirs):
    """During a change-over the higher epoch is latest, whoever shipped it, for either fetcher with D1."""
    write_checkpoint(tmp_path / "theirs", "chk_theirs", theirs, FLAT)
    old(SHIP, tmp_path / "theirs", "my_run", has_d1=True)
    async with open_courier(s3, d1) as courier, open_fetcher(s3, d1) as fetcher:
        await courier.ship(write_checkpoint(tmp_path / "ours", "chk_ours", ours, FLAT), "my_run")
        info = await fetcher.pull("r2://jobs/my_run/latest", tmp_path / "down")
    said = old(PULL, "r2://jobs/my_run/latest", tmp_path / "old", has_d1=True)
    assert info.epoch == said["epoch"] == 43


async def test_a_folder_it_pulled_is_known(old, s3, d1, tmp_path):
    """What its pull leaves in a folder is not shipped back: with the sidecar beside it, nothing is sent."""
    async with open_courier(s3, d1) as courier:
        await courier.ship(write_checkpoint(tmp_path / "up", "chk_0042", 42, FILES), "my_run")
    old(PULL, "r2://jobs/my_run/latest", tmp_path / "down", has_d1=True)
    folder = tmp_path / "down" / "chk_0042"
    shutil.copyfile(folder / "chk_0042.json", tmp_path / "down" / "chk_0042.json")
    count, told = len(s3.requests), Told()
    async with open_courier(s3, d1, observer=told) as courier:
        await courier.watch(tmp_path / "down", "my_run")
        await courier.flush()
    assert bodies_sent(s3, count) == []
    assert [event.name for event in told.of(AlreadyThere)] == ["chk_0042"]
