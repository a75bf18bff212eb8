"""``r2d1 ship``: one checkpoint, the sidecar it may need, and the codes it ends with."""

from __future__ import annotations

import json

import pytest

from r2d1.testing.d1 import refused
from tests.checkpoints import write_checkpoint, write_files, write_sidecar
from tests.cli.shell import answer, last_line, run, store_env


@pytest.fixture
def env(tmp_path):
    return store_env(tmp_path)


def test_a_checkpoint_is_shipped_once(env, tmp_path):
    """The first call sends it and prints its prefix, the second sends nothing; both are done."""
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, {"a.bin": b"abc"})
    first = run("ship", folder, "--job-id", "job", env=env)
    assert (first.exit_code, first.stdout) == (0, "jobs/job/chk_1\n")
    assert last_line(first) == "r2d1 ship: done: chk_1, epoch 1, is in the bucket (3 B sent)"
    second = run("ship", f"{folder}.json", "--job-id", "job", "--json", env=env)
    said = answer(second)
    assert (said["is_new"], said["sent_bytes"], said["prefix"]) == (False, 0, "jobs/job/chk_1")


def test_a_sidecar_is_written_for_a_folder_without(env, tmp_path):
    """``--epoch`` and ``--meta`` become its sidecar; values are JSON where they can be."""
    write_files(tmp_path / "model", {"a.bin": b"abc"})
    meta = ("loss=0.5", "note=best so far", "layers=[1, 2]", "equation=a=b", "empty=")
    options = [word for pair in meta for word in ("--meta", pair)]
    assert run("ship", tmp_path / "model", "--job-id", "job", "--epoch", "7", *options, env=env).exit_code == 0
    sidecar = json.loads((tmp_path / "model.json").read_bytes())
    assert (sidecar["epoch"], sidecar["files"]) == (7, ["a.bin"])
    assert sidecar["metadata"] == {
        "loss": 0.5,
        "note": "best so far",
        "layers": [1, 2],
        "equation": "a=b",
        "empty": "",
    }


def test_a_sidecar_is_not_written_over(env, tmp_path):
    """``--epoch`` for a checkpoint that has a sidecar is a usage error, and the sidecar stays."""
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, {"a.bin": b"abc"})
    before = (tmp_path / "made" / "chk_1.json").read_bytes()
    result = run("ship", folder, "--job-id", "job", "--epoch", "7", env=env)
    assert result.exit_code == 2
    assert "is there already" in last_line(result)
    assert (tmp_path / "made" / "chk_1.json").read_bytes() == before


def test_a_folder_without_sidecar_needs_an_epoch(env, tmp_path):
    """The message says what to give."""
    write_files(tmp_path / "model", {"a.bin": b"abc"})
    result = run("ship", tmp_path / "model", "--job-id", "job", env=env)
    assert result.exit_code == 2
    assert "has no sidecar: give --epoch" in last_line(result)


@pytest.mark.parametrize("options", [["--meta", "loss"], ["--meta", "=1"], ["--epoch", "-1"], ["--epoch", "x"]])
def test_malformed_options_are_2(options, env, tmp_path):
    """Nothing is written for an option that cannot be read."""
    write_files(tmp_path / "model", {"a.bin": b"abc"})
    assert run("ship", tmp_path / "model", "--job-id", "job", "--epoch", "1", *options, env=env).exit_code == 2
    assert not (tmp_path / "model.json").exists()


def test_a_bad_job_id_or_missing_settings_are_2_and_write_nothing(env, tmp_path):
    """A job id with a slash, and no settings at all, end before a sidecar is written."""
    write_files(tmp_path / "model", {"a.bin": b"abc"})
    for job_id, settings in (("a/b", env), ("job", {})):
        result = run("ship", tmp_path / "model", "--job-id", job_id, "--epoch", "1", env=settings)
        assert result.exit_code == 2
        assert not (tmp_path / "model.json").exists()
    assert "`r2d1 secrets`" in last_line(result)


def test_a_checkpoint_that_stays_incomplete_is_1(env, tmp_path):
    """After ``--settle-timeout`` the missing file is named."""
    folder = tmp_path / "made" / "chk_1"
    write_files(folder, {"a.bin": b"abc"})
    write_sidecar(folder, 1, files=["a.bin", "b.bin"])
    result = run("ship", folder, "--job-id", "job", "--settle-timeout", "0.2", env=env)
    assert result.exit_code == 1
    assert "'b.bin', which is not there" in last_line(result)


def test_a_row_that_is_owed_is_4_and_paid_by_the_next_run(s3, d1, tmp_path):
    """The checkpoint is in the bucket and the row is not: work is left, and the same command does it."""
    env = {**s3.env(), **d1.settings_env()}
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, {"a.bin": b"abc"})
    d1.always(refused(401, 10000, "Authentication error"))
    result = run("ship", folder, "--job-id", "job", "--json", env=env)
    said = answer(result)
    assert (result.exit_code, said["rows_owed"], said["is_new"]) == (4, ["job/chk_1"], True)
    assert s3.get("jobs/job/chk_1/a.bin") == b"abc"
    d1.always(None)
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    assert d1.sql("SELECT name, epoch FROM checkpoints") == [{"name": "chk_1", "epoch": 1}]
