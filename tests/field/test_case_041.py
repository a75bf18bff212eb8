"""Field case 41 (a): a late step wins because it finished last. Ours is ordered by epoch, whenever it lands."""

from __future__ import annotations

import anyio
import pytest

from r2d1.events import Committed
from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, open_courier, open_fetcher


@pytest.mark.parametrize("has_d1", [False, True], ids=["R2 only", "with D1"])
async def test_a_late_finish_changes_nothing(s3, d1, tmp_path, has_d1):
    """Step 200 hangs while step 300 is shipped: latest is 300 before and after 200 lands."""
    catalog = d1 if has_d1 else None
    gate, told = Gate(), Told()
    s3.faults.add(Fault(When(method="PUT", key="*/chk_200/a.bin"), Hold(gate)))
    async with open_courier(s3, catalog, observer=told) as courier, open_fetcher(s3, catalog) as fetcher:
        await courier.watch(tmp_path, "job")
        write_checkpoint(tmp_path, "chk_200", 200, {"a.bin": b"200"})
        await anyio.sleep(0)
        await gate.arrived.wait()
        write_checkpoint(tmp_path, "chk_300", 300, {"a.bin": b"300"})
        assert (await told.first(Committed)).epoch == 300
        before = await fetcher.pull("r2://jobs/job/latest", tmp_path.parent / "before")
        gate.release()
        await courier.flush()
        after = await fetcher.pull("r2://jobs/job/latest", tmp_path.parent / "after")
    assert [event.epoch for event in told.of(Committed)] == [300, 200]
    assert (before.epoch, after.epoch) == (300, 300)
