"""The directory beside its output in which a build keeps what is finished, and the way from there into place."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from r2d1.datasets.layout import MANIFEST_NAME, RECORD_NAME, is_shard_name, shard_name
from r2d1.datasets.manifest import BuildRecord, ShardManifest
from r2d1.datasets.shards import sync_directory, write_whole
from r2d1.errors import ConfigError, LockHeld

#: The columns that hold the 32 bytes of an order key, 8 in each. (Here, as workers need no sorting engine.)
KEY_COLUMNS = ("k0", "k1", "k2", "k3")

_INPUTS = "inputs.json"
_LOCK = "lock"
_FOLDERS = ("references", "table", "scan", "tokens", "plan", "marks", "set", "spill")


@dataclass(frozen=True, slots=True)
class Space:
    """Where a build keeps the files between its stages."""

    root: Path

    def references(self, number: int) -> Path:
        """Marks a reference task as done; its shingles lie beside it."""
        return self.root / "references" / f"{number:06d}.json"

    def table(self) -> Path:
        """The folder of the reference table."""
        return self.root / "table"

    def scanned(self, source: int, number: int) -> Path:
        """Marks a scan task as done; the keys it kept lie beside it."""
        return self.root / "scan" / f"{source}-{number:06d}.json"

    def tokens(self, number: int) -> Path:
        """The index of a task's documents, whose ids lie beside it; marks the task as done."""
        return self.root / "tokens" / f"{number:06d}.parquet"

    def plan(self) -> Path:
        """The folder of the final order."""
        return self.root / "plan"

    def shard_mark(self, shard: int) -> Path:
        """Marks a shard as written, and holds its hashes."""
        return self.root / "marks" / f"{shard:05d}.json"

    def shards(self) -> Path:
        """The folder of the finished shards."""
        return self.root / "set"

    def ordered(self) -> Path:
        """All documents, sorted by key."""
        return self.root / "plan" / "ordered.parquet"

    def spill(self) -> Path:
        """Where the sorting engine puts what does not fit into memory."""
        return self.root / "spill"


@contextmanager
def open_space(out: Path, inputs: object) -> Iterator[Space]:
    """The workspace ``<out>.building`` of a build, locked; it is removed when the block ends without an error.

    ``inputs`` is a JSON value that says what the build depends on. What an earlier build with the same inputs
    finished is kept; what one with others left is removed. ``LockHeld`` when a build is using it now.
    """
    root = out.parent / f"{out.name}.building"
    try:
        root.mkdir(parents=True, exist_ok=True)
        handle = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as exc:
        raise ConfigError(f"{root} cannot be used: {exc.strerror}; a build works beside its output") from exc
    try:
        _lock(handle, root)
        _prepare(root, json.dumps(inputs, sort_keys=True).encode())
        yield Space(root)
        (root / _INPUTS).unlink()  # what is removed in part must not look like something to go on with
        shutil.rmtree(root)
        sync_directory(root.parent)
    finally:
        os.close(handle)


def _lock(handle: int, root: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        raise LockHeld(f"another build is working in {root}; wait for it, or build to another directory") from exc
    if not (root / _LOCK).exists():
        raise LockHeld(f"another build has just finished in {root}; start again")


def _prepare(root: Path, inputs: bytes) -> None:
    path = root / _INPUTS
    if not path.exists() or path.read_bytes() != inputs:
        path.unlink(missing_ok=True)
        for folder in _FOLDERS:
            shutil.rmtree(root / folder, ignore_errors=True)
    shutil.rmtree(root / "spill", ignore_errors=True)
    for folder in _FOLDERS:
        (root / folder).mkdir(exist_ok=True)
    write_whole(path, inputs)


def place(space: Space, out: Path, manifest: ShardManifest, record: BuildRecord) -> None:
    """Move a finished set to ``out``.

    The manifest of an earlier set goes first and the new one comes last, so a directory with a manifest is
    whole. Shards of an earlier, larger set are removed; every other file in ``out`` stays.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / MANIFEST_NAME).unlink(missing_ok=True)
    sync_directory(out)
    names = {shard_name(shard) for shard in range(manifest.n_shards)}
    for name in sorted(names):
        if (source := space.shards() / name).exists():  # else an earlier run moved it
            source.replace(out / name)
    for name in os.listdir(out):
        if is_shard_name(name) and name not in names:
            (out / name).unlink()
    write_whole(out / RECORD_NAME, record.to_bytes())
    sync_directory(out)
    write_whole(out / MANIFEST_NAME, manifest.to_bytes())
    sync_directory(out)
