"""Field case 89: Ctrl-C does nothing. Whatever a command is busy with, it stops at once and leaves what is resumed."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from r2d1.testing import Answer, Fault, Gate, Hook, When
from r2d1.testing.d1 import held
from tests.checkpoints import MIB, files_of, random_files, write_checkpoint
from tests.cli.shell import Child, run, started

HEAD = "jobs/job/.r2d1/heads/chk_1.json"

#: Far less than any of the work that is interrupted here would take.
AT_ONCE_S = 20.0

#: The command line, which says when it hashes.
HASHING = """
import sys
from r2d1.cli import main
from r2d1.transfer import hashing

feed = hashing._feed

def telling(*args):
    print("hashing", file=sys.stderr, flush=True)
    feed(*args)

hashing._feed = telling
main()
"""


def interrupt(child: Child) -> None:
    """Ctrl-C, and the end that it must bring."""
    child.send(signal.SIGINT)
    before = time.monotonic()
    assert child.end().exit_code == 130
    assert time.monotonic() - before < AT_ONCE_S


def test_while_hashing(s3, tmp_path):
    """A file of 32 GiB that is compared with its SHA-256: nothing was sent, nothing stays behind."""
    described = [{"path": "big.bin", "size": 32 << 30, "sha256": "0" * 64}]
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"big.bin": b""}, files=described)
    with (folder / "big.bin").open("wb") as file:
        file.truncate(32 << 30)  # a hole
    command = (sys.executable, "-W", "error::ResourceWarning", "-c", HASHING)
    with started("ship", folder, "--job-id", "job", env=s3.env(), home=tmp_path, command=command) as child:
        child.wait_for("hashing")
        interrupt(child)
    assert s3.keys() == []


def test_in_the_middle_of_a_part(s3, tmp_path):
    """The upload stays open and is known: the next run goes on with it, and none is left."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(big=33 * MIB))
    gate = Gate()
    s3.throttle = 2e6
    s3.faults.add(Fault(When(operation="UploadPart"), Hook(before=lambda call: gate.arrived.set())))
    ship = ("ship", folder, "--job-id", "job")
    with started(*ship, env=s3.env(), home=tmp_path) as child:
        gate.arrived.wait_blocking()
        interrupt(child)
    assert (s3.open_uploads, s3.keys(HEAD)) == (1, [])
    s3.throttle = None
    assert run(*ship, env=s3.env()).exit_code == 0
    assert (s3.open_uploads, s3.keys(HEAD)) == (0, [HEAD])
    assert s3.counts["CreateMultipartUpload"].requests == 1
    assert s3.get("jobs/job/chk_1/big.bin") == files_of(folder)["big.bin"]


@pytest.mark.parametrize("command", ["ship", "watch"])
def test_in_a_back_off(command, s3, tmp_path):
    """A ship ends with the first Ctrl-C; a watch drains after the first, says so, and ends with the second."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(a=5000))
    s3.faults.add(Fault(When(method="PUT", key="*/a.bin"), Answer(503, "SlowDown", retry_after=100), times=None))
    what = ("ship", folder) if command == "ship" else ("watch", folder.parent, "--grace", "3600")
    with started(*what, "--job-id", "job", env=s3.env(), home=tmp_path) as child:
        child.wait_for("trying again in 100.0 s")
        if command == "watch":
            child.send(signal.SIGINT)
            child.wait_for("Ctrl-C or SIGTERM once more stops at once")
        interrupt(child)
    s3.faults.clear()
    assert run("ship", folder, "--job-id", "job", env=s3.env()).exit_code == 0
    assert s3.keys(HEAD) == [HEAD]


def test_in_a_call_to_d1(s3, d1, tmp_path):
    """A pull that waits for D1's word on what is newest ends at once, and has made nothing."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, random_files(a=5000))
    env = {**s3.env(), **d1.settings_env()}
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    gate = Gate()
    d1.always(held(gate))
    with started("pull", "r2://jobs/job/latest", "--dest", "down", env=env, home=tmp_path) as child:
        gate.arrived.wait_blocking()
        interrupt(child)
    assert list((tmp_path / "down").iterdir()) == []
