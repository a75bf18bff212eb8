"""Field case 28: throttling makes it worse. Ours slows the whole client, as long as the server asks, and then goes on."""

from __future__ import annotations

import os
import random

import anyio

from r2d1.events import Retried
from r2d1.testing import Answer, Fault, S3Double, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import Told, assert_nothing_left, open_courier, open_fetcher

CONCURRENCY = 4


def data_puts(s3: S3Double) -> list[float]:
    """When each PUT of a file arrived, in order."""
    return sorted(r.at for r in s3.requests if r.operation == "PutObject" and r.key.endswith(".bin"))


async def test_one_refusal_slows_everything(s3, tmp_path):
    """After one 503 with ``Retry-After: 1`` only what was under way still arrives within that second.

    40 files would be there by then; all of them are in the end, and the waits are the server's own.
    """
    files = {f"{number:02d}.bin": os.urandom(50) for number in range(40)}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    refused = []
    first = When(key="*.bin", matches=lambda call: call.operation == "PutObject", nth=CONCURRENCY)
    s3.faults.add(Fault(first, Answer(503, "SlowDown", retry_after=1)))
    s3.after_request = lambda record: refused.append(record.at) if record.status == 503 else None
    told = Told()
    async with open_courier(s3, tuning={"concurrency": CONCURRENCY}, observer=told) as courier:
        await courier.ship(folder, "job")
    (at,) = refused
    hasty = [arrived for arrived in data_puts(s3) if at < arrived < at + 1]
    assert len(hasty) <= CONCURRENCY
    assert [event.delay >= 1 for event in told.of(Retried)] == [True]
    assert_nothing_left(s3, tmp_path / "up")
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files


async def test_a_spell_of_refusals(s3, tmp_path):
    """While every PUT is answered with 429, each second that the server asks for sees no more tries than there are workers."""
    files = {f"{number:02d}.bin": os.urandom(50) for number in range(16)}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    refusals = 2 * CONCURRENCY
    refuse = Answer(429, "TooManyRequests", retry_after=1)
    s3.faults.add(Fault(When(method="PUT", key="*.bin"), refuse, times=refusals))
    async with open_courier(s3, tuning={"concurrency": CONCURRENCY}) as courier:
        await courier.ship(folder, "job")
    arrived = data_puts(s3)
    assert len(arrived) == refusals + len(files)  # no try too many
    waited = arrived[refusals] - arrived[0]
    assert waited >= refusals // CONCURRENCY - 0.1
    assert_nothing_left(s3, tmp_path / "up")


async def delays_of(s3: S3Double, tmp_path, name: str) -> list[float]:
    """What a courier of its own chance waits between the tries of one refused file."""
    folder = write_checkpoint(tmp_path / name, "chk_1", 1, {"a.bin": name.encode()})
    told = Told()
    async with open_courier(s3, observer=told, rng=random.Random(name)) as courier:
        await courier.ship(folder, name)
    return [event.delay for event in told.of(Retried)]


async def test_two_couriers_do_not_march_in_step(s3, tmp_path):
    """Two couriers that are refused alike wait for different times: they do not come back together."""
    delays: dict[str, list[float]] = {}

    async def ship(name: str) -> None:
        delays[name] = await delays_of(s3, tmp_path, name)

    for name in ("left", "right"):
        s3.faults.add(Fault(When(key=f"jobs/{name}/chk_1/a.bin"), Answer(503, "SlowDown"), times=2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ship, "left")
        tasks.start_soon(ship, "right")
    assert len(delays["left"]) == len(delays["right"]) == 2
    assert len({*delays["left"], *delays["right"]}) == 4
    assert_nothing_left(s3, tmp_path / "left", tmp_path / "right")
