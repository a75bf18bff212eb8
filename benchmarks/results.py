"""What was measured: moves of files and single facts, kept as they come and read back for the report."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Move:
    """One run of one peer in one direction. ``read_bytes`` are those of ``read`` calls, not of sockets' ``recv``."""

    scenario: str
    peer: str
    direction: str
    run: int
    total_bytes: int
    wall: float
    user: float
    system: float
    peak_mib: float
    read_bytes: int
    server_cpu: float
    requests: int | None = None
    class_a: int | None = None
    class_b: int | None = None
    connections: int | None = None
    most_at_once: int | None = None
    operations: dict[str, int] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        return self.user + self.system


@dataclass(frozen=True, slots=True)
class Fact:
    """One number of a run that is no move; ``subject`` is who or what it is about."""

    scenario: str
    subject: str
    name: str
    run: int
    value: float


class Store:
    """All results, in memory and as lines of JSON in a file, so that an interrupted run leaves what it had."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moves: list[Move] = []
        self.facts: list[Fact] = []
        self.failures: list[str] = []
        self.notes: list[str] = []

    def add(self, each: Move | Fact) -> None:
        (self.moves if isinstance(each, Move) else self.facts).append(each)  # type: ignore[arg-type]
        with open(self.path, "a", encoding="utf-8") as out:
            out.write(json.dumps({"kind": type(each).__name__, **dataclasses.asdict(each)}) + "\n")

    def fail(self, text: str) -> None:
        self.failures.append(text)
        with open(self.path, "a", encoding="utf-8") as out:
            out.write(json.dumps({"kind": "Failure", "text": text}) + "\n")

    @classmethod
    def read(cls, path: Path) -> Store:
        store = cls(path)
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            kind = entry.pop("kind")
            if kind == "Move":
                store.moves.append(Move(**entry))
            elif kind == "Fact":
                store.facts.append(Fact(**entry))
            else:
                store.failures.append(entry["text"])
        return store

    def chosen(self, scenario: str, peer: str, direction: str) -> list[Move]:
        wanted = (scenario, peer, direction)
        return [each for each in self.moves if (each.scenario, each.peer, each.direction) == wanted]

    def cpu(self, scenario: str, peer: str, direction: str) -> float | None:
        return median(each.cpu for each in self.chosen(scenario, peer, direction))

    def wall(self, scenario: str, peer: str, direction: str) -> float | None:
        return median(each.wall for each in self.chosen(scenario, peer, direction))

    def fact(self, scenario: str, subject: str, name: str) -> float | None:
        wanted = (scenario, subject, name)
        return median(each.value for each in self.facts if (each.scenario, each.subject, each.name) == wanted)

    def cpu_per_gib(self, peer: str, direction: str) -> float | None:
        """What moving costs without what starting costs: (CPU at 4 GiB - CPU at 1 GiB) / 3."""
        large, small = self.cpu("tls-4g", peer, direction), self.cpu("tls-1g", peer, direction)
        return None if large is None or small is None else (large - small) / 3


def median(values: Iterable[float]) -> float | None:
    """The median; ``None`` of nothing."""
    found = list(values)
    return statistics.median(found) if found else None


T = TypeVar("T")


def in_order(values: Iterable[T]) -> list[T]:
    """Each value once, in the order of first sight."""
    return list(dict.fromkeys(values))
