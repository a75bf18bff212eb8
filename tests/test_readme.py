"""Everything the README shows is run: its front commands by CI, its code and shell lines here."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


@pytest.fixture
def user(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A newcomer's directory and environment: an embedded store, and ``r2d1`` on the path."""
    store, home, tools = tmp_path / "store", tmp_path / "home", tmp_path / "tools"
    for folder in (store, home, tools):
        folder.mkdir()
    command = tools / "r2d1"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m r2d1 "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("R2D1_", "R2_", "AWS_"))}
    paths = {"PATH": f"{tools}:{env['PATH']}", "PYTHONPATH": f"{ROOT}:{env.get('PYTHONPATH', '')}"}
    return home, {**env, **paths, "R2D1_STORE_URL": store.as_uri()}


def test_ci_runs_the_two_front_commands() -> None:
    """The commands a newcomer is given first are lines of the script that must pass before a change lands."""
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    for command in blocks("sh")[:2]:
        assert command.strip() in lines


def test_every_line_of_code_and_shell_runs_in_the_order_shown(user: tuple[Path, dict[str, str]]) -> None:
    """A reader who types everything from top to bottom ends with a checkpoint shipped, pulled and listed."""
    home, env = user
    for code in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=home, env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"
    for line in blocks("sh")[2].splitlines():
        done = subprocess.run(line, shell=True, cwd=home, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (home / "restored" / "chk_0042" / "model.safetensors").read_bytes() == b"weights"


def test_every_link_leads_somewhere() -> None:
    """Relative links point at files of the repository."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_session_it_names_exists() -> None:
    """The nox sessions that the README lists are those that there are."""
    named = re.search(r"`nox -l` lists the sessions: (.*?)\. `", README, re.DOTALL)
    assert named is not None
    defined = re.findall(r"^@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", named[1])) == sorted(defined)
