"""``python -m benchmarks``: r2d1 and its peers, one after the other, on this machine alone."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import tools
from benchmarks.datasets import datasets
from benchmarks.measure import Bench, Failed
from benchmarks.own import own
from benchmarks.peers import Peer, everyone
from benchmarks.plot import to_svg
from benchmarks.report import to_markdown
from benchmarks.results import Store
from benchmarks.scenarios import QUICK_PEERS, Scenario, Setting, transfers
from benchmarks.servers import serving

#: Most of what is there at one time: files, what the server holds of them, what is fetched; 4 GiB each.
_NEEDED = {False: 13 << 30, True: 1 << 30}


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers end and folders go
    scenarios = {each.name: each for each in (*transfers(), *own(), *datasets())}
    options = _options(scenarios)
    if options.report:
        _write(Store.read(options.out / "results.jsonl"), scenarios, options, ["as read from results.jsonl"])
        return 0
    chosen = [each for each in scenarios.values() if _is_wanted(each, options)]
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    results.unlink(missing_ok=True)
    store, began = Store(results), time.monotonic()
    peers = _installed([everyone()[name] for name in options.peers], store)
    with _work_folder(options) as work, serving(work / "servers", options.server) as server:
        setting = Setting(Bench(server, work), store, peers, options.runs, options.quick, options.divide)
        about = [
            *_machine(),
            f"server: {server.name}; TLS: {'haproxy' if server.tls else 'none'}; files in {work.parent}",
        ]
        for scenario in chosen:
            _run(scenario, setting)
            _write(store, scenarios, options, about)  # as far as it is: a long run may be stopped
    print((options.out / "report.md").read_text(encoding="utf-8"))
    print(f"{time.monotonic() - began:.0f} s in all; report, plot and results are in {options.out}", file=sys.stderr)
    return 1 if store.failures else 0


def _options(scenarios: dict[str, Scenario]) -> argparse.Namespace:
    peers = list(everyone())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one run, under 3 minutes")
    parser.add_argument("--runs", type=int, help="of each move, interleaved (5; with --quick 1)")
    parser.add_argument("--only", type=_words(scenarios), metavar="A,B", help=f"of {', '.join(scenarios)}")
    parser.add_argument("--peers", type=_words(peers), metavar="A,B", help=f"of {', '.join(peers)}")
    parser.add_argument("--server", default="", choices=("s3bench", "juicefs"), help="s3bench where cargo is found")
    parser.add_argument("--work", type=Path, help="where files are made (memory, else the temporary folder)")
    parser.add_argument("--out", type=Path, default=tools.CACHE / "report", help="where the report goes")
    parser.add_argument("--divide", type=int, default=1, metavar="N", help="sizes by N, to try the benchmark itself")
    parser.add_argument("--report", action="store_true", help="write the report of the results in --out again")
    options = parser.parse_args()
    options.out = options.out.absolute()
    options.runs = options.runs or (1 if options.quick else 5)
    options.peers = options.peers or (list(QUICK_PEERS) if options.quick else peers)
    return options


def _words(known: Collection[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        words = text.split(",")
        if unknown := [each for each in words if each not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}")
        return words

    return read


def _is_wanted(scenario: Scenario, options: argparse.Namespace) -> bool:
    return scenario.name in options.only if options.only else scenario.is_quick or not options.quick


def _installed(peers: list[Peer], store: Store) -> list[Peer]:
    """Those that could be installed; the others are told of."""
    found = []
    for each in peers:
        try:
            each.bin()
        except tools.Missing as missing:
            store.fail(f"{each.name} is left out: {missing}")
        else:
            found.append(each)
    return found


@contextmanager
def _work_folder(options: argparse.Namespace) -> Iterator[Path]:
    """A folder for everything that is moved: in memory where that is large enough, as disks differ from run to run."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and min(shutil.disk_usage(memory).free, _free_memory()) > _NEEDED[options.quick]
    base = options.work or (memory if has_room else None)
    with tempfile.TemporaryDirectory(prefix="r2d1-bench-", dir=base) as name:
        yield Path(name)


def _free_memory() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), 0)


def _run(scenario: Scenario, setting: Setting) -> None:
    print(f"{scenario.name}: {scenario.title}", file=sys.stderr, flush=True)
    if scenario.needs_figures and setting.bench.server.figures() is None:
        setting.store.notes.append(f"left out: {scenario.name}, which needs s3bench, and so cargo")
        return
    try:
        scenario.run(setting)
    except (Failed, tools.Missing) as failure:
        print(f"  {failure}", file=sys.stderr, flush=True)
        setting.store.fail(f"{scenario.name}: {failure}")


def _machine() -> list[str]:
    git = subprocess.run(
        ["git", "-C", str(tools.CHECKOUT), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    cpu = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), cpu)
    return [
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC, r2d1 {git.stdout.strip() or 'of no commit'}",
        f"{os.cpu_count()} × {cpu}, {platform.system()} {platform.release()}, Python {platform.python_version()}",
    ]


def _write(store: Store, scenarios: dict[str, Scenario], options: argparse.Namespace, about: list[str]) -> None:
    titles = {name: each.title for name, each in scenarios.items()}
    text = to_markdown(store, titles, about, with_goals=not options.quick and options.divide == 1)
    (options.out / "report.md").write_text(text, encoding="utf-8")
    (options.out / "plot.svg").write_text(to_svg(store, titles), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
