"""Field case 79: a truncated safetensors file is shipped as good. What the sidecar says of it is compared first."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from r2d1 import write_sidecar
from r2d1.errors import FlushError
from r2d1.events import Committed
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import Told, bodies_sent, open_courier

NAME = "model.safetensors"


def safetensors(numbers: int = 500_000) -> bytes:
    """One tensor as the format has it: the header's length, the header, the bytes."""
    tensor = {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}
    header = json.dumps({"weight": tensor}).encode()
    return len(header).to_bytes(8, "little") + header + os.urandom(4 * numbers)


GOOD = safetensors()
CUT = GOOD[: -(1 << 20)]
BAD_HEADER = (len(GOOD) + 1).to_bytes(8, "little") + GOOD[8:]


def described(*, digest: bool) -> list[dict[str, object]]:
    entry = {"path": NAME, "size": len(GOOD)}
    return [entry | ({"sha256": hashlib.sha256(GOOD).hexdigest()} if digest else {})]


@pytest.mark.parametrize(
    ("data", "digest", "why"),
    [
        (CUT, False, f"has {len(CUT)} bytes, the sidecar says {len(GOOD)}"),
        (CUT, True, f"has {len(CUT)} bytes, the sidecar says {len(GOOD)}"),
        (BAD_HEADER, True, "has another SHA-256 than the sidecar says"),
    ],
)
async def test_not_what_the_sidecar_says(s3, tmp_path, data, digest, why):
    """The checkpoint fails by name and reason and nothing of it is sent; written again as described, it is shipped."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {NAME: data}, files=described(digest=digest))
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job", settle_timeout=0.2)
        with pytest.raises(FlushError, match=NAME) as caught:
            await courier.flush()
        assert why in str(caught.value)
        assert bodies_sent(s3) == []
        write_checkpoint(tmp_path, "chk_1", 1, {NAME: GOOD}, files=described(digest=digest))
        await told.first(Committed)
    assert s3.get(f"jobs/job/chk_1/{NAME}") == files_of(folder)[NAME] == GOOD


async def test_cut_after_the_promise(s3, tmp_path):
    """A plain sidecar names no sizes, but a file that changed after it is not what it promised."""
    folder = tmp_path / "chk_1"
    write_checkpoint(tmp_path, "chk_1", 1, {NAME: GOOD})
    sidecar = write_sidecar(folder, epoch=1)
    cut_later(folder / NAME, sidecar)
    async with open_courier(s3, drain_timeout=0.1) as courier:
        await courier.watch(tmp_path, "job", settle_timeout=0.2)
        with pytest.raises(FlushError, match="is newer than the sidecar"):
            await courier.flush()
        assert bodies_sent(s3) == []
        (folder / NAME).write_bytes(GOOD)
        write_sidecar(folder, epoch=1)
        await courier.flush()
    assert s3.get(f"jobs/job/chk_1/{NAME}") == GOOD


def cut_later(path: Path, sidecar: Path) -> None:
    """Cut a file a second after the sidecar was written, whatever the clock's steps."""
    os.truncate(path, len(CUT))
    when = sidecar.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(when, when))
