"""Field case 78: damage on the way up. A store that checks refuses it; one that does not is found out by reading."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from r2d1.errors import IntegrityError
from r2d1.events import Retried
from r2d1.testing import Fault, FlipRequest, Rules, S3Double, When
from tests.checkpoints import files_of, write_checkpoint
from tests.cli.shell import answer, run
from tests.remote_ends import Told, open_courier, open_fetcher

PART = 64 << 10
THIRD = Fault(When(method="PUT", key="*.bin", nth=3), FlipRequest(at=100))


@pytest.fixture
def careless():
    """A store that takes whatever arrives."""
    with S3Double(rules=replace(Rules.lenient(), verify_bodies=False)) as double:
        yield double


@pytest.mark.parametrize("shape", ["parts", "files"])
async def test_a_store_that_checks(s3, tmp_path, shape):
    """The third body is refused and sent again, once; what is stored is right."""
    data = os.urandom(6 * PART)
    pieces = {f"{n}.bin": data[n * PART : (n + 1) * PART] for n in range(6)}
    contents = {"big.bin": data} if shape == "parts" else pieces
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, contents)
    s3.faults.add(THIRD)
    told = Told()
    async with open_courier(s3, part_size=PART, observer=told) as courier:
        await courier.ship(folder, "job")
    assert s3.faults.fired() == 1
    assert len(told.of(Retried)) == 1
    assert len([record for record in s3.requests if record.method == "PUT" and record.key.endswith(".bin")]) == 7
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == contents


async def ship_damaged(double, tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {f"{n}.bin": os.urandom(PART) for n in range(6)})
    double.faults.add(THIRD)
    async with open_courier(double, tuning={"concurrency": 1}) as courier:
        await courier.ship(folder, "job")
    assert double.faults.fired() == 1


async def test_a_store_that_does_not_check_and_a_pull(careless, tmp_path):
    """The digests are those of the bytes that were read: a pull never gives out the damaged ones."""
    await ship_damaged(careless, tmp_path)
    async with open_fetcher(careless) as fetcher:
        with pytest.raises(IntegrityError, match=r"2\.bin"):
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert not (tmp_path / "down" / "chk_1").exists()


@pytest.fixture
async def damaged(careless, tmp_path):
    await ship_damaged(careless, tmp_path)
    return careless


def test_a_store_that_does_not_check_and_a_verify(damaged):
    """``verify`` sees names and sizes and says that it read nothing; ``--deep`` names the file alone."""
    shallow = run("verify", "r2://jobs/job/latest", env=damaged.env())
    assert shallow.exit_code == 0
    assert "names and sizes only; --deep reads the bytes" in shallow.stdout
    deep = run("verify", "r2://jobs/job/latest", "--deep", "--json", env=damaged.env())
    assert deep.exit_code == 1
    (problem,) = answer(deep)["problems"]
    assert problem.startswith("'2.bin': bytes 0 to 65536 are damaged: expected ")
