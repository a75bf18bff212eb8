"""What the tests of shard sets share."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.datasets.making import GOLDEN


@pytest.fixture(scope="session")
def vectors():
    """Single steps, computed by the builder that defined the format."""
    return json.loads((GOLDEN / "vectors.json").read_bytes())


@pytest.fixture
def golden_set(tmp_path):
    """A copy of a golden shard set (``bytes``), free to be damaged."""
    shutil.copytree(GOLDEN / "expected" / "bytes", tmp_path / "set")
    return tmp_path / "set"
