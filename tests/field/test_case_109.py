"""Field case 109: an index published although a shard failed. The manifest comes last, or not at all."""

from __future__ import annotations

import signal

from r2d1.testing import Answer, Fault, When
from tests.children import Killer, child_env, started
from tests.cli.shell import run
from tests.datasets.making import sha
from tests.datasets.published import make_set

CLI = "import sys; from r2d1.cli import main; main()"


def bodies(s3):
    return [each.key for each in s3.requests if each.operation == "PutObject" and each.status == 200]


def test_a_shard_that_fails_for_good(s3, tmp_path):
    """Shard 7 of 20 is refused: exit 1, no manifest; the rerun sends only what is missing and then the manifest."""
    made = make_set(tmp_path / "set", shards=20)
    key = sha(made.shards[7])
    s3.faults.add(Fault(When(operation="PutObject", key=key), Answer(403, "AccessDenied"), times=None))
    assert run("datasets", "publish", made.directory, env=s3.env()).exit_code == 1
    assert "manifest.json" not in s3.keys()
    there = set(bodies(s3))
    s3.faults.clear()
    s3.log.clear()
    assert run("datasets", "publish", made.directory, env=s3.env()).exit_code == 0
    assert set(bodies(s3)) == {sha(data) for data in made.shards} - there | {"manifest.json"}
    assert bodies(s3)[-1] == "manifest.json"


def test_a_kill_before_the_last_shard(s3, tmp_path):
    """SIGKILL when the last shard is to be written: no manifest; the rerun sends that shard and the manifest."""
    made = make_set(tmp_path / "set", shards=20)
    killer = Killer()
    s3.faults.add(Fault(When(operation="PutObject", nth=20), killer.hook))
    command = ("datasets", "publish", made.directory)
    with started(CLI, *command, env=child_env(s3.env())) as child:
        killer.victims.append(child)
        assert child.wait(60) == -signal.SIGKILL
    s3.close()  # ends what the killed program has asked for and the bucket is still busy with
    s3.start()
    assert "manifest.json" not in s3.keys()
    there = set(s3.keys())
    s3.faults.clear()
    s3.log.clear()
    assert run(*command, env=s3.env()).exit_code == 0
    assert set(bodies(s3)) == {sha(data) for data in made.shards} - there | {"manifest.json"}
