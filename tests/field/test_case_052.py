"""Field case 52: too many bound parameters. D1 takes 100 a statement; many rows and many files are no trouble."""

from __future__ import annotations

import anyio
import pytest

from r2d1 import AsyncCourier, Settings
from r2d1.remote import Remote
from r2d1.testing import MemoryStore
from tests.checkpoints import write_checkpoint
from tests.cli.shell import answer, run
from tests.remote_ends import open_courier

COUNT = 130


@pytest.fixture
def bucket(s3, tmp_path):
    """A bucket that holds 130 checkpoints of one job; filled without a socket, which would take most of the time."""

    async def ship() -> None:
        async with AsyncCourier(Settings(), given=Remote(MemoryStore(s3.model), None)) as courier:
            for epoch in range(1, COUNT + 1):
                await courier.ship(write_checkpoint(tmp_path / "up", f"chk_{epoch:04d}", epoch, {"a.bin": b"a"}), "job")

    anyio.run(ship)
    return s3


def names(d1) -> list[object]:
    return [row["name"] for row in d1.sql("SELECT name FROM checkpoints ORDER BY epoch")]


def test_rows_of_many_checkpoints_written_and_removed(bucket, d1):
    """130 rows are written by one command; 120 are deleted while D1 is away, and their rows go in a few calls as well."""
    env = {**bucket.env(), **d1.settings_env()}
    result = run("reindex", "r2://jobs/job", env=env)
    assert result.exit_code == 0, result.stderr
    assert names(d1) == [f"chk_{epoch:04d}" for epoch in range(1, COUNT + 1)]
    assert run("rm", "r2://jobs/job", "--after", "10", env=bucket.env()).exit_code == 0
    result = run("reindex", "r2://jobs/job", env=env)
    assert result.exit_code == 0, result.stderr
    assert names(d1) == [f"chk_{epoch:04d}" for epoch in range(1, 11)]
    assert {request.status for request in d1.requests} == {200}
    assert len(d1.requests) < 30


async def test_a_checkpoint_of_five_hundred_files(s3, d1, tmp_path):
    """It is one row, whatever the number of its files."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {f"{n % 9}/{n}.bin": b"%d" % n for n in range(500)})
    async with open_courier(s3, d1) as courier:
        await courier.ship(folder, "job")
    assert names(d1) == ["chk_1"]
    assert {request.status for request in d1.requests} == {200}


def test_a_thousand_rows_are_read(s3, d1, tmp_path):
    """Of a thousand rows that D1 lists only one has a checkpoint in the bucket, the oldest: it is found."""
    env = {**s3.env(), **d1.settings_env()}
    folder = write_checkpoint(tmp_path / "up", "chk_0000", 0, {"a.bin": b"a"})
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    d1.sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999) "
        "INSERT INTO checkpoints (job_id, name, epoch, timestamp, r2_prefix, metadata) "
        "SELECT 'job', 'chk_' || i, i, i, 'jobs/job/chk_' || i, '{}' FROM n"
    )
    assert answer(run("status", "--job-id", "job", "--json", env=env))["newest"]["epoch"] == 0
    pulled = answer(run("pull", "r2://jobs/job/latest", "--dest", tmp_path / "down", "--json", env=env))
    assert (pulled["name"], pulled["epoch"]) == ("chk_0000", 0)
