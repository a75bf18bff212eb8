"""A trainer as scripted by chance: it writes checkpoints, rewrites slots, and deletes old ones."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from tests.simulation.world import PART, World


@dataclass(slots=True)
class Trainer:
    """Writes into one directory with times that only go up, as a clock's do."""

    world: World
    directory: Path
    epoch: int = 0
    ticks: int = 10**18
    names: list[str] = field(default_factory=list)
    half: str | None = None  # the checkpoint being written
    snapshot: str | None = None  # as its couriers are set
    chk_only: bool = False  # two machines of one job: a slot of the older one would rightly turn latest back

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self.snapshot = "hardlink" if self.world.rng.random() < 0.2 else None

    def _stamp(self, path: Path) -> None:
        self.ticks += 1_000_000
        os.utime(path, ns=(self.ticks, self.ticks))

    async def write_files(self, name: str) -> dict[str, bytes]:
        """Fill the folder, as a trainer does before its sidecar; returns what a pull must bring.

        A slot's old sidecar lies beside it all the while, and between any two writes somebody may look.
        """
        rng = self.world.rng
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        is_slow = rng.random() < 0.5
        files = {}
        for path in ("a.bin", "sub/b.bin", "c.bin")[: rng.randint(1, 3)]:
            files[path] = rng.randbytes(rng.choice([0, 1, PART - 1, PART, PART + 1, 5 * PART, 9 * PART + 7]))
        for old in folder.rglob("*"):
            if old.is_file() and str(old.relative_to(folder)) not in files:
                old.unlink()
        for path, data in files.items():
            target = folder / path
            target.parent.mkdir(exist_ok=True)
            for upto in (rng.randint(0, len(data)), len(data)) if is_slow else (len(data),):
                target.write_bytes(data[:upto])
                self._stamp(target)
                if is_slow:
                    await anyio.sleep(rng.random() * 3)
        return files

    def write_sidecar(self, name: str, files: dict[str, bytes]) -> None:
        self.world.expected.setdefault(name, {}).setdefault(self.epoch, []).append(files)
        text = json.dumps({"name": name, "epoch": self.epoch, "timestamp": float(self.epoch), "files": sorted(files)})
        temporary = self.directory / f".{name}.tmp"
        temporary.write_text(text)
        self._stamp(temporary)
        temporary.replace(self.directory / f"{name}.json")
        if name not in self.names:
            self.names.append(name)

    async def save(self) -> None:
        """One checkpoint from beginning to end; one that a crash left half written is written anew."""
        if self.half is None:
            self.epoch += 1
            is_slot = not self.chk_only and self.world.rng.random() < 0.4
            self.half = f"slot_{self.epoch % 2}" if is_slot else f"chk_{self.epoch:04d}"
        name = self.half
        self.write_sidecar(name, await self.write_files(name))
        self.half = None

    async def finish(self) -> None:
        """Write what a crash left half written."""
        if self.half is not None:
            await self.save()

    def rotate(self) -> None:
        """Delete the oldest checkpoint, folder and all, whatever is being done with it."""
        if len(self.names) > 2:
            self.delete(self.names[0])

    def delete(self, name: str) -> None:
        """Delete one checkpoint from the disk."""
        if name in self.names:
            self.names.remove(name)
        (self.directory / f"{name}.json").unlink(missing_ok=True)
        shutil.rmtree(self.directory / name, ignore_errors=True)
