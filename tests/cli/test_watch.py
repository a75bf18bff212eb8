"""``r2d1 watch``: one scan, what it leaves undone, and a directory that comes and goes."""

from __future__ import annotations

import shutil
import signal

import pytest

from r2d1 import AsyncCourier, Settings
from r2d1.testing.d1 import refused
from tests.checkpoints import write_checkpoint, write_files, write_sidecar
from tests.cli.shell import answer, last_line, run, started, store_env


@pytest.fixture
def env(tmp_path):
    return store_env(tmp_path)


def test_once_ships_what_is_there(env, tmp_path):
    """All checkpoints of the directory are shipped, their prefixes printed; a second run has nothing to do."""
    for epoch in (1, 2):
        write_checkpoint(tmp_path / "w", f"chk_{epoch}", epoch, {"a.bin": b"abc"})
    first = run("watch", tmp_path / "w", "--job-id", "job", "--once", env=env)
    assert (first.exit_code, sorted(first.stdout.splitlines())) == (0, ["jobs/job/chk_1", "jobs/job/chk_2"])
    assert last_line(first) == "r2d1 watch: done: 2 checkpoints shipped, 6 B sent"
    second = answer(run("watch", tmp_path / "w", "--job-id", "job", "--once", "--json", env=env))
    assert (second["shipped"], second["left"]) == ([], [])


def test_once_of_an_empty_directory_is_done(env, tmp_path):
    """Nothing to do is 0."""
    (tmp_path / "w").mkdir()
    result = run("watch", tmp_path / "w", "--job-id", "job", "--once", env=env)
    assert (result.exit_code, last_line(result)) == (0, "r2d1 watch: done: nothing was left to do")


def test_once_of_a_missing_directory_is_2(env, tmp_path):
    """What would be waited for for ever is a usage error where one scan was asked for."""
    result = run("watch", tmp_path / "w", "--job-id", "job", "--once", env=env)
    assert result.exit_code == 2
    assert "no such directory" in last_line(result)


@pytest.mark.parametrize(
    "options",
    [["--dry-run"], ["--once", "--poll-every", "0"], ["--once", "--grace", "-1"], ["--once", "--poll-every", "soon"]],
)
def test_options_that_mean_nothing_are_2(options, env, tmp_path):
    """A dry run without ``--once``, and times that are none."""
    (tmp_path / "w").mkdir()
    assert run("watch", tmp_path / "w", "--job-id", "job", *options, env=env).exit_code == 2


def test_a_file_is_no_directory(env, tmp_path):
    """Watching a file is a usage error, not a wait."""
    (tmp_path / "w").write_text("")
    assert run("watch", tmp_path / "w", "--job-id", "job", env=env).exit_code == 2


def test_one_incomplete_checkpoint_fails_alone(env, tmp_path):
    """The others are shipped; the exit code is 1 and the last line names the one."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    write_files(tmp_path / "w" / "chk_2", {"a.bin": b"abc"})
    write_sidecar(tmp_path / "w" / "chk_2", 2, files=["b.bin"])
    result = run("watch", tmp_path / "w", "--job-id", "job", "--once", "--settle-timeout", "0.2", env=env)
    assert result.exit_code == 1
    assert "job/chk_2" in last_line(result)
    assert "'b.bin', which is not there" in result.stderr
    assert (tmp_path / "bucket" / "jobs" / "job" / "chk_1" / "a.bin").exists()


def test_unordered_ships_what_is_newer_than_its_sidecar(env, tmp_path):
    """Without the option the next sidecar is waited for; with it the files are taken as they are."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    (folder / "late.bin").write_bytes(b"late")
    once = ("watch", tmp_path / "w", "--job-id", "job", "--once", "--settle-timeout", "0.2")
    assert run(*once, env=env).exit_code == 1
    assert run(*once, "--unordered", env=env).exit_code == 0


def test_rows_that_are_owed_are_4(s3, d1, tmp_path):
    """Everything is in the bucket, D1 is not told: work is left, and the next run does it."""
    env = {**s3.env(), **d1.settings_env()}
    write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    once = ("watch", tmp_path / "w", "--job-id", "job", "--once")
    d1.always(refused(401, 10000, "Authentication error"))
    result = run(*once, "--json", env=env)
    assert (result.exit_code, answer(result)["rows_owed"]) == (4, ["job/chk_1"])
    d1.always(None)
    assert run(*once, env=env).exit_code == 0
    assert d1.sql("SELECT name FROM checkpoints") == [{"name": "chk_1"}]


def test_a_directory_that_vanishes_is_waited_for(env, tmp_path):
    """The watch says that it is gone, waits, and ships what the new one holds."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    with started("watch", "w", "--job-id", "job", "--poll-every", "0.2", env=env, home=tmp_path) as child:
        child.wait_for("chk_1: epoch 1 is in the bucket")
        shutil.rmtree(tmp_path / "w")
        child.wait_for("is not there; waiting for it")
        write_checkpoint(tmp_path / "w", "chk_2", 2, {"a.bin": b"abc"})
        child.wait_for("chk_2: epoch 2 is in the bucket")
        child.send(signal.SIGTERM)
        assert child.end().exit_code == 0


async def test_a_flush_does_not_overlook_a_directory_that_has_just_appeared(env, tmp_path):
    """A directory that was waited for, made and filled right before the flush, is in the flush."""
    settings = Settings.from_env(environ=env)
    async with AsyncCourier(settings) as courier:
        await courier.watch(tmp_path / "w", "job")
        write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
        report = await courier.flush(timeout=60)
    assert [shipped.name for shipped in report.shipped] == ["chk_1"]


def test_polling_on_demand(env, tmp_path):
    """``--force-polling`` uses no file system events and says so."""
    (tmp_path / "w").mkdir()
    options = ("--force-polling", "--poll-every", "0.2")
    with started("watch", "w", "--job-id", "job", *options, env=env, home=tmp_path) as child:
        child.wait_for("(polling, full scan every 0.2 s)")
        write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
        child.wait_for("chk_1: epoch 1 is in the bucket")
        child.send(signal.SIGTERM)
        assert child.end().exit_code == 0


def test_a_second_courier_of_a_directory_is_1(env, tmp_path):
    """The lock is named, with a hint."""
    (tmp_path / "w").mkdir()
    with started("watch", "w", "--job-id", "job", env=env, home=tmp_path) as child:
        child.wait_for("watching")
        result = run("watch", tmp_path / "w", "--job-id", "job", "--once", env=env)
        assert result.exit_code == 1
        assert last_line(result).endswith("Stop the other courier, or leave this directory to it")
        child.send(signal.SIGTERM)
        child.end()
