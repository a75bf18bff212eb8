"""Shard sets written from arrays and read through memory maps."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest

from r2d1.datasets import DocumentError, ShardSet, ShardSetWriter, TokenizerPin, plan_layout, verify_shard_set
from r2d1.errors import ConfigError, FormatError
from tests.datasets.making import GOLDEN, files_of, sha, some_shards, write_set
from tests.datasets.naive import tree_root

PIN = TokenizerPin("some", "ab" * 32)


def test_written_sets_have_the_hashes_written_out_by_hand(tmp_path):
    """Shards, units, rows and all three roots are hashed as the format says, computed here with hashlib alone."""
    rows = np.arange(11 * 4, dtype=np.int64).reshape(11, 4)
    writer = ShardSetWriter(tmp_path / "set", plan_layout(3, unit=2, samples_per_shard=4))
    writer.append(rows[:5])
    writer.append(rows[5])
    writer.append(rows[6:])
    manifest = writer.finish(PIN, extra={"note": "x"})
    raw = [b"".join(int(one).to_bytes(2, "little") for one in row) for row in rows[:10]]
    shards = [b"".join(raw[at : at + 4]) for at in (0, 4, 8)]
    units = [sha(b"".join(raw[at : at + 2])) for at in range(0, 10, 2)]
    assert files_of(tmp_path / "set") == {
        "manifest.json": manifest.to_bytes(),
        **{f"shard-{n:05d}.u16": data for n, data in enumerate(shards)},
    }
    assert list(manifest.shard_sha256s) == [sha(data) for data in shards]
    assert list(manifest.unit_sha256s) == units
    assert manifest.merkle_root == tree_root(raw)
    assert manifest.shard_sha256_root == tree_root(bytes.fromhex(sha(data)) for data in shards)
    assert manifest.unit_sha256_root == tree_root(map(bytes.fromhex, units))
    assert manifest.extra == {"dropped_tail_samples": 1, "note": "x"}
    assert verify_shard_set(tmp_path / "set").ok


def test_rows_that_do_not_fit_are_refused(tmp_path):
    """An id beyond 65535 or below 0, another width and floats are errors that name the row."""
    writer = ShardSetWriter(tmp_path, plan_layout(1, unit=1))
    writer.append([[1, 65535]])
    for rows, said in (
        ([[1, 2], [3, 65536]], "row 2 has a token id outside"),
        ([[-1, 2]], "row 1 has a token id outside"),
        ([[1, 2, 3]], r"shape \(n, 2\)"),
        ([[1.0, 2.0]], "float64"),
    ):
        with pytest.raises(FormatError, match=said):
            writer.append(rows)
    assert writer.finish(PIN).n_samples == 1


def test_a_set_is_not_written_over_another(tmp_path, golden_set):
    """A directory that holds a set, and a set without any unit, are refused."""
    with pytest.raises(ConfigError, match="holds manifest.json already"):
        ShardSetWriter(golden_set, plan_layout(3))
    with pytest.raises(FormatError, match="at least one unit"):
        ShardSetWriter(tmp_path / "empty", plan_layout(3)).finish(PIN)


def test_rows_and_units_are_read_from_the_files():
    """Every row equals its bytes; rows are read-only views of shape (seq_len + 1,)."""
    directory = GOLDEN / "expected" / "bpe"
    data = b"".join((directory / f"shard-{n:05d}.u16").read_bytes() for n in range(17))
    found = ShardSet(directory)
    assert len(found) == 264
    assert [row.tobytes() for row in found] == [data[at : at + 66] for at in range(0, len(data), 66)]
    assert found[263].tobytes() == found[-1].tobytes() == data[-66:]
    assert found[17].dtype == np.uint16
    assert found[17].shape == (33,)
    assert not found[17].flags.writeable
    assert found.unit(65).tobytes() == data[-264:]
    for call in (lambda: found[264], lambda: found[-265], lambda: found.unit(66), lambda: found.unit(-1)):
        with pytest.raises(IndexError):
            call()


def test_sets_can_be_pickled(golden_set):
    """A copy that travelled to another process reads the same rows."""
    found = ShardSet(golden_set)
    assert pickle.loads(pickle.dumps(found))[7].tobytes() == found[7].tobytes()


def test_opening_looks_at_the_sizes(golden_set):
    """Opening names every shard that is missing or of another size, and a malformed manifest by its path."""
    (golden_set / "shard-00003.u16").unlink()
    (golden_set / "shard-00005.u16").write_bytes(b"xx")
    with pytest.raises(FormatError, match="shard-00003.u16 is missing; shard-00005.u16 has 2 bytes, not 1056"):
        ShardSet(golden_set)
    (golden_set / "manifest.json").write_bytes(b"{}")
    with pytest.raises(
        DocumentError, match="set/manifest.json: tokenizer is missing; seq_len is missing; samples_per_shard is"
    ):
        ShardSet(golden_set)
    (golden_set / "manifest.json").unlink()
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        ShardSet(golden_set)


def test_ten_thousand_tiny_shards(tmp_path):
    """A set of 10,000 shards of one row is read and verified with few descriptors and no message a shard."""
    shards = some_shards(10_000, 8)
    manifest = write_set(tmp_path, shards, seq_len=3, unit=1, per_shard=1)
    found = ShardSet(tmp_path)
    assert b"".join(row.tobytes() for row in found) == b"".join(shards)
    assert len(os.listdir("/proc/self/fd")) < 500
    steps = []
    report = verify_shard_set(tmp_path, on_progress=steps.append)
    assert report.ok, report.lines()
    assert report.units_read == 10_000
    assert len(steps) < 10
    (tmp_path / "shard-07777.u16").write_bytes(b"notright")
    problems = verify_shard_set(tmp_path).problems
    assert {problem.file for problem in problems} == {"shard-07777.u16"}
    assert json.loads((tmp_path / "manifest.json").read_bytes()) == manifest
