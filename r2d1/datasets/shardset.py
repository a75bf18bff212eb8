"""Shard sets as NumPy arrays: written from arrays of token ids, read memory-mapped."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from r2d1.datasets.layout import MANIFEST_NAME, MAX_TOKEN_ID, ShardLayout, is_shard_name, shard_name
from r2d1.datasets.manifest import ShardManifest, TokenizerPin, parse_manifest
from r2d1.datasets.shards import ShardDigest, make_manifest, sync_directory, write_shard, write_whole
from r2d1.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: Shards kept mapped at once. A map holds a file descriptor, and a set may have 100,000 shards.
_MAPS = 64


class ShardSetWriter:
    """Writes a new shard set from rows of token ids; it exists once ``finish`` has written its manifest."""

    def __init__(self, directory: str | os.PathLike[str], layout: ShardLayout) -> None:
        """``layout`` comes from ``plan_layout``. ``ConfigError`` when the directory holds a set or shards already."""
        self.directory = Path(directory)
        self.layout = layout
        self.directory.mkdir(parents=True, exist_ok=True)
        taken = sorted(n for n in os.listdir(self.directory) if n == MANIFEST_NAME or is_shard_name(n))
        if taken:
            raise ConfigError(f"{self.directory} holds {taken[0]} already; a set is written to a directory of its own")
        self._digests: list[ShardDigest] = []
        self._rows = np.empty((layout.samples_per_shard, layout.seq_len + 1), dtype="<u2")
        self._filled = 0

    def append(self, rows: ArrayLike) -> None:
        """Add rows, shape ``(n, seq_len + 1)`` or one row; ``FormatError`` for another shape or an id over 65535."""
        array = np.atleast_2d(np.asarray(rows))
        first = len(self._digests) * self.layout.samples_per_shard + self._filled
        _check_rows(array, self.layout, first)
        while len(array):
            taken = array[: len(self._rows) - self._filled]
            self._rows[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            array = array[len(taken) :]
            if self._filled == len(self._rows):
                self._flush(self._filled)

    def finish(self, tokenizer: TokenizerPin, *, extra: Mapping[str, object] | None = None) -> ShardManifest:
        """Drop the rows that do not fill a unit, write the last shard and then the manifest.

        ``extra`` gets ``dropped_tail_samples`` when it does not say it itself.
        """
        tail = self._filled % self.layout.unit
        if self._filled - tail:
            self._flush(self._filled - tail)
        told = {"dropped_tail_samples": tail, **(extra or {})}
        manifest = make_manifest(self._digests, self.layout, tokenizer=tokenizer, extra=told)
        write_whole(self.directory / MANIFEST_NAME, manifest.to_bytes())
        sync_directory(self.directory)
        return manifest

    def _flush(self, rows: int) -> None:
        shard = len(self._digests)
        data = memoryview(self._rows[:rows].tobytes())
        first_row = shard * self.layout.samples_per_shard
        self._digests.append(write_shard(self.directory / shard_name(shard), data, self.layout, first_row=first_row))
        self._filled = 0


def _check_rows(array: NDArray[Any], layout: ShardLayout, first_row: int) -> None:
    if array.ndim != 2 or array.shape[1] != layout.seq_len + 1 or array.dtype.kind not in "ui":
        raise FormatError(
            f"row {first_row}: rows are integers of shape (n, {layout.seq_len + 1}),"
            f" not {array.dtype} of shape {array.shape}"
        )
    if array.size and (array.max() > MAX_TOKEN_ID or array.min() < 0):
        bad = int(np.argmax((array > MAX_TOKEN_ID).any(axis=1) | (array < 0).any(axis=1)))
        raise FormatError(f"row {first_row + bad} has a token id outside of 0 to {MAX_TOKEN_ID}")


class ShardSet:
    """A shard set on disk, read through memory maps; it can be pickled, and maps anew in every process.

    Opening checks the manifest and the size of every shard, not the hashes: that is ``verify_shard_set``.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """``FormatError`` when the manifest is malformed, or a shard is missing or of another size."""
        self.directory = Path(directory)
        self.manifest: ShardManifest = parse_manifest(_read_manifest(self.directory), str(self._path(MANIFEST_NAME)))
        self._maps: OrderedDict[int, NDArray[np.uint16]] = OrderedDict()
        problems = [text for shard in range(self.manifest.n_shards) if (text := self._size_problem(shard))]
        if problems:
            raise FormatError(f"{self.directory}: " + "; ".join(problems))

    def __len__(self) -> int:
        return self.manifest.n_samples

    def __getitem__(self, row: int) -> NDArray[np.uint16]:
        """Row ``row`` as a read-only array of ``seq_len + 1`` ids, shape ``(seq_len + 1,)``, backed by the file."""
        at = row + len(self) if row < 0 else row
        if not 0 <= at < len(self):
            raise IndexError(f"row {row} of a set with {len(self)} rows")
        shard, place = divmod(at, self.manifest.samples_per_shard)
        found: NDArray[np.uint16] = self.shard(shard)[place]
        return found

    def __iter__(self) -> Iterator[NDArray[np.uint16]]:
        for shard in range(self.manifest.n_shards):
            yield from self.shard(shard)

    def shard(self, shard: int) -> NDArray[np.uint16]:
        """A whole shard as a read-only array of shape ``(rows, seq_len + 1)``, backed by the file."""
        if shard in self._maps:
            self._maps.move_to_end(shard)
            return self._maps[shard]
        shape = (self.manifest.shard_rows(shard), self.manifest.seq_len + 1)
        found = np.memmap(self._path(shard_name(shard)), dtype="<u2", mode="r", shape=shape)
        self._maps[shard] = found
        if len(self._maps) > _MAPS:
            self._maps.popitem(last=False)
        return found

    def unit(self, unit_id: int) -> NDArray[np.uint16]:
        """The rows of a unit, shape ``(unit, seq_len + 1)``."""
        if not 0 <= unit_id < self.manifest.n_units:
            raise IndexError(f"unit {unit_id} of a set with {self.manifest.n_units} units")
        per_shard = self.manifest.samples_per_shard // self.manifest.unit
        shard, place = divmod(unit_id, per_shard)
        found: NDArray[np.uint16] = self.shard(shard)[place * self.manifest.unit : (place + 1) * self.manifest.unit]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self.directory),)

    def _path(self, name: str) -> Path:
        return self.directory / name

    def _size_problem(self, shard: int) -> str | None:
        path = self._path(shard_name(shard))
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return f"{path.name} is missing"
        wanted = self.manifest.shard_size(shard)
        return None if size == wanted else f"{path.name} has {size} bytes, not {wanted}"


def _read_manifest(directory: Path) -> bytes:
    try:
        return (directory / MANIFEST_NAME).read_bytes()
    except OSError as exc:
        raise FormatError(f"{directory / MANIFEST_NAME} cannot be read: {exc.strerror}") from exc
