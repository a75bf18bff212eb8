"""The dataset scenarios: what their commands are, what their figures say, and that their inputs are what they claim."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import datasets, measure, peers, tools
from benchmarks.datasets import Cores
from r2d1.datasets import BuildOptions, build_mix, verify_shard_set
from tests.datasets.making import GOLDEN, sha

COST = {"wall": 2.0, "user": 3.0, "system": 1.0}


def test_throughput_is_told_per_second_of_all_cores():
    assert datasets.figures(8_000_000, COST) == {"wall, s": 2.0, "CPU, s": 4.0, "MB per CPU second": 2.0}


def test_ratios_are_ours_over_theirs():
    theirs = {"wall": 4.0, "user": 0.5, "system": 0.5}
    assert datasets.ratios(COST, theirs, "sha256sum") == {"wall / sha256sum": 0.5, "CPU / sha256sum": 4.0}


@pytest.mark.parametrize(("units", "rounds"), [(1, 1), (8, 1), (9, 2), (511, 64)])
def test_the_limit_of_a_link_counts_rounds_of_eight(units, rounds):
    assert datasets.least_seconds(units, 1_000_000, 40, 10) == pytest.approx(rounds * 0.14)


def test_one_core_means_one():
    say = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
    said = subprocess.run(Cores(1).holding(say), check=True, capture_output=True, text=True)
    assert said.stdout.strip() == "1"
    assert str(Cores.choices()[0]) == "1 core"
    assert Cores.choices()[-1].count == len(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """A set and a source as the benchmark makes them, only smaller."""
    base = tmp_path_factory.mktemp("inputs of a benchmark")
    script = str(peers.CLIENTS / "dataset_inputs.py")
    for words in (
        ("set", base / "set", 2_200_000),
        ("source", base / "cache", 200_000, GOLDEN / "cache" / "tokenizer.json"),
    ):
        said = subprocess.run([sys.executable, script, *map(str, words)], check=True, capture_output=True, text=True)
        (base / f"{words[0]}.json").write_text(said.stdout)
    return base


def test_a_made_set_is_whole(inputs):
    made = json.loads((inputs / "set.json").read_text())
    report = verify_shard_set(inputs / "set")
    assert report.ok, report.lines()
    assert (made["units"], made["bytes"]) == (2, report.bytes_total)
    assert made["unit_size"] * made["units"] == made["bytes"]


def test_hashing_alone_hashes_every_shard_once(inputs):
    commands = datasets.verifiers(Path(sys.executable).parent, inputs / "set", Cores(1))
    wanted = [sha(path.read_bytes()) for path in sorted((inputs / "set").glob("*.u16"))]
    for name in ("sha256sum", "hashlib (OpenSSL)"):
        said = subprocess.run(commands[name], check=True, capture_output=True, text=True).stdout
        assert [line.split()[0] for line in said.splitlines()] == wanted, name
    assert shlex.join(commands["r2d1 datasets verify"]).endswith("--quiet")


def test_a_made_source_is_built(inputs, tmp_path):
    made = json.loads((inputs / "source.json").read_text())
    cache = inputs / "cache"
    options = BuildOptions(unit=1, workers=1)
    report = build_mix("bytes", out=tmp_path / "out", cache=cache, registry=cache / "registry.json", options=options)
    (source,) = report.sources
    assert source.rows_read == made["documents"]
    assert 0 < source.rows_removed < made["documents"] / 10
    assert 200_000 <= made["bytes"] < 300_000
    assert 0.5 * made["bytes"] < source.available <= made["bytes"] + made["documents"]


def test_tokenizing_alone_reads_what_a_build_reads(inputs):
    script = str(peers.CLIENTS / "tokenize_client.py")
    for mix in ("bytes", "wordpiece"):
        said = subprocess.run([sys.executable, script, mix, str(inputs / "cache")], check=True, capture_output=True)
        assert int(said.stdout) == json.loads((inputs / "source.json").read_text())["documents"]


def test_units_that_came_are_compared(inputs, tmp_path):
    hashes = json.loads((inputs / "set" / "manifest.json").read_bytes())["unit_sha256s"]
    data = (inputs / "set" / "shard-00000.u16").read_bytes()
    half = len(data) // 2
    for at, name in enumerate(hashes):
        (tmp_path / name).write_bytes(data[at * half : (at + 1) * half])
    datasets._check_units("peer", inputs / "set", tmp_path, by_bytes=True)
    (tmp_path / hashes[0]).write_bytes(bytes(half))
    with pytest.raises(measure.Failed, match="another"):
        datasets._check_units("peer", inputs / "set", tmp_path, by_bytes=True)
    (tmp_path / hashes[0]).unlink()
    with pytest.raises(measure.Failed, match="1 files, not the 2 units"):
        datasets._check_units("peer", inputs / "set", tmp_path, by_bytes=False)


@pytest.mark.parametrize("name", datasets._FETCHERS)
def test_each_client_is_told_of_set_target_and_authority(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "environment", lambda *_: tmp_path)
    end = peers.End("https://127.0.0.1:1", tmp_path / "ca.pem")
    command, environ = datasets.fetcher(name, tmp_path / "set", tmp_path / "units", end)
    assert str(tmp_path / "units") in command
    assert any(word.startswith(str(tmp_path / "set")) for word in command)
    assert any("ca.pem" in value for value in environ.values())
