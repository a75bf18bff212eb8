"""``--dry-run``: everything is told, nothing is sent, nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.checkpoints import write_checkpoint, write_files, write_sidecar
from tests.cli.shell import answer, last_line, run, store_env

READING = {"GET", "HEAD"}


def tree(directory: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder below a directory, with size and time."""
    return {
        str(path.relative_to(directory)): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in directory.rglob("*")
    }


@pytest.fixture
def watched(tmp_path):
    """One of each: new, shipped already, shipped in another version, incomplete, stale, broken, twins, strangers."""
    directory = tmp_path / "w"
    write_checkpoint(directory, "chk_new", 1, {"a.bin": b"abc", "left.tmp": b"x", "sub/b.bin": b"12"})
    write_checkpoint(directory, "chk_there", 2, {"a.bin": b"there"})
    write_checkpoint(directory, "chk_other", 3, {"a.bin": b"other"})
    write_files(directory / "chk_part", {"a.bin": b"abc"})
    write_sidecar(directory / "chk_part", 4, files=["b.bin"])
    folder = write_checkpoint(directory, "chk_stale", 5, {"a.bin": b"abc"})
    later = directory.joinpath("chk_stale.json").stat().st_mtime_ns + 1_000_000_000
    os.utime(folder / "a.bin", ns=(later, later))
    folder = write_checkpoint(directory, "chk_link", 6, {"a.bin": b"abc"})
    (folder / "out").symlink_to("/etc/hostname")
    for stem in ("chk_twin_1", "chk_twin_2"):
        write_files(directory / stem, {"a.bin": b"abc"})
        write_sidecar(directory / stem, 7, name="chk_twin")
    write_files(directory / "notes", {"a.txt": b"abc"})
    (directory / "notes.json").write_text("{}")
    (directory / "chk_broken").mkdir()
    (directory / "chk_broken.json").write_text('{"epoch": ')
    return directory


@pytest.fixture
def env(s3, tmp_path):
    """A bucket that has one of them, and another version of a second."""
    for name, epoch, data in (("chk_there", 2, b"there"), ("chk_other", 3, b"OTHER")):
        folder = write_checkpoint(tmp_path / "made", name, epoch, {"a.bin": data})
        assert run("ship", folder, "--job-id", "job", env=s3.env()).exit_code == 0
    return s3.env()


def test_every_outlook(watched, env):
    """What would become of each is told, with the reason."""
    result = run("watch", watched, "--job-id", "job", "--once", "--dry-run", "--json", env=env)
    told = {Path(one["folder"]).name: (one["outlook"], one["why"]) for one in answer(result)["checkpoints"]}
    assert {name: outlook for name, (outlook, _) in told.items()} == {
        "chk_new": "ship",
        "chk_there": "there",
        "chk_other": "ship",
        "chk_part": "wait",
        "chk_stale": "wait",
        "chk_link": "fail",
        "chk_twin_1": "fail",
        "chk_twin_2": "fail",
        "chk_broken": "wait",
        "notes": "ignored",
    }
    assert told["chk_other"][1] == "in place of the version of epoch 3"
    assert "'b.bin', which is not there" in told["chk_part"][1]
    assert "the link leaves the checkpoint folder" in told["chk_link"][1]
    assert result.exit_code == 1


def test_lines_for_people(watched, env):
    """Files with sizes, and what is left out; the last line says what would fail."""
    result = run("watch", watched, "--job-id", "job", "--once", "--dry-run", env=env)
    lines = result.stdout.splitlines()
    at = lines.index("chk_new: epoch 1, 2 files, 5 B, would be shipped")
    assert lines[at + 1 : at + 4] == ["    a.bin  3 B", "    sub/b.bin  2 B", "    left out: left.tmp"]
    assert "would fail" in last_line(result)


def test_nothing_is_sent_and_nothing_written(watched, env, s3, tmp_path):
    """Only heads and manifests are read; no state folder, no journal, no file anywhere is made or touched."""
    before, count = tree(tmp_path), len(s3.requests)
    run("watch", watched, "--job-id", "job", "--once", "--dry-run", env=env)
    run("ship", watched / "chk_new", "--job-id", "job", "--dry-run", env=env)
    assert tree(tmp_path) == before
    assert {record.method for record in s3.requests[count:]} <= READING
    assert all("/heads/" in record.key or "manifest" in record.key for record in s3.requests[count:])


def test_a_sidecar_that_would_be_written(env, tmp_path):
    """A folder without sidecar is shown as it would be, and gets none."""
    write_files(tmp_path / "model", {"a.bin": b"abc"})
    before = tree(tmp_path)
    result = run("ship", tmp_path / "model", "--job-id", "job", "--epoch", "9", "--dry-run", env=env)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "model: epoch 9, 1 file, 3 B, would be shipped")
    assert tree(tmp_path) == before


def test_an_embedded_store_is_not_made_by_looking(tmp_path):
    """A bucket that does not exist yet has nothing, and still does not exist afterwards."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    before = tree(tmp_path)
    env = store_env(tmp_path)
    assert run("ship", folder, "--job-id", "job", "--dry-run", env=env).exit_code == 0
    assert run("watch", folder.parent, "--job-id", "job", "--once", "--dry-run", env=env).exit_code == 0
    assert tree(tmp_path) == before


def test_an_embedded_store_that_is_there_is_only_read(tmp_path):
    """Asking it what it has leaves every byte of it alone."""
    env = store_env(tmp_path)
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    before = tree(tmp_path)
    result = run("ship", folder, "--job-id", "job", "--dry-run", env=env)
    assert "is in the bucket already" in result.stdout
    assert tree(tmp_path) == before


def test_settings_are_needed(tmp_path):
    """A dry run without a bucket to ask is 2, like the run itself."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    assert run("ship", folder, "--job-id", "job", "--dry-run").exit_code == 2


def test_a_deleted_checkpoint_is_left_alone_as_watch_leaves_it(tmp_path):
    """rm'ed and unchanged on disk: a watch sends it no more, `ship` does, and each dry run says so."""
    env = store_env(tmp_path)
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"abc"})
    watch = ("watch", folder.parent, "--job-id", "job", "--once")
    assert run(*watch, env=env).exit_code == 0
    assert run("rm", "r2://jobs/job/chk_1", env=env).exit_code == 0
    result = run(*watch, "--dry-run", env=env)
    assert "was deleted from the bucket since it was shipped, and is left alone" in result.stdout
    assert "0 of 1 checkpoint would be shipped" in last_line(result)
    assert answer(run(*watch, "--dry-run", "--json", env=env))["checkpoints"][0]["outlook"] == "deleted"
    assert last_line(run(*watch, env=env)).endswith("nothing was left to do")
    assert "would be shipped" in run("ship", folder, "--job-id", "job", "--dry-run", env=env).stdout
    write_checkpoint(tmp_path / "w", "chk_1", 2, {"a.bin": b"changed"})
    assert "would be shipped" in run(*watch, "--dry-run", env=env).stdout
