"""A small shard set and what its publication looks like from outside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from r2d1.datasets import ShardManifest, parse_manifest
from tests.datasets.making import sha, some_shards, write_set

SEQ_LEN, UNIT, PER_SHARD = 8, 4, 16
UNIT_SIZE = UNIT * 2 * (SEQ_LEN + 1)
SHARD_SIZE = PER_SHARD * 2 * (SEQ_LEN + 1)


@dataclass(frozen=True)
class Made:
    """A set on disk: its directory, the bytes of its shards, its manifest."""

    directory: Path
    shards: list[bytes]
    manifest: ShardManifest

    @property
    def objects(self) -> dict[str, bytes]:
        """What is published: key below the prefix → bytes."""
        shards = {sha(data): data for data in self.shards}
        documents = {
            name: (self.directory / name).read_bytes()
            for name in ("build_record.json", "manifest.json")
            if (self.directory / name).exists()
        }
        return {**shards, **documents}

    def unit(self, number: int) -> bytes:
        """The bytes of a unit."""
        return b"".join(self.shards)[number * UNIT_SIZE : (number + 1) * UNIT_SIZE]


def make_set(directory: Path, shards: int = 5, *, last: int = PER_SHARD, with_record: bool = False) -> Made:
    """A set of small shards, the last with ``last`` rows; with a build record when asked for."""
    datas = some_shards(shards, SHARD_SIZE)
    datas[-1] = datas[-1][: last * SHARD_SIZE // PER_SHARD]
    extra = {"dropped_tail_samples": 0, "mix_id": "m", "removed_ids_sha256": sha(b"")} if with_record else None
    written = write_set(directory, datas, seq_len=SEQ_LEN, unit=UNIT, per_shard=PER_SHARD, extra=extra)
    if with_record:
        names = ("merkle_root", "depth", "n_samples", "sample_format", "shard_uri_template", "shard_sha256_root")
        fragment = {name: written[name] for name in (*names, "unit_sha256_root")}
        fragment |= {"assign_unit": UNIT, "source": {"mix_id": "m", "registry_sha256": "cd" * 32}}
        record = {"fragment": fragment, "removed_ids": []}
        (directory / "build_record.json").write_text(json.dumps(record, indent=1, sort_keys=True))
    return Made(directory, datas, parse_manifest((directory / "manifest.json").read_bytes()))
