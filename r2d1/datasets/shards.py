"""Shard files: their hashes computed while their bytes pass by, and the manifest that the hashes make."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from r2d1.datasets.layout import MAX_SHARDS, ShardLayout
from r2d1.datasets.manifest import ShardManifest, TokenizerPin
from r2d1.datasets.merkle import MerkleRun, Node, root_of_hashes
from r2d1.errors import ConfigError, FormatError


@dataclass(frozen=True, slots=True)
class ShardDigest:
    """What was found in one shard: its hash, those of its units, and its rows as a run of the Merkle tree."""

    rows: int
    sha256: str
    unit_sha256s: tuple[str, ...]
    nodes: tuple[Node, ...]


def digest_shard(
    blocks: Iterable[bytes | bytearray | memoryview], layout: ShardLayout, *, first_row: int
) -> ShardDigest:
    """Hash a shard given unit by unit; ``first_row`` is the number of its first row in the set."""
    whole = hashlib.sha256()
    tree = MerkleRun(first_row)
    units: list[str] = []
    for block in blocks:
        view = memoryview(block)
        whole.update(view)
        units.append(hashlib.sha256(view).hexdigest())
        for at in range(0, len(view), layout.row_size):
            tree.append(view[at : at + layout.row_size])
    return ShardDigest(
        rows=tree.end - first_row, sha256=whole.hexdigest(), unit_sha256s=tuple(units), nodes=tuple(tree.nodes)
    )


def write_shard(path: Path, data: memoryview, layout: ShardLayout, *, first_row: int) -> ShardDigest:
    """Write a shard beside ``path`` and rename it into place once it is on the disk; returns its hashes."""
    size = layout.unit_size
    digest = digest_shard((data[at : at + size] for at in range(0, len(data), size)), layout, first_row=first_row)
    write_whole(path, data)
    return digest


def write_whole(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that its name never shows part of it: temporary file, fsync, rename."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_manifest(
    digests: Sequence[ShardDigest], layout: ShardLayout, *, tokenizer: TokenizerPin, extra: Mapping[str, object]
) -> ShardManifest:
    """The manifest of the shards with these hashes, in their order."""
    if not digests:
        raise FormatError("a shard set needs at least one unit of rows")
    if len(digests) > MAX_SHARDS:
        raise ConfigError(f"{len(digests)} shards: their names have room for {MAX_SHARDS}; raise samples_per_shard")
    tree = MerkleRun()
    for digest in digests:
        tree.extend(digest.nodes)
    shards = tuple(digest.sha256 for digest in digests)
    units = tuple(unit for digest in digests for unit in digest.unit_sha256s)
    return ShardManifest(
        seq_len=layout.seq_len,
        samples_per_shard=layout.samples_per_shard,
        unit=layout.unit,
        n_samples=tree.end,
        merkle_root=tree.root().hex(),
        shard_sha256s=shards,
        shard_sha256_root=root_of_hashes(shards),
        unit_sha256s=units,
        unit_sha256_root=root_of_hashes(units),
        tokenizer=tokenizer,
        extra=extra,
    )
