"""Field case 29: a permanent refusal retried for ever. Ours tries once or twice, says why, and asks again much later."""

from __future__ import annotations

import pytest

from r2d1.errors import FlushError
from r2d1.events import Committed, ShipFailed
from r2d1.testing import Answer, Fault, When
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, assert_nothing_left, open_courier

REFUSALS = {403: "AccessDenied", 400: "InvalidPart", 507: "InsufficientStorage"}


@pytest.mark.parametrize("status", REFUSALS)
async def test_a_refusal_for_good(s3, tmp_path, status):
    """The body is sent at most twice, the reason is told, nothing more happens until a command asks for it."""
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Answer(status, REFUSALS[status]), times=None))
    write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"a"})
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job", poll_every=0.05)
        failed = await told.first(ShipFailed)
        assert f"{status} {REFUSALS[status]}" in failed.error
        assert failed.again == "in 900 s"
        assert not courier.status().is_healthy
        for _ in range(3):
            await courier._folders[0].scan()
        tries = [record for record in s3.requests if record.key.endswith("/a.bin")]
        assert 1 <= len(tries) <= 2
        with pytest.raises(FlushError, match=REFUSALS[status]):
            await courier.flush()
        assert len([record for record in s3.requests if record.key.endswith("/a.bin")]) <= 2 * len(tries)
        s3.faults.clear()
        await courier.flush()
    assert len(told.of(Committed)) == 1
    assert_nothing_left(s3, tmp_path)
