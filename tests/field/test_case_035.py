"""Field case 35: a body that cannot be sent again on plain http. Ours is read anew for every attempt."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from r2d1.testing import CutRequest, Fault, Rules, S3Double, When
from tests.checkpoints import MIB, files_of, write_checkpoint
from tests.remote_ends import assert_nothing_left, open_courier, open_fetcher
from tests.tls import Authority

PART = MIB


@pytest.fixture(params=["http", "https"])
def wire(request, tmp_path) -> Iterator[S3Double]:
    if request.param == "http":
        with S3Double(rules=Rules.lenient()) as double:
            yield double
        return
    authority = Authority()
    server, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
    server.write_bytes(authority._server_pem)
    ca.write_bytes(authority.pem)
    with S3Double(rules=Rules.lenient(), certfile=server) as double:
        double._certfile = ca  # what clients are told to trust
        yield double


async def test_the_first_attempt_of_every_body_is_cut(wire, tmp_path):
    """Each part and each small file loses its connection in the middle once, and arrives whole at the second try."""
    files = {"big.bin": os.urandom(4 * PART + 1), "small.bin": os.urandom(300_000), "tiny.bin": b"tiny"}
    for part in range(1, 6):
        wire.faults.add(Fault(When(operation="UploadPart", part=part), CutRequest(after=PART // 2 if part < 5 else 0)))
    for name in ("small.bin", "tiny.bin"):
        wire.faults.add(Fault(When(operation="PutObject", key=f"*/{name}"), CutRequest(after=2)))
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    async with open_courier(wire, part_size=PART) as courier:
        await courier.ship(folder, "job")
    assert wire.faults.fired() == 7
    assert wire.url.split(":")[0] in ("http", "https")
    for name, data in files.items():
        assert wire.get(f"jobs/job/chk_1/{name}") == data
    assert_nothing_left(wire, tmp_path / "up")
    async with open_fetcher(wire) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files
