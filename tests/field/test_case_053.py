"""Field case 53: a statement or value too big for D1. 300 KB go as they are, 3 MB stay in the bucket by reference."""

from __future__ import annotations

import json

from tests.checkpoints import files_of, write_checkpoint
from tests.cli.shell import answer, run
from tests.remote_ends import Told, open_courier, open_fetcher

#: What would break a statement that it was pasted into.
NASTY = 'it\'s "quoted"; DROP TABLE checkpoints; -- ?1 :a @b $c \\ %s {} \n\t 🦀 日本 \u2028'


def config(size: int) -> dict[str, object]:
    """Metadata of about so many bytes."""
    text = f"{NASTY}{'x' * 900}"
    return {"config": {f"{number}': {NASTY}": text for number in range(size // len(json.dumps(text).encode()))}}


async def ship(s3, d1, folder) -> list[str]:
    told = Told()
    async with open_courier(s3, d1, observer=told) as courier:
        await courier.ship(folder, "job")
        assert courier.status().rows_owed == ()
    return told.notices("warning")


async def test_three_hundred_kilobytes_of_anything(s3, d1, tmp_path):
    """The row holds it all, bound and never spliced, and a pull gives it back."""
    metadata = config(300_000)
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"a.bin": b"a"}, metadata=metadata)
    assert await ship(s3, d1, folder) == []
    (row,) = d1.sql("SELECT * FROM checkpoints")
    assert 300_000 < len(row["metadata"].encode()) < 1_000_000
    assert json.loads(row["metadata"]) == metadata
    assert all(len(request.body["sql"]) < 2000 for request in d1.requests if "sql" in request.body)
    async with open_fetcher(s3, d1) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert info.metadata == metadata


async def test_three_megabytes(s3, d1, tmp_path):
    """The row names the sidecar in the bucket, a warning says so, and nothing is lost on the way down."""
    metadata = config(3_000_000)
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"a.bin": b"a"}, metadata=metadata)
    (warning,) = await ship(s3, d1, folder)
    assert "stays in the sidecar" in warning
    (row,) = d1.sql("SELECT * FROM checkpoints")
    key = json.loads(row["metadata"])["r2d1_metadata"]
    assert (row["epoch"], row["name"]) == (1, "chk_1")
    assert json.loads(s3.get(key))["metadata"] == metadata
    async with open_fetcher(s3, d1) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert info.metadata == metadata
    assert files_of(info.local_dir) == {"a.bin": b"a"}
    assert (tmp_path / "down" / "chk_1.json").read_bytes() == (tmp_path / "up" / "chk_1.json").read_bytes()


def test_a_row_written_anew_says_the_same(s3, d1, tmp_path):
    """``reindex`` gives the large one the same row as the courier did."""
    env = {**s3.env(), **d1.settings_env()}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"a.bin": b"a"}, metadata=config(3_000_000))
    assert answer(run("ship", folder, "--job-id", "job", "--json", env=env))["status"] == "done"
    before = d1.sql("SELECT * FROM checkpoints")
    d1.sql("DROP TABLE checkpoints")
    assert run("reindex", "r2://jobs/job", env=env).exit_code == 0
    assert d1.sql("SELECT * FROM checkpoints") == before
