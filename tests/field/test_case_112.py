"""Field case 112: a verify that only looks. Full mode catches all damage and says what it read; a sample says so."""

from __future__ import annotations

import json
import shutil

import pytest

from r2d1.datasets import verify_shard_set
from tests.datasets.making import GOLDEN

LAST = "shard-00088.u16"


@pytest.fixture
def directory(tmp_path):
    shutil.copytree(GOLDEN / "expected" / "bytes", tmp_path / "set")
    return tmp_path / "set"


def found(directory):
    report = verify_shard_set(directory)
    assert report.mode == "full"
    assert not report.ok
    return report


def test_the_last_byte_of_the_last_shard(directory):
    """A changed last byte is found, in the last shard and its last unit."""
    data = (directory / LAST).read_bytes()
    (directory / LAST).write_bytes(data[:-1] + bytes([data[-1] ^ 255]))
    report = found(directory)
    assert {problem.file for problem in report.problems} == {LAST}
    assert report.problems[-1].text.endswith(": 354")
    assert report.bytes_read == report.bytes_total


def test_a_shard_removed(directory):
    """A removed shard is named, the report counts it among what was not read, and the tree is not said to be right."""
    (directory / "shard-00007.u16").unlink()
    report = found(directory)
    assert [str(problem) for problem in report.problems] == ["shard-00007.u16: is missing"]
    assert report.units_read == report.units_total - 4
    assert report.not_checked[0] == "merkle_root: it needs every shard right"
    assert all(text.endswith("nothing in the set vouches for it") for text in report.not_checked[1:])
    assert not any("merkle_root over all rows" in text for text in report.checked)


def test_a_shard_added(directory):
    """A shard that the manifest does not know is named."""
    shutil.copy(directory / "shard-00000.u16", directory / "shard-00089.u16")
    report = found(directory)
    assert [problem.file for problem in report.problems] == ["shard-00089.u16"]


def test_two_shards_of_equal_size_swapped(directory):
    """Two swapped shards are both named, each with the one whose bytes it has."""
    one, other, aside = directory / "shard-00002.u16", directory / "shard-00003.u16", directory / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    texts = [str(problem) for problem in found(directory).problems if "sha256 is" in problem.text]
    assert len(texts) == 2
    assert "shard-00002.u16" in texts[0]
    assert "these are the bytes of shard-00003.u16" in texts[0]
    assert "these are the bytes of shard-00002.u16" in texts[1]


def test_a_wrong_size_in_the_manifest(directory):
    """Sizes follow from the counts of a manifest: a wrong count is named, and so is each shard it makes wrong."""
    path = directory / "manifest.json"
    tree = json.loads(path.read_bytes())
    tree["seq_len"] = 31
    path.write_text(json.dumps(tree, indent=2, sort_keys=True))
    report = found(directory)
    assert report.problems[0].text == "has 1056 bytes, the manifest asks for 1024; not read"
    assert (len(report.problems), report.bytes_read) == (89, 0)
    tree.update(seq_len=32, n_samples=1424)
    path.write_text(json.dumps(tree, indent=2, sort_keys=True))
    assert [problem.file for problem in found(directory).problems] == ["manifest.json"]


def test_a_sample_calls_itself_one(directory):
    """Sample mode says "sample", how much it read, and what it therefore does not know."""
    report = verify_shard_set(directory, sample=1)
    first = report.lines()[0]
    assert "sample verification" in first
    assert "read 1 of 355 units" in first
    assert any(line.startswith("not checked: the other 354 units") for line in report.lines())
