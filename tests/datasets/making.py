"""Small caches, registries and shard sets for the tests, written without the code under test."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.datasets.naive import tree_root

GOLDEN = Path(__file__).with_name("golden")


def write_parquet(path, columns, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options)


def source(**changes):
    return {
        "repo": "example/source",
        "revision": "0" * 40,
        "config": None,
        "files": ["*.parquet"],
        "text_field": "text",
        "licence": "CC0-1.0",
        "role": "pretrain",
        **changes,
    }


def mix(**changes):
    return {
        "components": [["prose", 1.0]],
        "decontam_against": [],
        "holdout": None,
        "seq_len": 8,
        "record": None,
        "tokenizer": "bytes",
        **changes,
    }


def registry(*, sources=None, mixes=None, tokenizers=None, build_records=None):
    return {
        "version": 1,
        "sources": sources or {"prose": source()},
        "mixes": mixes or {"m": mix()},
        "tokenizers": tokenizers or {},
        "build_records": build_records or {},
    }


def write_registry(path, **parts):
    path.write_text(json.dumps(registry(**parts)))
    return path


def sha(data):
    return hashlib.sha256(data).hexdigest()


def write_set(directory, shards, *, seq_len, unit, per_shard, extra=None):
    """A shard set with its manifest, hashed here; ``shards`` are their bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    width = 2 * (seq_len + 1)
    data = b"".join(shards)
    rows = [data[at : at + width] for at in range(0, len(data), width)]
    units = [sha(data[at : at + unit * width]) for at in range(0, len(data), unit * width)]
    hashes = [sha(shard) for shard in shards]
    manifest = {
        "seq_len": seq_len,
        "samples_per_shard": per_shard,
        "n_shards": len(shards),
        "n_samples": len(rows),
        "depth": (len(rows) - 1).bit_length(),
        "merkle_root": tree_root(rows),
        "shard_sha256s": hashes,
        "shard_sha256_root": tree_root(map(bytes.fromhex, hashes)),
        "tokenizer": {"name": "some", "sha256": "ab" * 32},
        "unit": unit,
        "unit_sha256s": units,
        "unit_sha256_root": tree_root(map(bytes.fromhex, units)),
        "sample_format": "u16[seq_len+1] token ids",
        "shard_uri_template": "{shard_sha256}",
        "extra": extra or {},
    }
    for number, shard in enumerate(shards):
        (directory / f"shard-{number:05d}.u16").write_bytes(shard)
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=2, sort_keys=True))
    return manifest


def some_shards(count, size):
    """Bytes that look random and are always the same."""
    return [hashlib.shake_128(f"shard {number}".encode()).digest(size) for number in range(count)]


def files_of(directory):
    return {path.name: path.read_bytes() for path in Path(directory).iterdir()}
