"""Field case 44, the reader's half: what is removed while somebody pulls it is gone for the reader, never half there."""

from __future__ import annotations

import os

import anyio
import pytest

from r2d1.errors import R2D1Error
from r2d1.testing import Answer, Fault, Gate, Hold, When
from tests.checkpoints import files_of, write_checkpoint
from tests.cli.shell import finished
from tests.remote_ends import PATIENCE_S, open_courier, open_fetcher

SIZE = 300 << 10  # too large to be held in memory: ranges


@pytest.fixture
def env(s3, d1):
    return {**s3.env(), **d1.settings_env()}


async def ship_three(s3, d1, directory):
    made = [write_checkpoint(directory, f"chk_{n}", n, {"a.bin": os.urandom(SIZE)}) for n in (100, 200, 300)]
    async with open_courier(s3, d1) as courier:
        for folder in made:
            await courier.ship(folder, "job")
        await courier.flush()
    return made


async def test_a_reader_ends_with_a_clear_error_and_no_half_folder(s3, d1, env, tmp_path):
    """A pull that is slow while ``rm`` runs says so and what is newest now, and leaves no final folder; the next one
    brings the newest that is left."""
    made = await ship_three(s3, d1, tmp_path / "up")
    gate = Gate()
    s3.faults.add(Fault(When(operation="GetObject", key="jobs/job/chk_300/a.bin"), Hold(gate)))
    dest = tmp_path / "down"
    async with open_fetcher(s3, d1) as fetcher, anyio.create_task_group() as tasks:

        async def pull() -> None:
            with pytest.raises(R2D1Error, match="chk_300 was deleted while it was being pulled; newest now is chk_200"):
                await fetcher.pull("r2://jobs/job/chk_300", dest)

        tasks.start_soon(pull)
        with anyio.fail_after(PATIENCE_S):
            await gate.arrived.wait()
        removed = await anyio.to_thread.run_sync(
            lambda: finished("rm", "r2://jobs/job/chk_300", env=env, home=tmp_path)
        )
        assert removed.exit_code == 0, removed.stderr
        gate.release()
    assert not (dest / "chk_300").exists()
    async with open_fetcher(s3, d1) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", dest)
    assert info.epoch == 200
    assert files_of(info.local_dir) == files_of(made[1])


async def test_what_cannot_be_read_is_not_taken_for_deleted(s3, d1, tmp_path):
    """A manifest that cannot be read for once is an error of the pull: nothing older is brought in its place."""
    await ship_three(s3, d1, tmp_path / "up")
    refused = Fault(When(operation="GetObject", key="jobs/job/chk_300/*manifest*"), Answer(403, "AccessDenied"))
    s3.faults.add(refused)
    async with open_fetcher(s3, d1) as fetcher:
        with pytest.raises(R2D1Error, match="AccessDenied"):
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert info.epoch == 300
