"""What is imported when, and what a missing library says."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import r2d1.datasets
from tests.datasets.making import GOLDEN

ROOT = Path(__file__).parents[2]
EXTRA = ("cryptography", "duckdb", "numpy", "pyarrow", "rfc8785", "tokenizers")


def run(code):
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_importing_the_package_imports_none_of_the_libraries():
    """``import r2d1.datasets`` is cheap, and so is verifying: neither needs a library of the extra."""
    code = f"""
import sys, r2d1.datasets
def loaded(): return sorted(set(sys.modules) & set({EXTRA}))
print(loaded())
r2d1.datasets.verify_shard_set, r2d1.datasets.parse_manifest, r2d1.datasets.plan_layout
print(loaded())
r2d1.datasets.ShardSet
print(loaded())
"""
    assert run(code).splitlines() == ["[]", "[]", "['numpy']"]


def test_a_worker_process_imports_no_sorting_engine():
    """What a build does in its workers needs no DuckDB, which costs each of them a third of its start."""
    code = """
import sys, r2d1.datasets.stages, r2d1.datasets.gathering
print("duckdb" in sys.modules, "pyarrow" in sys.modules)
"""
    assert run(code).split() == ["False", "True"]


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("build_mix", "pyarrow"),
        ("build_mix", "duckdb"),
        ("build_mix", "numpy"),
        ("ShardSet", "numpy"),
        ("load_registry", "rfc8785"),
        ("sign_spec", "cryptography"),
    ],
)
def test_a_missing_library_says_how_to_install_it(name, library):
    """Without a library of the extra, the first use of what needs it is an error with the command to run."""
    code = f"""
import sys
sys.modules[{library!r}] = None
from r2d1.errors import ConfigError
try:
    from r2d1.datasets import {name}
except ConfigError as exc:
    print(exc)
"""
    assert run(code) == f"{name} needs the library {library}: pip install r2d1[datasets]\n"


def test_a_tokenizer_file_without_its_library():
    """Only a mix with a ``tokenizer.json`` needs the library tokenizers, and says so."""
    code = f"""
import sys
sys.modules["tokenizers"] = None
from r2d1.datasets import build_mix
from r2d1.errors import ConfigError
try:
    build_mix("golden-a-bpe", out="nowhere", cache={str(GOLDEN / "cache")!r}, registry={str(GOLDEN / "registry.json")!r})
except ConfigError as exc:
    print(exc)
"""
    assert run(code) == "a tokenizer.json needs the library tokenizers: pip install r2d1[datasets]\n"


def test_the_public_names_are_listed_once_and_exist():
    """Every public name can be imported, is listed for type checkers too, and an unknown one is an AttributeError."""
    tree = ast.parse(Path(r2d1.datasets.__file__).read_text())
    (checking,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {alias.name for node in checking.body for alias in node.names}
    assert set(r2d1.datasets.__all__) == shown == set(r2d1.datasets._HOME)
    for name in r2d1.datasets.__all__:
        assert getattr(r2d1.datasets, name) is not None
    assert set(r2d1.datasets.__all__) <= set(dir(r2d1.datasets))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        r2d1.datasets.nothing
