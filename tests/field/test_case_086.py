"""Field case 86: dependency pins fight. Ours have lower bounds alone, and stand beside boto3, s3fs and datasets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

import pytest

from tests.children import REPOSITORY, child_env

#: What pins one botocore, wants another aiobotocore, or brings half of what we use in versions of its own.
NEIGHBOURS = ("boto3", "s3fs", "datasets")
_REQUIREMENT = re.compile(r"[a-z0-9-]+(\[[a-z,]+\])?(>=[0-9.]+)?")


def test_nothing_is_pinned():
    """No requirement of the package or of an extra that users install has an upper bound or an exact version."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = {name: wanted for name, wanted in project["optional-dependencies"].items() if name != "dev"}
    for requirement in [*project["dependencies"], *(each for wanted in extras.values() for each in wanted)]:
        assert _REQUIREMENT.fullmatch(requirement), requirement
    assert project["requires-python"] == ">=3.11"


@pytest.mark.soak
def test_beside_its_neighbours(tmp_path):
    """A fresh environment with the newest of all resolves, ``pip check`` is content, and the demo ships and pulls."""
    env = child_env({name: value for name, value in os.environ.items() if name.startswith("PIP_")})
    del env["PYTHONPATH"]  # what is installed is on trial

    def run(*command: object) -> str:
        done = subprocess.run([*map(str, command)], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{REPOSITORY}[dotenv,datasets]", *NEIGHBOURS)
    run(python, "-m", "pip", "check")
    run(python, "-W", "error::ImportWarning", "-c", "import r2d1, boto3, s3fs, datasets")
    run(python, "-m", "r2d1", "demo")
