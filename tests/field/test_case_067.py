"""Field case 67: a stalled read hangs for ever. Silence is given up, and only what has not come is asked again."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from r2d1 import AsyncFetcher
from r2d1.errors import RemoteUnavailable
from r2d1.events import Retried, Teller
from r2d1.objects.r2 import R2Store
from r2d1.objects.resilient import Resilient
from r2d1.remote import Remote
from r2d1.retry import Brake, RetryPolicy
from r2d1.testing import Fault, Gate, Hold, Stall, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import Hasty, Told, open_courier, settings_of

PART = 64 << 10
FIFTH = When(operation="GetObject", matches=lambda call: call.headers.get("range", "").endswith(f"-{5 * PART - 1}"))


@pytest.fixture
def gate():
    """A gate that is opened in the end, so that the double can be closed."""
    gate = Gate()
    yield gate
    gate.release()


@pytest.fixture
async def data(s3, tmp_path) -> bytes:
    """The file of eight ranges that was shipped."""
    data = os.urandom(8 * PART)
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(write_checkpoint(tmp_path / "up", "chk_1", 1, {"big.bin": data}), "job")
    return data


@asynccontextmanager
async def impatient(s3, told: Told, *, attempts: int = 8) -> AsyncIterator[AsyncFetcher]:
    """A fetcher for which half a second without a byte is silence; otherwise it is a minute."""
    settings = settings_of(s3)
    tell, policy = Teller(told), RetryPolicy(attempts=attempts)
    store = Resilient(R2Store(settings, tell=tell, idle_s=0.5), policy=policy, brake=Brake(Hasty()), tell=tell)
    async with AsyncFetcher(settings, given=Remote(store, None), observer=told, rng=Hasty()) as fetcher:
        yield fetcher


@pytest.mark.parametrize("after", [0, 40_000])
async def test_a_range_that_falls_silent(s3, gate, data, tmp_path, after):
    """Range 5 sends its head, or more than half of its bytes, and then nothing: it alone is asked once more."""
    s3.faults.add(Fault(FIFTH, Stall(gate, after=after)))
    told, before = Told(), len(s3.requests)
    async with impatient(s3, told) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data}
    (retried,) = told.of(Retried)
    assert "nothing moved for 0.5 seconds" in retried.error
    ranges = [r.headers["range"] for r in s3.requests[before:] if r.key.endswith("/big.bin")]
    assert len(ranges) == len(set(ranges)) == 8  # beside the one that still waits at the gate


async def test_a_request_that_is_never_answered(s3, gate, data, tmp_path):
    """The same where not even a head comes."""
    s3.faults.add(Fault(FIFTH, Hold(gate)))
    told = Told()
    async with impatient(s3, told) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": data}
    assert len(told.of(Retried)) == 1


async def test_silence_that_stays(s3, gate, data, tmp_path):
    """When every attempt meets silence the pull ends with an error that says so, and shows no folder."""
    s3.faults.add(Fault(FIFTH, Stall(gate), times=None))
    async with impatient(s3, Told(), attempts=2) as fetcher:
        with pytest.raises(RemoteUnavailable, match=r"nothing moved for 0\.5 seconds \(2 attempts\)"):
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert not (tmp_path / "down" / "chk_1").exists()
