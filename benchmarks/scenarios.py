"""What is measured beside the peers: files of several shapes over several links."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import tools
from benchmarks.measure import Bench, Failed, Files, make_checkpoint, make_many
from benchmarks.peers import End, Peer, everyone
from benchmarks.results import Fact, Move, Store

MIB = 1 << 20
LATENCIES_MS = (0, 40, 150)
RATES_MB = (10, 50, 0)  # per connection; 0: unlimited
#: What no run is without, and what `--quick` has.
QUICK_PEERS = ("r2d1", "obstore", "s5cmd", "boto3")


@dataclass(frozen=True, slots=True)
class Setting:
    """What the scenarios are run with."""

    bench: Bench
    store: Store
    peers: list[Peer]
    runs: int
    is_quick: bool
    divide: int = 1

    def scaled(self, size: int) -> int:
        """A size in bytes, divided when the benchmark itself is tried out."""
        return max(1, size // self.divide)

    @property
    def end(self) -> End:
        """Over TLS, if something could be put in front of the server."""
        return self.bench.server.tls or self.bench.server.plain

    def fact(self, scenario: str, subject: str, name: str, run: int, value: float) -> None:
        print(f"  {scenario:16} {subject:18} {name}: {value:.2f}", file=sys.stderr, flush=True)
        self.store.add(Fact(scenario, subject, name, run, value))

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder for files to send; gone afterwards, and with it what the server has."""
        folder = self.bench.work / "files"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
            self.bench.server.reset()

    def moves(self, scenario: str, peer: Peer, way: str, files: Files, end: End, run: int) -> Move | None:
        """One move, kept; a failure is told and kept, and the others go on."""
        try:
            move = self.bench.move(scenario, peer, way, files, end, run)
        except (Failed, tools.Missing) as failure:
            print(f"  {failure}", file=sys.stderr, flush=True)
            self.store.fail(f"{scenario}, {peer.name}, {way}, run {run}: {failure}")
            return None
        self.store.add(move)
        told = f"wall {move.wall:6.2f}  cpu {move.cpu:6.2f}  peak {move.peak_mib:5.0f} MiB  requests {move.requests}"
        print(f"  {scenario:16} {run} {peer.name:18} {move.direction:5} {told}", file=sys.stderr, flush=True)
        return move


@dataclass(frozen=True, slots=True)
class Scenario:
    """``title`` heads its part of the report; ``needs_figures``: only with a server that counts."""

    name: str
    title: str
    run: Callable[[Setting], None]
    is_quick: bool = False
    needs_figures: bool = False


def _transfer(
    name: str,
    title: str,
    full: tuple[int, int],
    quick: tuple[int, int] | None = None,
    *,
    link: tuple[float, float] | None = None,
    peers: Callable[[Setting], list[Peer]] = lambda setting: setting.peers,
    sparse: bool = False,
) -> Scenario:
    """Count and size of the files, and the same for ``--quick``; over TLS, or a plain link of latency and rate."""

    def run(setting: Setting) -> None:
        count, size = quick if setting.is_quick and quick else full
        with contextlib.ExitStack() as stack:
            files = make_checkpoint(stack.enter_context(setting.folder()), count, setting.scaled(size), sparse=sparse)
            end = stack.enter_context(setting.bench.server.link(*link)) if link else setting.end
            _in_turn(setting, name, peers(setting), ("up", "down"), files, end)

    return Scenario(name, title, run, is_quick=quick is not None)


def _many(setting: Setting) -> None:
    """200 checkpoints: r2d1 watches the folder once and pulls each by its name; the others copy the tree."""
    with setting.folder() as folder:
        files = make_many(folder, 10 if setting.is_quick else 200, MIB)
        peers = [each for each in setting.peers if each.takes_many]
        _in_turn(setting, "many", peers, ("up-many", "down-many"), files, setting.end)


def _in_turn(setting: Setting, name: str, peers: list[Peer], ways: tuple[str, str], files: Files, end: End) -> None:
    """Every peer up and down, as often as there are runs; who begins changes from run to run."""
    for run in range(setting.runs):
        start = run % len(peers) if peers else 0
        for peer in [*peers[start:], *peers[:start]]:
            if setting.moves(name, peer, ways[0], files, end, run):
                setting.moves(name, peer, ways[1], files, end, run)
            setting.bench.server.forget_objects()


def _ours(setting: Setting) -> list[Peer]:
    return [each for each in setting.peers if each.name == "r2d1"]


def _case_77(setting: Setting) -> None:
    """What checking costs: with and without, and how often a byte is read."""
    with setting.folder() as folder:
        files = make_checkpoint(folder, 8, setting.scaled(512_000_000))
        peers = [*_ours(setting), everyone()["r2d1[unchecked]"]]
        _in_turn(setting, "case-77", peers, ("up", "down"), files, setting.end)
    for each in [move for move in setting.store.moves if move.scenario == "case-77"]:
        subject, times = f"{each.peer}, {each.direction}", each.read_bytes / each.total_bytes
        setting.fact("case-77", subject, "bytes of read calls / bytes moved", each.run, times)


def _links() -> Iterator[Scenario]:
    for latency in LATENCIES_MS:
        for rate in RATES_MB:
            quick = (4, 8 * MIB) if (latency, rate) == (40, 10) else None
            name, title = f"link-{latency}-{rate or 'max'}", f"1 GiB over {link_words(latency, rate)}"
            yield _transfer(name, title, (4, 256 * MIB), quick, link=(latency, rate))


def link_words(latency: float, rate: float) -> str:
    """What a link is called in titles."""
    limit = f"{rate} MB/s per connection" if rate else "no limit per connection"
    return f"{latency} ms, {limit}, no TLS"


def transfers() -> list[Scenario]:
    """All scenarios in which files are moved and peers may take part."""
    return [
        _transfer("tls-1g", "4 × 256 MiB over TLS", (4, 256 * MIB), (4, 8 * MIB)),
        _transfer("tls-4g", "1 × 4 GiB over TLS", (1, 4096 * MIB)),
        _transfer("small", "5,000 × 20 KiB over TLS", (5000, 20 * 1024), (300, 20 * 1024)),
        Scenario("many", "200 checkpoints in a row, 1 MiB each, over TLS", _many, is_quick=True),
        *_links(),
        _transfer(
            "case-32",
            "Case 32: 4 GiB, sparse, slow link: the memory",
            (1, 4096 * MIB),
            link=(0, 50),
            peers=_ours,
            sparse=True,
        ),
        _transfer("case-69", "Case 69: 100,000 files of 100 bytes: the memory", (100_000, 100), peers=_ours),
        Scenario("case-77", "Case 77: 8 × 512 MB with and without the upload check", _case_77),
    ]
