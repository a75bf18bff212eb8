"""The PyTorch dataset where PyTorch is not installed."""

from __future__ import annotations

from tests.children import child_env, run_script

SCRIPT = """
import sys
sys.modules["torch"] = None
import r2d1.datasets
from r2d1.datasets import prefetch
from r2d1.errors import ConfigError
try:
    from r2d1.datasets.torchdata import UnitDataset
except ConfigError as error:
    print(error)
"""


def test_it_says_what_to_install_and_nothing_else_needs_it():
    """Prefetch works without PyTorch; the dataset says in one line what is missing."""
    assert run_script(SCRIPT, env=child_env()) == "UnitDataset needs PyTorch: pip install torch\n"
