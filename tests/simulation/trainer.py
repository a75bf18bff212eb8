"""A trainer as scripted by chance: it writes checkpoints, rewrites slots, and deletes old ones."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.world import PART, World


@dataclass(slots=True)
class Trainer:
    """Writes into one directory with times that only go up, as a clock's do."""

    world: World
    directory: Path
    epoch: int = 0
    ticks: int = 10**18
    names: list[str] = field(default_factory=list)
    chk_only: bool = False  # two machines of one job: a slot of the older one would rightly turn latest back

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)

    def _stamp(self, path: Path) -> None:
        self.ticks += 1_000_000
        os.utime(path, ns=(self.ticks, self.ticks))

    def write_files(self, name: str) -> dict[str, bytes]:
        """Fill the folder, as a trainer does before its sidecar; returns what a pull must bring."""
        rng = self.world.rng
        folder = self.directory / name
        folder.mkdir(exist_ok=True)
        files = {}
        for path in ("a.bin", "sub/b.bin", "c.bin")[: rng.randint(1, 3)]:
            files[path] = rng.randbytes(rng.choice([0, 1, PART - 1, PART, PART + 1, 5 * PART, 9 * PART + 7]))
        for old in folder.rglob("*"):
            if old.is_file() and str(old.relative_to(folder)) not in files:
                old.unlink()
        for path, data in files.items():
            target = folder / path
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(data)
            self._stamp(target)
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

    def save(self) -> str:
        """One checkpoint from beginning to end."""
        self.epoch += 1
        name = (
            f"slot_{self.epoch % 2}" if not self.chk_only and self.world.rng.random() < 0.4 else f"chk_{self.epoch:04d}"
        )
        self.write_sidecar(name, self.write_files(name))
        return name

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
