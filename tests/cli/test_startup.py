"""The table of commands: lazy, complete, and telling the truth about each."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

import r2d1
from r2d1.cli import COMMANDS, cli
from tests.cli.shell import child_env, finished, last_line, run

HEAVY = ("aioboto3", "botocore", "httpx", "watchfiles", "r2d1.courier", "r2d1.fetcher", "tqdm", "sqlite3", "asyncio")


def command_of(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_nothing_heavy(arguments, tmp_path):
    """Listing the commands costs none of the libraries that they need."""
    program = f"import sys; sys.argv[1:] = {arguments!r}\nfrom r2d1.cli import main\ntry: main()\nfinally: print('MODULES', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=child_env({}, tmp_path), capture_output=True, text=True, check=False
    )
    modules = done.stdout.splitlines()[-1].split()
    assert modules[0] == "MODULES"
    assert set(HEAVY) & set(modules) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_each_command_says_of_itself(name):
    """A line of the table is the first line of the command's own help, and its name is the command's."""
    command = command_of(name)
    assert command.name == name
    assert inspect.cleandoc(command.help or "").splitlines()[0] == COMMANDS[name][1]


def paths(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every command, those of groups included."""
    if not isinstance(command, click.Group):
        return [path]
    ctx = click.Context(command)
    members = [(name, command.get_command(ctx, name)) for name in command.list_commands(ctx)]
    return [each for name, member in members if member for each in paths(member, (*path, name))]


@pytest.mark.parametrize("path", paths(cli), ids=" ".join)
def test_every_command_explains_itself(path):
    """Help ends with 0, shows examples and the options that all commands share."""
    result = run(*path, "--help")
    assert result.exit_code == 0
    for word in ("Examples:", "--json", "--quiet", "--verbose"):
        assert word in result.stdout


def test_the_list_shows_commands_and_exit_codes():
    """The program's help names every command and every exit code."""
    text = run("--help").stdout
    assert all(name in text for name in COMMANDS)
    assert all(f"\n    {code} " in text for code in (0, 1, 2, 3, 4, 130))


def test_version():
    """``--version`` prints the package's."""
    assert run("--version").stdout == f"r2d1, version {r2d1.__version__}\n"


def test_no_command_and_a_wrong_command_are_usage_errors():
    """Both end with 2; the second says on its last line what was wrong."""
    assert run().exit_code == 2
    wrong = run("shp")
    assert wrong.exit_code == 2
    assert last_line(wrong) == "r2d1: failed: No such command 'shp'. `r2d1 --help` shows what it takes"


def test_usage_errors_in_json(tmp_path):
    """With ``--json`` a usage error, too, is one JSON object."""
    result = run("ship", tmp_path, "--json")
    document = json.loads(result.stdout)
    assert (document["status"], document["exit_code"], document["command"]) == ("failed", 2, "ship")
    assert "--job-id" in document["error"]


def test_both_doors_are_one(tmp_path):
    """``python -m r2d1`` is the console script."""
    done = finished("--version", env={}, home=tmp_path)
    assert (done.exit_code, done.stdout) == (0, run("--version").stdout)
    scripts = Path(r2d1.__file__).parents[1] / "pyproject.toml"
    assert 'r2d1 = "r2d1.cli:main"' in scripts.read_text()
