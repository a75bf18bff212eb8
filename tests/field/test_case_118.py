"""Field case 118: staging copies fill the home disk. Ours makes none: what is sent is read where it lies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import MIB, files_of, random_files, write_checkpoint
from tests.children import Killer, child_env, run_script, started
from tests.remote_ends import stray_files

SIZE = 24 * MIB

#: Ships a directory in a process that can write no file of more than a third of the large checkpoint.
SHIP = """
import resource, sys
from r2d1 import Courier

resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
directory, snapshot = sys.argv[1:]
with Courier.from_env() as courier:
    courier.watch(directory, job_id="job", snapshot=snapshot or None)
    courier.flush(timeout=120)
"""


@pytest.fixture
def env(s3, tmp_path):
    """An environment whose home is no directory, so that nothing can be written there, and whose TMPDIR is empty."""
    (tmp_path / "home").write_text("")
    (tmp_path / "tmp").mkdir()
    return child_env(s3.env(), {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")})


def usage(directory: Path) -> int:
    """The bytes that a directory takes, each file once however many names it has."""
    found = {(info.st_dev, info.st_ino): info.st_size for info in map(os.lstat, directory.rglob("*"))}
    return sum(found.values())


@pytest.mark.parametrize("snapshot", ["", "hardlink"])
def test_twenty_publishes(snapshot, s3, env, tmp_path):
    """A large one and 19 small ones: no copy while the large one is under way, and nothing left when all are gone."""
    watched = tmp_path / "w"
    folder = write_checkpoint(watched, "chk_01", 1, random_files(big=SIZE))
    for epoch in range(2, 21):
        write_checkpoint(watched, f"chk_{epoch:02d}", epoch, random_files(a=1000))
    gate = Gate()
    s3.faults.add(Fault(When(operation="UploadPart"), Hold(gate)))
    with started(SHIP, watched, snapshot, env=env) as child:
        gate.arrived.wait_blocking()
        under_way = usage(watched)
        gate.release()
        assert child.wait(120) == 0, child.stderr.read()
    assert under_way < 1.2 * SIZE
    assert len(s3.keys("jobs/job/.r2d1/heads/")) == 20
    assert s3.get("jobs/job/chk_01/big.bin") == files_of(folder)["big.bin"]
    assert stray_files(watched) == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("snapshot", ["", "hardlink"])
def test_after_a_crash(snapshot, s3, env, tmp_path):
    """Killed in the middle of the large file: what lies there takes no room, and is gone after the next run."""
    watched = tmp_path / "w"
    write_checkpoint(watched, "chk_01", 1, random_files(big=SIZE))
    killer = Killer()
    s3.faults.add(Fault(When(operation="UploadPart", nth=2), killer.hook))
    with started(SHIP, watched, snapshot, env=env) as child:
        killer.victims.append(child)
        assert child.wait(120) == -signal.SIGKILL
    assert usage(watched) < 1.2 * SIZE
    run_script(SHIP, watched, snapshot, env=env)
    assert len(s3.keys("jobs/job/.r2d1/heads/")) == 1
    assert stray_files(watched) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert s3.open_uploads == 0
