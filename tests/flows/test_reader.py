"""A reader that looks after every single request sees nothing, all of the old, or all of the new: never a blend."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from r2d1.digest import digest_of, hex_of
from r2d1.testing import RequestRecord, S3Double
from tests.checkpoints import MIB, write_checkpoint
from tests.remote_ends import assert_nothing_left, open_courier

JOB, NAME = "job", "slot_0"
SIZES = {"model.bin": 150 * MIB, "optimizer.bin": 49 * MIB, "sub/state.bin": MIB, "config.json": 100}


@dataclass
class Reader:
    """Follows head, manifest and objects as a pull does, past the socket; digests are taken once an object."""

    s3: S3Double
    seen: list[int] = field(default_factory=list)
    looks: int = 0
    _digests: dict[tuple[str, str], str] = field(default_factory=dict)

    def look(self, record: RequestRecord) -> None:
        """What a reader finds now: an epoch, or 0 for nothing; a failure here is the double's own."""
        self.looks += 1
        epoch = self._look()
        if not self.seen or self.seen[-1] != epoch:
            self.seen.append(epoch)

    def _look(self) -> int:
        model = self.s3.model
        head = model.stored(f"jobs/{JOB}/.r2d1/heads/{NAME}.json")
        if head is None:
            return 0
        fields = json.loads(head.blob.read())
        raw = model.stored(f"{fields['prefix']}/r2d1.manifest.json").blob.read()
        assert digest_of(raw) == fields["manifest"]
        manifest = json.loads(raw)
        assert manifest["epoch"] == fields["epoch"]
        assert {entry["path"] for entry in manifest["files"]} == set(SIZES)
        for entry in manifest["files"]:
            assert self._digest(f"{fields['prefix']}/{entry['path']}") == entry["digest"], entry["path"]
        assert self._digest(f"{fields['prefix']}/{NAME}.json") == manifest["sidecar"]["digest"]
        return fields["epoch"]

    def _digest(self, key: str) -> str:
        stored = self.s3.model.stored(key)
        assert stored is not None, f"{key} is not there"
        known = (key, stored.etag)
        if known not in self._digests:
            self._digests[known] = f"blake3:{hex_of(stored.blob.read())}"
        return self._digests[known]


def write_version(directory: Path, epoch: int) -> Path:
    """200 MB that no other version has."""
    return write_checkpoint(directory, NAME, epoch, {path: os.urandom(size) for path, size in SIZES.items()})


async def test_a_look_after_every_request(s3, tmp_path):
    """While 200 MB are shipped, and shipped again with other bytes, each look finds one whole version, in order."""
    reader = Reader(s3)
    s3.after_request = reader.look
    async with open_courier(s3) as courier:
        for epoch in (1, 2):
            await courier.ship(write_version(tmp_path, epoch), JOB)
    assert reader.seen == [0, 1, 2]
    assert reader.looks == len(s3.requests) > 50
    assert_nothing_left(s3, tmp_path)
