"""Every command line that the documents and the help print is run as it is printed."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import click
import pytest

from r2d1.cli import COMMANDS, cli
from tests.checkpoints import write_checkpoint, write_files
from tests.cli.shell import R2D1, finished, run, started, store_env

#: The command lines of the original documentation, word for word.
DOCUMENTED = (
    "python -m r2d1 watch ./checkpoints --job-id my_run",
    "python -m r2d1 watch ./checkpoints --job-id my_run --poll-every 30",
    "python -m r2d1 pull r2://jobs/my_run/latest --dest ./checkpoints",
    "python -m r2d1 pull r2://datasets/mnist      --dest ./data",
    "python -m r2d1 secrets",
)


#: Commands that need more than a bucket and a directory, or make their own.
ELSEWHERE = ("demo", "doctor", "datasets")


def lines_of_help() -> list[str]:
    """The examples at the end of each command's help, but for those that are run by tests of their own."""
    ctx = click.Context(cli)
    epilogs = [(cli.get_command(ctx, name) or cli).epilog or "" for name in COMMANDS if name not in ELSEWHERE]
    return [line.strip() for epilog in epilogs for line in epilog.splitlines() if line.strip().startswith("r2d1 ")]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory in which every example has what it is about, and a bucket that holds it, too."""
    env = store_env(tmp_path)
    write_checkpoint(tmp_path / "checkpoints", "chk_0042", 42, {"checkpoint.pt": b"weights", "config.json": b"{}"})
    write_files(tmp_path / "bucket" / "datasets" / "mnist", {"train/images": b"pixels", "labels": b"0123"})
    write_files(tmp_path / "model", {"model.safetensors": b"weights"})
    assert run("watch", tmp_path / "checkpoints", "--job-id", "my_run", "--once", env=env).exit_code == 0
    (tmp_path / "prod.env").write_text(f"R2D1_STORE_URL={env['R2D1_STORE_URL']}\n")
    return tmp_path


@pytest.mark.parametrize("line", DOCUMENTED)
def test_the_documented_line_runs(line, home):
    """It ends with 0; a watch runs until it is told to end, and then ends with 0, too."""
    with started(*shlex.split(line)[3:], env=store_env(home), home=home) as child:
        if " watch " in line:
            child.wait_for("watching")
            child.send(signal.SIGTERM)
        ended = child.end()
    assert ended.exit_code == 0, ended.stderr


@pytest.mark.parametrize("line", lines_of_help())
def test_the_line_of_the_help_runs(line, home, monkeypatch):
    """It ends with 0, as does a watch without ``--once`` when it is told to end."""
    words = shlex.split(line)[1:]
    if words[0] == "watch" and "--once" not in words:
        with started(*words, env=store_env(home), home=home) as child:
            child.wait_for("watching")
            child.send(signal.SIGINT)
            ended = child.end()
    else:
        monkeypatch.chdir(home)
        ended = run(*words, env=store_env(home))
    assert ended.exit_code == 0, ended.stderr


def test_the_documented_pulls_bring_what_is_there(home):
    """The two pulls put a checkpoint beside its sidecar, and a dataset file by file."""
    for line in DOCUMENTED[2:4]:
        assert finished(*shlex.split(line)[3:], env=store_env(home), home=home, command=R2D1).exit_code == 0
    assert (home / "checkpoints" / "chk_0042" / "checkpoint.pt").read_bytes() == b"weights"
    assert (home / "data" / "train" / "images").read_bytes() == b"pixels"
