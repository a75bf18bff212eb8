"""Field case 48: temporary files of the writer are published. Ours are left out, listed, and break no verify."""

from __future__ import annotations

import json

from r2d1 import write_sidecar
from tests.checkpoints import files_of, write_checkpoint, write_files
from tests.remote_ends import open_courier, open_fetcher

REAL = {"model.pt": b"weights", "config.json": b"{}", "sub/rank-0.pt": b"0"}
TEMPORARY = {"model.pt.tmp": b"half", "tmp-checkpoint-7/model.pt": b"half", ".lock": b"", "sub/.~rank-0.pt": b"half"}


async def test_temporaries_are_left_out_and_listed(s3, tmp_path):
    """Neither keys nor manifest hold them, the manifest says what was left out, and the pulled folder verifies."""
    folder = tmp_path / "up" / "chk_7"
    write_files(folder, REAL | TEMPORARY)
    write_sidecar(folder, epoch=7)
    async with open_courier(s3) as courier:
        shipped = await courier.ship(folder, "job")
    assert shipped.total_bytes == sum(map(len, REAL.values()))
    manifest = json.loads(s3.get("jobs/job/chk_7/r2d1.manifest.json"))
    assert [entry["path"] for entry in manifest["files"]] == sorted(REAL)
    assert manifest["extra"] == {"left_out": sorted(TEMPORARY)}
    assert not any(key.endswith(tuple(TEMPORARY)) for key in s3.keys("jobs/"))
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/chk_7", tmp_path / "down")
        assert files_of(info.local_dir) == REAL
        assert (await fetcher.pull("r2://jobs/job/chk_7", tmp_path / "down")).cached


async def test_temporaries_that_are_named_are_meant(s3, tmp_path):
    """A file that ``files`` names is shipped, whatever it is called."""
    folder = write_checkpoint(tmp_path / "up", "chk_7", 7, REAL | TEMPORARY, files=["model.pt", ".lock"])
    async with open_courier(s3) as courier:
        await courier.ship(folder, "job")
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/chk_7", tmp_path / "down")
    assert files_of(info.local_dir) == REAL | {".lock": b""}
