"""One measured run of one program, and the files that are moved."""

from __future__ import annotations

import filecmp
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import End, Peer, forget
from benchmarks.results import Move
from benchmarks.servers import Server

_METER = Path(__file__).parent / "meter.py"
_LIMIT_S = 1800
_BLOCK = 1 << 24


class Failed(Exception):
    """A measured program failed; the text has the end of what it said."""


@dataclass(frozen=True, slots=True)
class Files:
    """What is moved: ``count`` files and ``total`` bytes below ``folder``."""

    folder: Path
    count: int
    total: int


def make_checkpoint(
    base: Path, count: int, size: int, *, name: str = "chk_0001", epoch: int = 1, sparse: bool = False
) -> Files:
    """A checkpoint of ``count`` files of ``size`` random bytes each (or holes), with its sidecar."""
    folder = base / name
    folder.mkdir(parents=True)
    listed = [f"part-{number:06}.bin" for number in range(count)]
    for each in listed:
        with open(folder / each, "wb") as out:
            if sparse:
                out.truncate(size)
            else:
                out.writelines(os.urandom(min(_BLOCK, size - start)) for start in range(0, size, _BLOCK))
    promise = {"name": name, "epoch": epoch, "timestamp": "2026-01-01T00:00:00Z", "files": listed, "metadata": {}}
    (base / f"{name}.json").write_text(json.dumps(promise), encoding="utf-8")
    return Files(folder, count, count * size)


def make_many(base: Path, count: int, size: int) -> Files:
    """A folder of ``count`` checkpoints of one file each."""
    for epoch in range(1, count + 1):
        make_checkpoint(base / "all", 1, size, name=f"chk_{epoch:04}", epoch=epoch)
    return Files(base / "all", count, count * size)


def run(command: list[str], env: dict[str, str], log: Path) -> tuple[dict[str, Any], str]:
    """Run one program through the meter: what it cost, and what it printed."""
    report = log.with_suffix(".json")
    meter = [sys.executable, "-I", "-S", str(_METER), str(report), *command]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            meter, env=env, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            process.wait(_LIMIT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # the meter, and whom it measures
            process.wait()
            raise
    said = log.read_text(encoding="utf-8", errors="replace")
    cost = json.loads(report.read_text(encoding="utf-8"))
    if cost["code"]:
        raise Failed(f"{' '.join(command)} ended with {cost['code']}:\n{said[-1500:]}")
    return cost, said


@dataclass(frozen=True, slots=True)
class Bench:
    """Where moves are made and measured."""

    server: Server
    work: Path

    def move(self, scenario: str, peer: Peer, way: str, files: Files, end: End, number: int) -> Move:
        """Send or fetch ``files`` once; ``way`` is ``up`` or ``down``, for many checkpoints with ``-many`` after it.

        What is fetched is compared (in the first run byte by byte) and thrown away.
        """
        target = self.work / "down"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        forget(files.folder)
        prefix = f"{scenario}-{number}-{peer.name}".translate(str.maketrans("[]=", "---"))
        direction, _, _ = way.partition("-")
        command = peer.command(way, files.folder if direction == "up" else target, prefix, end)
        _settle(files.total)
        self.server.reset_figures()
        before = self.server.cpu_seconds()
        cost, _ = run(command, peer.environ(end), self.work / "run.log")
        server_cpu = self.server.cpu_seconds() - before
        if direction == "down":
            _check(peer.name, files, target, by_bytes=number == 0)
        shutil.rmtree(target)
        return Move(
            scenario,
            peer.name,
            direction,
            number,
            files.total,
            **{name: cost[name] for name in ("wall", "user", "system", "peak_mib", "read_bytes")},
            server_cpu=server_cpu,
            **_counted(self.server),
        )


def _counted(server: Server) -> dict[str, Any]:
    counted = server.figures()
    if counted is None:
        return {}
    names = ("requests", "class_a", "class_b", "connections", "most_at_once", "operations")
    return {name: getattr(counted, name) for name in names}


def _check(name: str, files: Files, target: Path, *, by_bytes: bool) -> None:
    """Every file came, whole. Peers lay them differently below the target; r2d1 into a folder of the name."""
    sent = {_tail(each): each for each in _parts(files.folder)}
    came = {_tail(each): each for each in _parts(target)}
    if any(len(each.parts) == 1 for each in came):  # no checkpoint's name: there was one
        came = {Path(files.folder.name) / key: each for key, each in came.items()}
    if sent.keys() != came.keys():
        raise Failed(f"{name} brought {len(came)} files, not {len(sent)}")
    for key, there in sent.items():
        is_same = (
            filecmp.cmp(there, came[key], shallow=False)
            if by_bytes
            else there.stat().st_size == came[key].stat().st_size
        )
        if not is_same:
            raise Failed(f"{name} brought another {key}")


def _parts(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("part-*.bin") if ".r2d1" not in each.parts]


def _tail(path: Path) -> Path:
    return Path(*path.parts[-2:]) if path.parent.name.startswith("chk_") else Path(path.name)


def _settle(size: int) -> None:
    """Let the last run's writes reach the disk, and have ``size`` bytes of memory at hand.

    A virtual machine's host takes back what lies free; who touches it first pays up to two seconds per GiB. So it is
    touched and freed here, just before the program that is measured takes it.
    """
    os.sync()
    if hasattr(mmap, "MAP_POPULATE"):
        subprocess.run([sys.executable, "-I", "-S", "-c", _TOUCH, str(size)], check=True)


_TOUCH = "import mmap, sys; mmap.mmap(-1, int(sys.argv[1]), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)"
