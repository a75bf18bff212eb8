"""A real model goes up and comes back byte for byte: over moto's server, and over the doubles of R2 and D1."""

from __future__ import annotations

import filecmp
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from r2d1 import AsyncCourier, AsyncFetcher, Settings, write_sidecar
from r2d1.digest import digest_of
from r2d1.events import RowWritten
from r2d1.testing import Rules, S3Double
from r2d1.testing import d1 as d1_faults
from tests.remote_ends import Hasty, Told, assert_nothing_left, open_courier, open_fetcher

HIDDEN, NESTED = ".gitattributes", "1_Pooling/config.json"
WEIGHTS = "model.safetensors"


@pytest.fixture
def checkpoint(real_model_dir, tmp_path) -> Path:
    """The model as a trainer's checkpoint: weights of 90 MB, a hidden file, a sub-folder, and its sidecar."""
    folder = tmp_path / "checkpoints" / "chk_0042"
    shutil.copytree(real_model_dir, folder)
    write_sidecar(folder, epoch=42, metadata={"loss": 0.043, "note": "ünïcode; 'quoted' \"twice\""}, timestamp=1748e6)
    return folder


@pytest.fixture
def moto() -> Iterator[Settings]:
    """moto's server on a thread of this process, with a bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    s3_backends["123456789012"]["aws"].create_bucket("real-model", "us-east-1")
    host, port = server.get_host_and_port()
    yield Settings.from_env(
        environ={
            "R2D1_R2_ENDPOINT_URL": f"http://{host}:{port}",
            "R2D1_R2_BUCKET": "real-model",
            "R2D1_R2_ACCESS_KEY": "any",
            "R2D1_R2_SECRET_KEY": "thing",
        }
    )
    server.stop()
    s3_backends["123456789012"]["aws"].reset()


def assert_same(one: Path, other: Path) -> None:
    """Both folders hold the same files with the same bytes, hidden ones and sub-folders included."""
    names = sorted(path.relative_to(one).as_posix() for path in one.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file())
    assert {HIDDEN, NESTED, WEIGHTS} <= set(names)
    assert filecmp.cmpfiles(one, other, names, shallow=False) == (names, [], [])
    assert one.with_name("chk_0042.json").read_bytes() == other.with_name("chk_0042.json").read_bytes()


async def test_over_moto(moto, checkpoint, tmp_path):
    """moto answers many things in its own way (ETags of parts, checks, status codes); the bytes are the same."""
    async with AsyncCourier(moto, rng=Hasty(), observer=Told()) as courier:
        await courier.watch(checkpoint.parent, "my_run")
        report = await courier.flush()
    assert [shipped.total_bytes > 90_000_000 for shipped in report.shipped] == [True]
    async with AsyncFetcher(moto, rng=Hasty(), observer=Told()) as fetcher:
        info = await fetcher.pull("r2://jobs/my_run/latest", tmp_path / "down")
        again = await fetcher.pull("r2://jobs/my_run/latest", tmp_path / "down")
    assert (info.epoch, info.verified, info.cached, again.cached) == (42, True, False, True)
    assert_same(checkpoint, info.local_dir)


async def test_over_the_doubles_with_d1_in_trouble(d1, checkpoint, tmp_path):
    """R2 with all its rules, D1 with its errors: one right row in the end, and D1's silence keeps nobody from pulling."""
    d1.script(
        d1_faults.html(502),
        d1_faults.refused(500, 7500, "internal error"),
        d1_faults.refused(400, 7500, "D1_ERROR: Network connection lost."),
        d1_faults.lost_reply(),
        d1_faults.statement_failed("D1 DB storage operation exceeded timeout which caused object to be reset."),
        d1_faults.dropped(),
        d1_faults.cut(30),
    )
    told = Told()
    with S3Double(rules=Rules.r2()) as s3:
        async with open_courier(s3, d1, observer=told) as courier:
            await courier.watch(checkpoint.parent, "my_run")
            report = await courier.flush()
        assert report.rows_owed == ()
        assert len(told.of(RowWritten)) == 1
        (row,) = d1.sql("SELECT * FROM checkpoints")
        assert (
            json.loads(row.pop("metadata"))
            == json.loads(checkpoint.with_name("chk_0042.json").read_bytes())["metadata"]
        )
        assert row == {
            "job_id": "my_run",
            "name": "chk_0042",
            "epoch": 42,
            "timestamp": 1748e6,
            "r2_prefix": "jobs/my_run/chk_0042",
        }
        assert_nothing_left(s3, checkpoint.parent)
        manifest = json.loads(s3.get("jobs/my_run/chk_0042/r2d1.manifest.json"))
        digests = {entry["path"]: entry["digest"] for entry in manifest["files"]}
        assert digests[WEIGHTS] == digest_of((checkpoint / WEIGHTS).read_bytes())
        d1.always(d1_faults.refused(401, 10000, "Authentication error"))
        warned = Told()
        async with open_fetcher(s3, d1, observer=warned) as fetcher:
            info = await fetcher.pull("r2://jobs/my_run/latest", tmp_path / "down")
        assert info.verified
        assert_same(checkpoint, info.local_dir)
        assert [text for text in warned.notices("warning") if "the bucket alone decides" in text]
