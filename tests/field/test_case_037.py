"""Field case 37: an incomplete checkpoint is published, or chosen to resume from. Ours is refused by name, and 200 counts."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest

from r2d1 import Fetcher, Settings
from tests.checkpoints import files_of, write_checkpoint, write_files
from tests.cli.shell import last_line, run

ONCE = ("--job-id", "job", "--once", "--settle-timeout", "0.2")
SHARDS = {"model.safetensors", "optimizer-0.bin", "optimizer-1.bin"}


def safetensors(size: int) -> bytes:
    """One tensor of ``size`` bytes behind the header that says so."""
    header = json.dumps({"weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + os.urandom(size)


def checkpoint_files() -> dict[str, bytes]:
    return {
        "model.safetensors": safetensors(5000),
        "optimizer-0.bin": os.urandom(700),
        "optimizer-1.bin": os.urandom(900),
    }


def save(directory: Path, step: int) -> Path:
    """What a trainer writes whose sidecar lists its files with their sizes, as formats §3 allows."""
    files = checkpoint_files()
    listed = [{"path": path, "size": len(data)} for path, data in files.items()]
    return write_checkpoint(directory, f"chk_{step}", step, files, files=listed)


def cut(folder: Path, name: str, size: int) -> None:
    """The disk was full: the file ends early, and its time is no later than its sidecar's."""
    before = (folder / name).stat()
    os.truncate(folder / name, size)
    os.utime(folder / name, ns=(before.st_atime_ns, before.st_mtime_ns))


#: What became of step 300, and the words that name the file.
INCOMPLETE = {
    "a truncated model": (lambda folder: cut(folder, "model.safetensors", 3000), "'model.safetensors' has 3000 bytes"),
    "an empty shard": (lambda folder: cut(folder, "optimizer-1.bin", 0), "'optimizer-1.bin' has 0 bytes"),
    "a missing shard": (lambda folder: os.remove(folder / "optimizer-0.bin"), "'optimizer-0.bin', which is not there"),
    "an empty folder": (lambda folder: [os.remove(folder / name) for name in SHARDS], "which is not there"),
}


def resume(s3, dest: Path):
    """What a job does at its start."""
    with Fetcher(Settings.from_env(environ=s3.env())) as fetcher:
        return fetcher.pull("r2://jobs/job/latest", dest)


@pytest.mark.parametrize("damage", INCOMPLETE)
def test_step_300_is_incomplete(s3, tmp_path, damage):
    """It is refused with the file's name and exit code 1, nothing of it is sent, and ``latest`` is step 200."""
    break_it, words = INCOMPLETE[damage]
    good = save(tmp_path / "w", 200)
    break_it(save(tmp_path / "w", 300))
    result = run("watch", tmp_path / "w", *ONCE, env=s3.env())
    assert result.exit_code == 1
    assert "job/chk_300" in last_line(result)
    assert words in result.stderr
    assert [key for key in s3.keys() if "chk_300" in key] == []
    info = resume(s3, tmp_path / "down")
    assert (info.epoch, info.verified) == (200, True)
    assert files_of(info.local_dir) == files_of(good)


def test_resuming_beside_the_incomplete_one(s3, tmp_path):
    """On the machine that holds half a step 300, ``latest`` is step 200; what lies there is neither taken nor touched."""
    good = save(tmp_path / "w", 200)
    half = save(tmp_path / "w", 300)
    cut(half, "model.safetensors", 3000)
    left = files_of(half)
    run("watch", tmp_path / "w", *ONCE, env=s3.env())
    info = resume(s3, tmp_path / "w")
    assert (info.epoch, info.local_dir) == (200, good)
    assert files_of(half) == left


def test_a_folder_without_a_sidecar_is_no_checkpoint(s3, tmp_path):
    """A trainer killed before its sidecar leaves a folder that is not shipped; the run says which, and goes on."""
    save(tmp_path / "w", 200)
    write_files(tmp_path / "w" / "chk_300", checkpoint_files())
    result = run("watch", tmp_path / "w", *ONCE, env=s3.env())
    assert result.exit_code == 0
    assert "not shipped, as they have no sidecar" in result.stderr
    assert "chk_300" in result.stderr
    assert resume(s3, tmp_path / "down").epoch == 200


def test_it_is_shipped_once_it_is_whole(s3, tmp_path):
    """Step 300 written again in full is shipped by the next run, and is ``latest`` then."""
    save(tmp_path / "w", 200)
    cut(save(tmp_path / "w", 300), "optimizer-0.bin", 1)
    assert run("watch", tmp_path / "w", *ONCE, env=s3.env()).exit_code == 1
    whole = save(tmp_path / "w", 300)
    assert run("watch", tmp_path / "w", *ONCE, env=s3.env()).exit_code == 0
    info = resume(s3, tmp_path / "down")
    assert info.epoch == 300
    assert files_of(info.local_dir) == files_of(whole)
