"""Field case 87: exit 0 on failure. Each command ends with its documented code, and its last line says which it was."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from r2d1.testing import Answer, Fault, When
from r2d1.testing.d1 import refused
from tests.checkpoints import write_checkpoint
from tests.cli.shell import R2D1, answer, finished, last_line, run

FILES = {f"{name}.bin": name.encode() for name in "abcde"}
PULL = ("pull", "r2://jobs/job/latest", "--dest", "pulled")
SHIP = ("ship", "w/chk_1", "--job-id", "job")
WATCH = ("watch", "w", "--job-id", "job", "--once")
LS = ("ls", "r2://jobs/job")
STATUS = ("status", "--job-id", "job", "w")
ALL = (PULL, SHIP, WATCH, LS, STATUS, ("init",), ("secrets",))

#: Python without the powers by which root reads what nobody may read; harmless for everybody else.
_DROP = "import ctypes, os, sys\ndrop = getattr(ctypes.CDLL(None), 'prctl', print)\nfor power in (1, 2): drop(24, power)\nos.execv(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A directory with one checkpoint of five files, which is the current one."""
    write_checkpoint(tmp_path / "w", "chk_1", 1, FILES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def env(s3, d1):
    return {**s3.env(), **d1.settings_env()}


def assert_ends(arguments: tuple[str, ...], code: int, env: dict[str, str]) -> None:
    """The command ends with this code, and says so on its last line and in JSON."""
    result = run(*arguments, env=env)
    assert result.exit_code == code, result.stderr
    word = {0: "done", 4: "stopped"}.get(code, "failed")
    assert last_line(result).startswith(f"r2d1 {arguments[0]}: {word}: ")
    said = answer(run(*arguments, "--json", env=env))
    assert said["status"] == ("done" if code == 0 else "failed")
    assert (code == 0) or said["error"]


def refuse(s3, method: str) -> None:
    """One of the five files is forbidden."""
    s3.faults.add(Fault(When(method=method, key="*/c.bin"), Answer(403, "AccessDenied"), times=None))


@pytest.mark.parametrize("command", [SHIP, WATCH], ids=" ".join)
def test_one_of_five_files_refused_on_the_way_up(command, home, env, s3):
    """A checkpoint that cannot be shipped whole is a failure, and is not there."""
    refuse(s3, "PUT")
    assert_ends(command, 1, env)
    assert s3.keys("jobs/job/.r2d1/heads/") == []


def test_one_of_five_files_refused_on_the_way_down(home, env, s3):
    """A pull that cannot bring all is a failure, and leaves no folder."""
    assert run(*SHIP, env=env).exit_code == 0
    refuse(s3, "GET")
    assert_ends(PULL, 1, env)
    assert not (home / "pulled" / "chk_1").exists()


@pytest.mark.parametrize("command", [SHIP, WATCH], ids=" ".join)
def test_a_missing_source_is_2(command, tmp_path, monkeypatch, env):
    """A path that is not there was written wrongly."""
    monkeypatch.chdir(tmp_path)
    assert_ends(command, 2, env)


def test_an_empty_directory_is_done(home, env):
    """Nothing to ship is 0."""
    (home / "empty").mkdir()
    assert_ends(("watch", "empty", "--job-id", "job", "--once"), 0, env)


def test_an_empty_checkpoint_is_1(home, env):
    """A folder without a file, of which no sidecar says that it should be empty, is not taken for a checkpoint."""
    write_checkpoint(home / "w", "chk_2", 2, {})
    assert_ends(("ship", "w/chk_2", "--job-id", "job", "--settle-timeout", "0.1"), 1, env)
    assert_ends((*WATCH, "--settle-timeout", "0.1"), 1, env)


@pytest.mark.parametrize("command", ALL, ids=" ".join)
@pytest.mark.parametrize("bad", [{"R2D1_STORE_URL": "ftp://x"}, {"R2D1_R2_ENDPOINT_URL": "not a url"}], ids=str)
def test_bad_configuration_is_2(command, bad, home, env):
    """A value that cannot be is named, whatever the command."""
    assert_ends(command, 2, {**env, **bad})


@pytest.mark.parametrize("command", [PULL, SHIP, WATCH, LS, STATUS, ("init",)], ids=" ".join)
def test_missing_configuration_is_2(command, home):
    """Nothing set at all."""
    assert_ends(command, 2, {})


@pytest.mark.parametrize("command", [SHIP, WATCH, LS, STATUS, ("init",), ("secrets",)], ids=" ".join)
def test_nothing_to_do_is_0(command, home, env):
    """Everything was done before."""
    assert run(*SHIP, env=env).exit_code == 0
    assert_ends(command, 0, env)


def test_nothing_to_pull_is_3_and_pulled_already_is_0(home, env):
    """Absence is told apart from success and from failure."""
    assert_ends(PULL, 3, env)
    assert_ends((*PULL, "--allow-missing"), 0, env)
    assert run(*SHIP, env=env).exit_code == 0
    for _ in range(2):
        assert_ends(PULL, 0, env)


@pytest.mark.parametrize(("command", "code"), [(SHIP, 4), (WATCH, 4), (STATUS, 0), (("init",), 1), (LS, 0)])
def test_d1_down(command, code, home, env, d1):
    """What only D1 can do fails; a checkpoint is shipped, or told of by the bucket, and its row is work left."""
    d1.always(refused(401, 10000, "Authentication error"))
    assert_ends(command, code, env)


def test_d1_down_is_a_warning_for_a_pull(home, env, d1):
    """The bucket decides what is newest."""
    assert run(*SHIP, env=env).exit_code == 0
    d1.always(refused(401, 10000, "Authentication error"))
    result = run(*PULL, env=env)
    assert result.exit_code == 0
    assert "warning: D1 could not be asked" in result.stderr


@pytest.mark.parametrize("command", [SHIP, WATCH, (*SHIP, "--dry-run"), (*WATCH, "--dry-run")], ids=" ".join)
def test_an_unreadable_file_is_1(command, home, env, s3):
    """The file is named, nothing of the checkpoint is committed."""
    (home / "w" / "chk_1" / "c.bin").chmod(0)
    without_powers = [sys.executable, "-c", _DROP, *R2D1]
    ended = finished(*command, env=env, home=home, command=without_powers)
    assert ended.exit_code == 1, ended.stderr
    assert "c.bin" in ended.stderr
    assert last_line(ended).startswith(f"r2d1 {command[0]}: failed: ")
    assert s3.keys("jobs/job/.r2d1/heads/") == []


def test_the_dropped_powers_are_dropped(tmp_path):
    """The test above would see nothing if the child could read the file after all."""
    if not hasattr(ctypes.CDLL(None), "prctl"):
        pytest.skip("not Linux: there are no such powers")
    (tmp_path / "x").write_text("")
    (tmp_path / "x").chmod(0)
    command = [sys.executable, "-c", _DROP, sys.executable, "-c", f"open({os.fspath(tmp_path / 'x')!r})"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "PermissionError" in done.stderr
