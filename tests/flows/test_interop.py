"""The real package r2d1 0.2.1, in an interpreter of its own: it reads what we ship, we read what it ships."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from r2d1 import Courier, Fetcher, write_sidecar
from r2d1.testing import D1Double, Rules, S3Double

pytestmark = pytest.mark.interop

#: Run by 0.2.1's own interpreter: its REST base is a class attribute, and its client that of boto3.
PROLOGUE = """
import json, sys
from r2d1 import Courier, Fetcher
from r2d1.d1 import D1Client
D1Client._BASE = {base!r}
secrets = {secrets!r}
"""


@pytest.fixture
def old_python() -> str:
    path = os.environ.get("R2D1_OLD_PYTHON")
    assert path, "R2D1_OLD_PYTHON must name an interpreter that has r2d1==0.2.1; `nox -s interop` makes one"
    return path


@pytest.fixture
def s3():
    """boto3's own checksum headers are among what R2 takes."""
    with S3Double(rules=replace(Rules.r2(), write_interval_s=0.0)) as double:
        yield double


def secrets_of(s3: S3Double, d1: D1Double | None) -> dict[str, str]:
    """Settings for both generations; 0.2.1 wants an account even where an endpoint is given."""
    return {"R2D1_ACCOUNT_ID": "0" * 32, **s3.env(), **(d1.settings_env() if d1 else {})}


def run_old(python: str, s3: S3Double, d1: D1Double | None, code: str) -> str:
    """Run a program of 0.2.1's users; returns the last line it printed."""
    base = d1.url if d1 else "http://127.0.0.1:9/none"
    program = PROLOGUE.format(base=base, secrets=secrets_of(s3, d1)) + code
    env = {name: value for name, value in os.environ.items() if not name.startswith(("R2D1_", "AWS_"))}
    done = subprocess.run([python, "-I", "-c", program], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def ship(s3: S3Double, d1: D1Double | None, directory: Path, versions: list[tuple[str, int, bytes]]) -> None:
    for name, epoch, data in versions:
        folder = directory / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.bin").write_bytes(data)
        write_sidecar(folder, epoch=epoch)
        with Courier.from_config(secrets_of(s3, d1)) as courier:
            courier.ship(folder, "run")


def pull_with_old(python: str, s3: S3Double, d1: D1Double | None, uri: str, dest: Path) -> dict[str, object]:
    code = f"""
info = Fetcher.from_config(secrets).pull({uri!r}, dest={str(dest)!r})
print(json.dumps([info.found, info.epoch, str(info.local_dir)]))
"""
    found, epoch, local = json.loads(run_old(python, s3, d1, code))
    return {"found": found, "epoch": epoch, "local": Path(local)}


def test_it_pulls_latest_and_a_name_that_we_shipped(old_python: str, s3: S3Double, tmp_path: Path) -> None:
    """By its bucket scan alone it finds the first ship of a name, by latest and by name."""
    ship(s3, None, tmp_path / "w", [("chk_0001", 1, b"one" * 100), ("chk_0002", 2, b"two" * 100)])
    latest = pull_with_old(old_python, s3, None, "r2://jobs/run/latest", tmp_path / "old")
    assert (latest["found"], latest["epoch"]) == (True, 2)
    assert (latest["local"] / "model.bin").read_bytes() == b"two" * 100
    pull_with_old(old_python, s3, None, "r2://jobs/run/chk_0001", tmp_path / "old" / "chk_0001")
    assert (tmp_path / "old" / "chk_0001" / "model.bin").read_bytes() == b"one" * 100


def test_it_finds_a_slot_shipped_twice_through_d1(
    old_python: str, s3: S3Double, d1: D1Double, tmp_path: Path
) -> None:
    """The second version of a slot lies elsewhere; the row says where, and 0.2.1 follows it."""
    ship(s3, d1, tmp_path / "w", [("slot_0", 1, b"one" * 100), ("slot_0", 2, b"two" * 100)])
    latest = pull_with_old(old_python, s3, d1, "r2://jobs/run/latest", tmp_path / "old")
    assert latest["epoch"] == 2
    assert (latest["local"] / "model.bin").read_bytes() == b"two" * 100


@pytest.mark.parametrize("with_d1", [True, False])
def test_we_pull_what_it_shipped(old_python: str, s3: S3Double, d1: D1Double, tmp_path: Path, with_d1: bool) -> None:
    """A checkpoint of 0.2.1 is found by D1 or by a listing, pulled whole, and said not to be verified."""
    folder = tmp_path / "w" / "chk_0007"
    folder.mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"seven" * 1000)
    sidecar = {"name": "chk_0007", "epoch": 7, "timestamp": 1.5, "files": ["model.bin"], "metadata": {"loss": 0.5}}
    (tmp_path / "w" / "chk_0007.json").write_text(json.dumps(sidecar))
    code = f"""
courier = Courier.from_config(secrets)
courier._scan(__import__("pathlib").Path({str(tmp_path / "w")!r}), "run")
courier.flush()
print("done")
"""
    if with_d1:
        from r2d1.catalog import DDL

        d1.sql(DDL)
    run_old(old_python, s3, d1 if with_d1 else None, code)
    with Fetcher.from_config(secrets_of(s3, d1 if with_d1 else None)) as fetcher:
        info = fetcher.pull("r2://jobs/run/latest", tmp_path / "new")
        again = fetcher.pull("r2://jobs/run/chk_0007", tmp_path / "new")
    assert (info.found, info.epoch, info.name, info.verified) == (True, 7, "chk_0007", False)
    assert (info.local_dir / "model.bin").read_bytes() == b"seven" * 1000
    assert (tmp_path / "new" / "chk_0007.json").read_text() == json.dumps(sidecar)
    assert again.cached
    assert info.metadata == {"loss": 0.5}


def test_our_checkpoint_of_the_same_name_counts_when_it_is_newer(
    old_python: str, s3: S3Double, d1: D1Double, tmp_path: Path
) -> None:
    """One name in both layouts: the higher epoch counts, and what 0.2.1 wrote is never deleted."""
    s3.put("jobs/run/checkpoints/chk_a/model.bin", b"old")
    s3.put("jobs/run/checkpoints/chk_a/chk_a.json", b'{"name": "chk_a", "epoch": 3, "files": ["model.bin"]}')
    ship(s3, d1, tmp_path / "w", [("chk_a", 5, b"new" * 10)])
    with Fetcher.from_config(secrets_of(s3, d1)) as fetcher:
        info = fetcher.pull("r2://jobs/run/latest", tmp_path / "out")
    assert (info.epoch, info.verified) == (5, True)
    assert s3.get("jobs/run/checkpoints/chk_a/model.bin") == b"old"
