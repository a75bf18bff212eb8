"""What ``r2d1.testing`` exports: every name, and only when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import r2d1.testing


def test_every_name_is_there() -> None:
    """Each public name can be had, and a wrong one is an AttributeError."""
    for name in r2d1.testing.__all__:
        assert getattr(r2d1.testing, name).__name__ == name
        assert name in dir(r2d1.testing)
    with pytest.raises(AttributeError, match="S3Duble"):
        r2d1.testing.S3Duble  # noqa: B018


def test_importing_costs_no_server() -> None:
    """The doubles and their servers are imported on first use only."""
    code = (
        "import sys, r2d1.testing; print([m for m in ('aiohttp', 'awscrt', 'botocore', 'httpx') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
