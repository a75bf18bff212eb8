"""``r2d1 ship``: one checkpoint, the sidecar it may need, and the codes it ends with."""

from __future__ import annotations

import json
import os

import pytest

from r2d1.testing.d1 import refused
from tests.checkpoints import write_checkpoint, write_files, write_sidecar
from tests.cli.shell import answer, last_line, run, started, store_env


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
    assert (sidecar["epoch"], sidecar["files"]) == (7, [{"path": "a.bin", "size": 3}])
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


@pytest.fixture
def stale(tmp_path):
    """A checkpoint of which a file was written after its sidecar."""
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, {"a.bin": b"abc"})
    later = folder.with_name("chk_1.json").stat().st_mtime_ns + 10**9
    os.utime(folder / "a.bin", ns=(later, later))
    return folder


def test_what_is_waited_for_is_said_at_once(env, tmp_path):
    """Not only when the time is over: whoever watches the terminal can still mend it."""
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, {"a.bin": b"abc"}, files=["a.bin", "b.bin"])
    with started("ship", folder, "--job-id", "job", "--settle-timeout", "3600", env=env, home=tmp_path) as child:
        child.wait_for("waiting at most 3600 s, as it is not complete: the sidecar lists 'b.bin', which is not there")
        write_files(folder, {"b.bin": b"late"})
        write_sidecar(folder, 1)
        ended = child.end()
    assert (ended.exit_code, ended.stderr.count("waiting at most")) == (0, 1)


@pytest.mark.parametrize("path", ["/abs/a.bin", "../a.bin", "sub/../a.bin", "./a.bin", "a\\b"])
@pytest.mark.parametrize("command", ["ship", "watch"])
def test_a_path_that_can_never_come_is_refused_at_once(command, path, env, tmp_path):
    """No time makes it a file of the checkpoint: the hour that was allowed is not waited for."""
    folder = write_checkpoint(tmp_path / "made", "chk_1", 1, {"a.bin": b"abc"}, files=["a.bin", path])
    what = (folder,) if command == "ship" else (folder.parent, "--once")
    result = run(command, *what, "--job-id", "job", "--settle-timeout", "3600", env=env)
    assert result.exit_code == 1
    assert f"no file can ever be what the sidecar's 'files' lists: path {path!a} refused" in result.stderr


def test_unordered_ships_what_is_newer_than_its_sidecar(env, stale):
    """The way out that the refusal names; a dry run takes it, too."""
    ship = ("ship", stale, "--job-id", "job", "--settle-timeout", "0.1")
    assert "would wait" in run(*ship, "--dry-run", env=env).stdout
    assert run(*ship, env=env).exit_code == 1
    assert "would be shipped" in run(*ship, "--unordered", "--dry-run", env=env).stdout
    assert run(*ship, "--unordered", env=env).exit_code == 0


@pytest.mark.parametrize("listed", ["names", "sizes"])
def test_a_file_newer_than_its_sidecar_has_a_way_out(listed, env, stale):
    """The error says what to do; a file of another size that is newer is the next version's, too."""
    if listed == "sizes":
        later = (stale / "a.bin").stat().st_mtime_ns
        write_sidecar(stale, 1, files=[{"path": "a.bin", "size": 2}])
        os.utime(stale / "a.bin", ns=(later, later))
    result = run("ship", stale, "--job-id", "job", "--settle-timeout", "0.1", env=env)
    assert result.exit_code == 1
    assert "'a.bin' is newer than the sidecar" in last_line(result)
    assert "write the sidecar again, or use --unordered" in last_line(result)
    result = run("watch", stale.parent, "--job-id", "job", "--once", "--settle-timeout", "0.1", env=env)
    assert "write the sidecar again, or use --unordered" in result.stderr
    write_sidecar(stale, 2)
    os.utime(stale.with_name("chk_1.json"))
    os.utime(stale / "a.bin", ns=(1, 1))
    assert run("ship", stale, "--job-id", "job", env=env).exit_code == 0


@pytest.mark.parametrize("command", ["ship", "watch"])
def test_what_is_odd_about_a_sidecar_is_told(command, env, tmp_path):
    """``ship`` warns as ``watch`` does."""
    folder = write_checkpoint(tmp_path / "made", "chk_7", 1, {"a.bin": b"abc"}, epoch=1.5)
    what = (folder,) if command == "ship" else (folder.parent, "--once")
    result = run(command, *what, "--job-id", "job", env=env)
    assert result.exit_code == 0
    assert result.stderr.count("warning: ") == 1
    assert "epoch 1.5 is not an integer from 0 to 2^53-1; 7 is taken from the name" in result.stderr


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
