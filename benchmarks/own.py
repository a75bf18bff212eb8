"""What concerns r2d1 alone: training beside it, the loop it runs on, how soon it starts, what its requests cost."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import tools
from benchmarks.measure import Files, make_checkpoint, run
from benchmarks.peers import CLIENTS, End, Peer, everyone, forget, ours_with
from benchmarks.results import Move
from benchmarks.scenarios import LATENCIES_MS, MIB, RATES_MB, Scenario, Setting, link_words
from benchmarks.servers import CLASS_A, CLASS_B, Figures, S3Bench

_FIXED = (8, 16, 32, 64)
#: From here on after the first byte a link counts as found.
_SETTLED_MS = 3000


def _ours() -> Peer:
    return everyone()["r2d1"]


def _child(setting: Setting, script: str, *arguments: object, end: End, at: Path | None = None) -> Any:
    """What a program of ``clients/`` printed as its last line, read as JSON."""
    ours = _ours()
    command = [str((at or ours.bin()) / "python"), str(CLIENTS / script), *map(str, arguments)]
    env = {**ours.environ(end), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    _, said = run(command, env, setting.bench.work / "child.log")
    return json.loads(said.splitlines()[-1])


def _training(setting: Setting) -> None:
    """A NumPy and pure-Python loop alone, beside a courier in its process, and beside a process that ships."""
    at = tools.environment("r2d1-training", str(tools.CHECKOUT), "numpy")
    with setting.folder() as folder:
        files = make_checkpoint(folder, 4, 16 * MIB if setting.is_quick else setting.scaled(512 * MIB))
        for number in range(setting.runs):
            for mode in ("alone", "inside", "beside"):
                forget(files.folder)
                said = _child(setting, "training.py", mode, files.folder, f"{mode}-{number}", end=setting.end, at=at)
                setting.bench.server.reset()
                for name, value in said.items():
                    setting.fact("training", mode, name, number, value)


def _ticker(setting: Setting) -> None:
    """How long the loop that ships or pulls is kept from anything else."""
    shapes = {"4 × 8 MiB": (4, 8 * MIB)} if setting.is_quick else {}
    shapes = shapes or {"4 × 256 MiB": (4, 256 * MIB), "1 × 4 GiB": (1, 4096 * MIB), "20,000 × 1 KiB": (20_000, 1024)}
    for shape, (count, size) in shapes.items():
        with setting.folder() as folder:
            files = make_checkpoint(folder, count, setting.scaled(size))
            for number in range(setting.runs):
                _tick(setting, shape, files, number)


def _tick(setting: Setting, shape: str, files: Files, number: int) -> None:
    forget(files.folder)
    target = setting.bench.work / f"pulled-{number}"
    target.mkdir()
    for direction, folder in (("up", files.folder), ("down", target)):
        said = _child(setting, "ticker.py", direction, folder, f"ticker-{number}", end=setting.end)
        for name, value in said.items():
            setting.fact("ticker", f"{shape}, {direction}", name, number, value)
    tools.remove(target)
    setting.bench.server.reset()


def _trigger(setting: Setting) -> None:
    """From the rename of a sidecar to the first request, and to the head that commits it; plain HTTP, idle before."""
    server = _counting(setting)
    count = 5 if setting.is_quick else 50
    for number in range(1 if setting.is_quick else setting.runs):
        with setting.folder() as folder:
            server.reset()
            renamed = _child(setting, "trigger.py", folder, f"trigger-{number}", count, end=server.plain)
            log = server.ask("log")
        for epoch, (at, until) in enumerate(zip(renamed, [*renamed[1:], float("inf")], strict=True), 1):
            begun = [line[0] for line in log if at <= line[0] < until]
            head = f"/.r2d1/heads/chk_{epoch:04}.json"
            written = [line[1] for line in log if line[2] == "PutObject" and line[3].endswith(head)]
            setting.fact("trigger", "r2d1", "rename to first request, ms", number, begun[0] - at)
            setting.fact("trigger", "r2d1", "rename to commit, ms", number, written[-1] - at)


_STARTS: dict[str, tuple[str, list[str]]] = {
    "python -c pass": ("r2d1", ["python", "-c", "pass"]),
    "import r2d1": ("r2d1", ["python", "-c", "import r2d1"]),
    "r2d1 --version": ("r2d1", ["r2d1", "--version"]),
    "r2d1 ship --help": ("r2d1", ["r2d1", "ship", "--help"]),
    "r2d1: first client": ("r2d1", ["python", str(CLIENTS / "first_client.py")]),
    "import boto3": ("boto3", ["python", "-c", "import boto3"]),
    "import obstore": ("obstore", ["python", "-c", "import obstore"]),
    "s5cmd version": ("s5cmd", ["s5cmd", "version"]),
    "rclone version": ("rclone", ["rclone", "version"]),
}


def _start(setting: Setting) -> None:
    """Start-up of interpreters, imports and programs."""
    present = {each.name: each for each in setting.peers}
    for number in range(3 if setting.is_quick else 10):
        for subject, (name, (program, *arguments)) in _STARTS.items():
            if (peer := present.get(name)) is None:
                continue
            command = [str(peer.bin() / program), *arguments]
            cost, _ = run(command, peer.environ(setting.end), setting.bench.work / "start.log")
            setting.fact("start", subject, "wall, ms", number, cost["wall"] * 1e3)
            setting.fact("start", subject, "CPU, ms", number, (cost["user"] + cost["system"]) * 1e3)


def _operations(setting: Setting) -> None:
    """Requests by class for one checkpoint of three files of 1 MiB, and for a look that finds it there already."""
    _counting(setting)
    with setting.folder() as folder:
        files = make_checkpoint(folder, 3, MIB)
        for peer in setting.peers:
            for way in ("up", "down"):
                move = setting.moves("operations", peer, way, files, setting.end, 0)
                if move and peer.name == "r2d1":
                    _tell_operations(setting, f"r2d1, {way}", move)
        again = setting.bench.move("operations", _ours(), "up", files, setting.end, 0)
        _tell_operations(setting, "r2d1, up, already there", again)


def _tell_operations(setting: Setting, subject: str, move: Move) -> None:
    for name, count in move.operations.items():
        bill = "A" if name in CLASS_A else "B" if name in CLASS_B else "free"
        setting.fact("operations", subject, f"{name} ({bill})", 0, float(count))


def _steady(latency: float, rate: float) -> Scenario:
    """On one link, what r2d1 reaches from 3 s after its first byte on, beside what fixed concurrencies reach."""
    name = f"steady-{latency}-{rate or 'max'}"

    def measure(setting: Setting) -> None:
        server = _counting(setting)
        peers = [_ours(), *(ours_with(f"{each} at once", f"concurrency={each}") for each in _FIXED)]
        with setting.folder() as folder, server.link(latency, rate) as end:
            files = make_checkpoint(folder, 4, setting.scaled(1024 * MIB))
            for number, peer in ((number, peer) for number in range(setting.runs) for peer in peers):
                for way in ("up", "down"):
                    if setting.moves(name, peer, way, files, end, number):
                        reached = _throughput(server.figures())
                        setting.fact(name, f"{peer.name}, {way}", "MB/s after 3 s", number, reached)
                server.forget_objects()

    title = f"4 GiB over {link_words(latency, rate)}: throughput from 3 s after the first byte on"
    return Scenario(name, title, measure, needs_figures=True)


def _throughput(figures: Figures) -> float:
    """MB/s from 3 s after the first byte until 98 % are there; of all if that was sooner. What follows is the end."""
    moving = [each for each in figures.samples if each[1] > 0]
    last = next(each for each in moving if each[1] >= 0.98 * moving[-1][1])
    start = next((each for each in moving if each[0] >= moving[0][0] + _SETTLED_MS), last)
    if start[0] >= last[0]:
        start = moving[0]
    return (last[1] - start[1]) / max(last[0] - start[0], 1) / 1e3


def _push_back(setting: Setting) -> None:
    """A second of 503 in the middle of an upload: how many requests are in flight before, after, and later."""
    server = _counting(setting)
    with setting.folder() as folder, server.link(40, 5) as end:
        files = make_checkpoint(folder, 4, setting.scaled(768 * MIB))
        for number in range(setting.runs):
            at: list[float] = []
            done = threading.Event()
            thread = threading.Thread(target=_refuse_once, args=(server, at, done))
            thread.start()
            setting.moves("push-back", _ours(), "up", files, end, number)
            done.set()
            thread.join()
            samples = server.figures().samples
            for name, (begin, until, choose) in _LOOKS.items():
                seen = [count for ms, _, count in samples if at and at[0] + begin <= ms < at[0] + until]
                if seen:
                    setting.fact("push-back", "requests in flight", name, number, choose(seen))
            server.forget_objects()


#: Begin and end in ms after the first 503, and what is told of the samples between.
_LOOKS: dict[str, tuple[int, int, Callable[[list[int]], float]]] = {
    "in the second before, median": (-1000, 0, statistics.median),
    "in 5 s after the first 503, least": (0, 5000, min),
    "5 to 12 s after it, most": (5000, 12000, max),
}


def _refuse_once(server: S3Bench, at: list[float], done: threading.Event) -> None:
    """Four seconds after the first byte, refuse everything for one."""
    first = 0.0
    while not done.wait(0.1):
        if not first and server.figures().bytes:
            first = time.monotonic()
        if first and time.monotonic() - first > 4:
            at.append(time.time() * 1e3)
            server.ask("push_back?ms=1000")
            return


def _case_26(setting: Setting) -> None:
    """Case 26: 2,000 files of 1 KB with concurrency 64: connections, and lines of warning."""
    _counting(setting)
    with setting.folder() as folder:
        files = make_checkpoint(folder, 2000, 1000)
        move = setting.moves("case-26", ours_with("64 at once", "concurrency=64"), "up", files, setting.end, 0)
        said = (setting.bench.work / "run.log").read_text(encoding="utf-8", errors="replace")
        setting.fact("case-26", "r2d1[64 at once]", "connections", 0, float((move and move.connections) or 0))
        setting.fact("case-26", "r2d1[64 at once]", "lines it printed", 0, float(len(said.splitlines())))


def _counting(setting: Setting) -> S3Bench:
    assert isinstance(setting.bench.server, S3Bench)  # as ``needs_figures`` says
    return setting.bench.server


def own() -> list[Scenario]:
    """All scenarios of r2d1 alone."""
    return [
        *(_steady(latency, rate) for latency in LATENCIES_MS for rate in RATES_MB),
        Scenario(
            "push-back", "A second of 503 during 3 GiB up, 40 ms, 5 MB/s per connection", _push_back, needs_figures=True
        ),
        Scenario("training", "A training loop beside 2 GiB shipped over TLS (case 101)", _training, is_quick=False),
        Scenario("ticker", "A 5 ms ticker on the loop that ships and pulls over TLS (case 95)", _ticker, is_quick=True),
        Scenario("trigger", "From the sidecar's rename to the first request and to the commit", _trigger, True, True),
        Scenario("start", "Start and import", _start, is_quick=True),
        Scenario("operations", "Billed operations for a checkpoint of 3 × 1 MiB", _operations, True, True),
        Scenario("case-26", "Case 26: 2,000 × 1 KB, concurrency 64", _case_26, needs_figures=True),
    ]
