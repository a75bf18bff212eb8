"""Field case 113: a rerun after a crash that sends and hashes everything again. Ours does neither."""

from __future__ import annotations

import signal

from r2d1.datasets import parse_manifest
from r2d1.testing import Fault, When
from tests.children import Killer, child_env, started
from tests.cli.shell import answer, run
from tests.datasets.making import sha
from tests.datasets.published import make_set

CLI = "import sys; from r2d1.cli import main; main()"
SHARDS = 300


def settle(s3):
    """End what the killed program has asked for and the bucket is still busy with."""
    s3.close()
    s3.start()


def test_a_killed_publication_goes_on_where_it_stopped(s3, tmp_path):
    """300 shards, SIGKILL at 150: about 150 bodies, one look at each key, and only what is sent is hashed."""
    made = make_set(tmp_path / "set", shards=SHARDS)
    killer = Killer()
    s3.faults.add(Fault(When(operation="PutObject", nth=150), killer.hook))
    with started(CLI, "datasets", "publish", made.directory, "-q", env=child_env(s3.env())) as child:
        killer.victims.append(child)
        assert child.wait(100) == -signal.SIGKILL
    settle(s3)
    there = set(s3.keys())
    assert 140 <= len(there) <= 160
    s3.faults.clear()
    before = s3.counts
    result = run("datasets", "publish", made.directory, "--json", env=s3.env())
    assert result.exit_code == 0, result.stderr
    after = s3.counts
    missing = SHARDS - len(there)
    assert after["PutObject"].requests - before["PutObject"].requests == missing + 1
    assert after["PutObject"].received - before["PutObject"].received == answer(result)["sent_bytes"]
    assert (
        after["HeadObject"].requests - before["HeadObject"].requests == SHARDS + 2
    )  # the manifest's: is it another set's?
    assert "ListObjectsV2" not in after
    assert answer(result)["sent"] == missing + 1
    assert {sha(data) for data in made.shards} <= set(s3.keys())
    assert parse_manifest(s3.get("manifest.json")).n_shards == SHARDS


def test_labels_are_not_hashed_again(s3, tmp_path):
    """100 files, SIGKILL at 50: the rerun hashes nothing that the journal knows and sends what is missing."""
    labels = tmp_path / "labels"
    labels.mkdir()
    for number in range(100):
        (labels / f"{number}.bin").write_bytes(b"%d" % number * 100)
    killer = Killer()
    s3.faults.add(Fault(When(operation="PutObject", nth=50), killer.hook))
    command = ("datasets", "publish-labels", labels, "--prefix", "labels/x")
    with started(CLI, *command, env=child_env(s3.env())) as child:
        killer.victims.append(child)
        assert child.wait(100) == -signal.SIGKILL
    settle(s3)
    there = len(s3.keys())
    assert "labels/x/labels-index.json" not in s3.keys()
    s3.faults.clear()
    result = run(*command, "--json", env=s3.env())
    assert result.exit_code == 0, result.stderr
    said = answer(result)
    assert (said["sent"], said["present"]) == (100 - there, there)
    total = sum(path.stat().st_size for path in labels.glob("*.bin"))
    assert 0 < said["hashed_bytes"] <= total * 0.7
