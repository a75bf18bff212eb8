"""What the benchmark makes of its runs: medians, ratios, tables, the plot; and that its meter and checks tell the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import measure, meter, own, peers
from benchmarks.plot import to_svg
from benchmarks.report import to_markdown
from benchmarks.results import Fact, Move, Store
from benchmarks.servers import Figures

TITLES = {"tls-1g": "1 GiB", "tls-4g": "4 GiB", "training": "beside <training>"}


def move(scenario: str, peer: str, direction: str, cpu: float, run: int = 0) -> Move:
    return Move(scenario, peer, direction, run, 1 << 30, cpu * 2, cpu / 2, cpu / 2, 25.0 + run, 0, 0.0, class_a=3)


@pytest.fixture
def store(tmp_path) -> Store:
    """r2d1 moves a GiB for 0.9 s of CPU, obstore for 1.0 s, whatever their start costs."""
    store = Store(tmp_path / "results.jsonl")
    for peer, start, per_gib in (("r2d1", 2.0, 0.9), ("obstore", 0.1, 1.0)):
        for run, noise in enumerate((0.0, 0.25, 9.0)):  # the median is off by 0.25 in both
            for direction in ("up", "down"):
                store.add(move("tls-1g", peer, direction, start + per_gib + noise, run))
                store.add(move("tls-4g", peer, direction, start + 4 * per_gib + noise, run))
    store.add(Fact("training", "inside", "step, mean ms", 0, 23.0))
    store.add(Fact("training", "beside", "step, mean ms", 0, 20.0))
    return store


def test_start_up_is_no_part_of_a_gib(store):
    assert store.cpu_per_gib("r2d1", "up") == pytest.approx(0.9)
    assert store.cpu_per_gib("obstore", "down") == pytest.approx(1.0)
    assert store.cpu_per_gib("s5cmd", "up") is None


def test_goals_are_judged_by_ratios(store):
    text = to_markdown(store, TITLES, ["about"], with_goals=True)
    assert "| CPU per GiB down / obstore | 0.90 / 1.00 = 0.90 | ≤ 1.00 | reached |" in text
    assert "| training step inside / beside | 23.00 / 20.00 = 1.15 | ≤ 1.10 | **missed** |" in text
    assert "s5cmd" not in text  # it did not run
    assert "## Goals" not in to_markdown(store, TITLES, ["about"], with_goals=False)


def test_a_table_has_medians_and_the_highest_peak(store):
    lines = to_markdown(store, TITLES, [], with_goals=False).splitlines()
    row = next(line for line in lines if line.startswith("| r2d1 | 3 |"))
    assert [cell.strip() for cell in row.split("|")[3:7]] == ["6.30", "3.15", "27", "3+–"]


def test_failures_stand_in_the_report(store):
    store.fail("rclone fell over")
    assert "rclone fell over" in to_markdown(store, TITLES, [], with_goals=False)


def test_results_are_read_back_as_they_were(store):
    store.fail("rclone fell over")
    again = Store.read(store.path)
    assert (again.moves, again.facts, again.failures) == (store.moves, store.facts, store.failures)


def test_the_plot_has_a_bar_for_each_client_way_and_measure(store):
    root = ElementTree.fromstring(to_svg(store, TITLES))
    bars = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("height") == "11"]
    assert len(bars) == 2 * 2 * 2 * 2  # scenarios, clients, ways, wall and CPU
    assert max(float(each.get("width")) for each in bars) == 300


@pytest.mark.parametrize(
    ("samples", "reached"),
    [
        ([(0, 0), (1000, 1_000_000), (4000, 2_000_000), (6000, 12_000_000), (7000, 12_000_000)], 5.0),
        ([(0, 0), (1000, 1_000_000), (2000, 3_000_000)], 2.0),
    ],
    ids=["without the first 3 s and the end's idling", "of a transfer that was over sooner: all of it"],
)
def test_throughput(samples, reached):
    figures = Figures({}, 0, 0, 0, [(ms, moved, 1) for ms, moved in samples])
    assert own._throughput(figures) == pytest.approx(reached)


def test_billed_classes():
    counted = Figures({"PutObject": 3, "GetObject": 2, "DeleteObject": 7}, 0, 0, 0, [])
    assert (counted.class_a, counted.class_b, counted.requests) == (3, 2, 12)


def test_the_meter_tells_exit_code_cpu_and_memory(tmp_path):
    report = tmp_path / "cost.json"
    work = "block = b'x' * 80_000_000; sum(range(3_000_000)); open('/dev/null', 'wb').write(block); raise SystemExit(3)"
    command = [sys.executable, "-I", "-S", meter.__file__, str(report), sys.executable, "-I", "-S", "-c", work]
    subprocess.run(command, check=True)
    cost = json.loads(report.read_text())
    assert cost["code"] == 3
    assert 76 < cost["peak_mib"] < 160
    assert 0 < cost["user"] + cost["system"] <= cost["wall"] * (os.cpu_count() or 1) + 0.1
    if sys.platform == "linux":
        assert 80_000_000 <= cost["written_bytes"] < 90_000_000


@pytest.fixture
def sent(tmp_path) -> measure.Files:
    return measure.make_checkpoint(tmp_path / "files", 2, 1000)


def fetched(tmp_path: Path, sent: measure.Files, below: str) -> Path:
    target = tmp_path / "down"
    (target / below).mkdir(parents=True)
    for each in sent.folder.iterdir():
        (target / below / each.name).write_bytes(each.read_bytes())
    return target


@pytest.mark.parametrize("below", ["", "chk_0001"], ids=["as peers lay it", "as r2d1 lays it"])
def test_what_was_fetched_is_compared(tmp_path, sent, below):
    target = fetched(tmp_path, sent, below)
    measure._check("peer", sent, target, by_bytes=True)
    first = target / below / "part-000000.bin"
    first.write_bytes(bytes(1000))
    measure._check("peer", sent, target, by_bytes=False)  # by size only: rounds after the first
    with pytest.raises(measure.Failed, match="another"):
        measure._check("peer", sent, target, by_bytes=True)
    first.unlink()
    with pytest.raises(measure.Failed, match="1 files, not 2"):
        measure._check("peer", sent, target, by_bytes=False)


def test_a_courier_that_is_forgotten_sends_again(tmp_path, sent):
    for base in (sent.folder, sent.folder.parent):
        (base / ".r2d1").mkdir()
    peers.forget(sent.folder)
    assert not list(tmp_path.rglob(".r2d1"))
    assert len(list(sent.folder.iterdir())) == sent.count


def test_every_peer_has_a_command_for_both_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(peers.Peer, "bin", lambda self: tmp_path)
    end = peers.End("https://127.0.0.1:1", tmp_path / "ca.pem")
    for name, peer in peers.everyone().items():
        for way in ("up", "down"):
            command = peer.command(way, tmp_path / "folder", "job", end)
            assert any("folder" in word for word in command), (name, command)
        environ = peer.environ(end)
        assert any("ca.pem" in value for value in environ.values()), name
        assert "PYTHONPATH" not in peer.environ(end)
