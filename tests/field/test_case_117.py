"""Field case 117: checkpoints come faster than they can go. The order is the one asked for, and what waits is named."""

from __future__ import annotations

import pytest

from r2d1.errors import FlushTimeout
from r2d1.events import Committed, Notice, ShipStarted
from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, open_courier

NAMES = [f"chk_{epoch:02d}" for epoch in range(1, 11)]


@pytest.fixture
def gates(s3):
    """Every file waits at a gate of its own: the link is slow, and the trainer is not."""
    gates = {name: Gate() for name in NAMES}
    for name, gate in gates.items():
        s3.faults.add(Fault(When(operation="PutObject", key=f"*/{name}/a.bin"), Hold(gate), times=None))
    yield gates
    for gate in gates.values():
        gate.release()


async def fill(courier, told: Told, directory, **options) -> None:
    """Ten checkpoints, the next as soon as the one before is queued; four of them are under way, six wait."""
    await courier.watch(directory, "job", poll_every=0.02, **options)
    for epoch, name in enumerate(NAMES, start=1):
        write_checkpoint(directory, name, epoch, {"a.bin": name.encode()})
        if epoch <= 4:
            await told.until(lambda epoch=epoch: len(told.of(ShipStarted)) == epoch)
    with pytest.raises(FlushTimeout) as caught:
        await courier.flush(timeout=0.5)
    assert set(caught.value.unfinished) == {f"job/{name}" for name in NAMES}
    status = courier.status()
    assert len(status.in_flight) == 4
    assert sorted(status.queued) == [f"job/{name}" for name in NAMES[4:]]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_the_order_is_the_one_asked_for(s3, gates, tmp_path, newest_first):
    """In order of epochs, or the newest before all that wait, which are listed; in the end all are there."""
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await fill(courier, told, tmp_path, newest_first=newest_first)
        for count in range(5, 15):  # one ends, and so the next one begins
            gates[told.of(ShipStarted)[count - 5].name].release()
            await told.until(lambda count=count: len(told.of(ShipStarted)) >= min(count, len(NAMES)))
        await courier.flush()
    begun = [event.name for event in told.of(ShipStarted)]
    waited = NAMES[4:]
    assert begun == NAMES[:4] + (waited[::-1] if newest_first else waited)
    assert sorted(event.name for event in told.of(Committed)) == NAMES
    passed = [event.text for event in told.of(Notice) if event.text.startswith(f"{NAMES[-1]}: goes first")]
    assert bool(passed) is newest_first
    assert all(name in passed[0] for name in waited[:-1] if newest_first)


async def test_a_backlog_that_is_found_at_the_start(s3, gates, tmp_path):
    """After a restart the newest is the first to go: it is the one that a lost machine would be asked for."""
    for epoch, name in enumerate(NAMES, start=1):
        write_checkpoint(tmp_path, name, epoch, {"a.bin": name.encode()})
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job", newest_first=True)
        await told.until(lambda: len(told.of(ShipStarted)) == 4)
        assert {event.name for event in told.of(ShipStarted)} == set(NAMES[-4:])
        for gate in gates.values():
            gate.release()


async def test_stopped_before_all_could_go(s3, gates, tmp_path):
    """Leaving names everything that is not in the bucket, and the next courier ships it."""
    with pytest.raises(FlushTimeout) as caught:
        async with open_courier(s3, observer=(told := Told()), drain_timeout=0.1) as courier:
            await fill(courier, told, tmp_path, newest_first=True)
    assert all(f"job/{name} unfinished" in str(caught.value) for name in NAMES)
    for gate in gates.values():
        gate.release()
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job")
        report = await courier.flush()
    assert sorted(shipped.name for shipped in report.shipped) == NAMES
