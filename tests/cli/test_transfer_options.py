"""``--concurrency`` and ``--bandwidth-limit``: how the commands that move bytes are told to move them."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from r2d1.cli.common import common_options, transfer_options
from tests.checkpoints import write_checkpoint
from tests.cli.shell import last_line, run, store_env


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "made", "chk_1", 1, {"a.bin": b"abc"})


@pytest.fixture
def env(tmp_path):
    return store_env(tmp_path)


@pytest.mark.parametrize(
    ("given", "concurrency", "limit"),
    [
        ([], None, None),
        (["--concurrency", "3"], 3, None),
        (["--bandwidth-limit", "4096"], None, 4096),
        (["--bandwidth-limit", "10m", "--concurrency", "1"], 1, 10 << 20),
        (["--bandwidth-limit", "2G"], None, 2 << 30),
        (["--bandwidth-limit", "500K"], None, 500 << 10),
    ],
    ids=str,
)
def test_how_to_transfer_reaches_the_settings(given, concurrency, limit):
    """``--concurrency`` and ``--bandwidth-limit`` are settings like those of the environment."""
    seen = []
    command = click.command(common_options(transfer_options(lambda common: seen.append(common.settings()))))
    result = CliRunner().invoke(command, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert [(one.concurrency, one.bandwidth_limit) for one in seen] == [(concurrency, limit)]


@pytest.mark.parametrize(
    "options", [["--concurrency", "2", "--bandwidth-limit", "1G"], ["--concurrency", "1"]], ids=str
)
def test_commands_that_transfer_say_how(options, env, folder, tmp_path):
    """``watch``, ``ship`` and ``pull`` take both, and work with them."""
    assert run("watch", folder.parent, "--job-id", "job", "--once", *options, env=env).exit_code == 0
    assert run("ship", folder, "--job-id", "job", *options, env=env).exit_code == 0
    pull = ("pull", "r2://jobs/job/latest", "--dest", tmp_path / "pulled")
    assert run(*pull, *options, env=env).exit_code == 0
    assert (tmp_path / "pulled" / "chk_1" / "a.bin").read_bytes() == b"abc"


@pytest.mark.parametrize("limit", ["0", "-1", "10X", "1.5M", "", "0K", "10MB"])
def test_limits_that_are_none_are_2(limit, env, folder):
    """What cannot be read as bytes is named."""
    result = run("ship", folder, "--job-id", "job", "--bandwidth-limit", limit, env=env)
    assert result.exit_code == 2
    assert "is no number of bytes above 0, such as 500K, 10M or 1G" in last_line(result)
