"""Field case 57: index and bucket drift apart. What is missing is found and healed, and the bucket has the last word."""

from __future__ import annotations

import pytest

from tests.checkpoints import files_of, write_checkpoint
from tests.cli.shell import answer, run

FILES = {"a.bin": b"weights", "sub/b.bin": b"more"}
LATEST = "r2://jobs/job/latest"


@pytest.fixture
def env(s3, d1):
    return {**s3.env(), **d1.settings_env()}


@pytest.fixture
def folders(env, tmp_path):
    """Three checkpoints, shipped and with rows."""
    made = [write_checkpoint(tmp_path / "up", f"chk_{epoch}", epoch, FILES) for epoch in (1, 2, 3)]
    for folder in made:
        assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    return made


@pytest.mark.parametrize("lost", ["a.bin", "chk_3.json", "r2d1.manifest.json"])
def test_an_object_that_was_deleted(lost, env, s3, d1, folders, tmp_path):
    """``verify`` and ``pull`` name the object; shipping the same folder again heals it, row and all."""
    key = f"jobs/job/chk_3/{lost}"
    s3.delete(key)
    for command in (("verify", LATEST), ("pull", LATEST, "--dest", tmp_path / "broken")):
        result = run(*command, env=env)
        assert result.exit_code == 1
        assert key in result.stdout + result.stderr
    assert run("ship", folders[2], "--job-id", "job", env=env).exit_code == 0
    assert run("verify", LATEST, "--deep", env=env).exit_code == 0
    assert run("pull", LATEST, "--dest", tmp_path / "down", env=env).exit_code == 0
    assert files_of(tmp_path / "down" / "chk_3") == FILES
    (row,) = d1.sql("SELECT * FROM checkpoints WHERE epoch = 3")
    assert s3.keys(f"{row['r2_prefix']}/") != []


@pytest.mark.parametrize("wipe", ["DELETE FROM checkpoints", "DROP TABLE checkpoints"])
def test_an_index_that_was_wiped(wipe, env, d1, folders, tmp_path):
    """``latest`` is found in the bucket, and ``reindex`` gives the very rows that were there."""
    before = d1.sql("SELECT * FROM checkpoints ORDER BY epoch")
    d1.sql(wipe)
    result = run("pull", LATEST, "--dest", tmp_path / "down", "--json", env=env)
    assert answer(result)["epoch"] == 3
    assert run("reindex", "r2://jobs/job", env=env).exit_code == 0
    assert d1.sql("SELECT * FROM checkpoints ORDER BY epoch") == before


def test_a_row_of_nothing(env, s3, d1, folders, tmp_path):
    """A row whose checkpoint the bucket does not hold is no checkpoint: the next older one is taken."""
    for key in [key for key in s3.keys() if "chk_3" in key]:
        s3.delete(key)
    assert len(d1.sql("SELECT * FROM checkpoints WHERE epoch = 3")) == 1
    result = run("pull", LATEST, "--dest", tmp_path / "down", "--json", env=env)
    assert (result.exit_code, answer(result)["epoch"]) == (0, 2)


def test_rows_of_another_bucket(env, s3, d1, folders, tmp_path):
    """Rows of which the bucket knows none are an error that says so, never a fresh start."""
    for key in s3.keys():
        s3.delete(key)
    result = run("pull", LATEST, "--dest", tmp_path / "down", "--allow-missing", env=env)
    assert result.exit_code == 1
    assert "3 checkpoints" in result.stderr
