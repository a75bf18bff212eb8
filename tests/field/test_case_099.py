"""Field case 99: cancelling does not stop a thread. Ours end with the call, and what they did is accounted for."""

from __future__ import annotations

import os
import threading

import anyio
import pytest

from r2d1.testing import Fault, Gate, Hold, When
from r2d1.transfer import files
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import PATIENCE_S, assert_nothing_left, open_courier, open_fetcher

PART = 64 << 10
DATA = {"big.bin": os.urandom(8 * PART), "small.bin": b"small"}


async def cancelled(courier, folder, reached: anyio.Event) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(courier.ship, folder, "job")
        with anyio.fail_after(PATIENCE_S):
            await reached.wait()
        tasks.cancel_scope.cancel()


async def assert_shipped_once(s3, courier, folder, tmp_path) -> None:
    """Shipping again ends well, what is there is what is on the disk, and a third time sends nothing."""
    shipped = await courier.ship(folder, "job")
    assert shipped.total_bytes == sum(map(len, DATA.values()))
    before = len(s3.requests)
    await courier.ship(folder, "job")
    assert [record.operation for record in s3.requests[before:] if record.method == "PUT"] == []
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == DATA


async def test_cancelled_while_a_thread_hashes(s3, tmp_path, monkeypatch):
    """The call ends only when the thread has let go of the file; nothing of it runs on."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, DATA)
    reached, inside, running = anyio.Event(), threading.Event(), set()
    let_go = threading.Event()
    real = files.SliceHashes.next_part
    loop = anyio.lowlevel.current_token()

    def slow(self, span):
        if not inside.is_set():
            inside.set()
            anyio.from_thread.run_sync(reached.set, token=loop)
            running.add(threading.get_ident())
            let_go.wait(PATIENCE_S)
            running.discard(threading.get_ident())
        return real(self, span)

    monkeypatch.setattr(files.SliceHashes, "next_part", slow)
    async with open_courier(s3, part_size=PART) as courier:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancelled, courier, folder, reached)
            await reached.wait()
            let_go.set()
        assert running == set()
        await assert_shipped_once(s3, courier, folder, tmp_path)
    assert_nothing_left(s3, folder.parent)


@pytest.mark.parametrize("operation", ["UploadPart", "PutObject"])
async def test_cancelled_while_a_thread_sends(s3, tmp_path, operation):
    """A thread that waits for the server's answer is cut off at once, and shipping again is one ship."""
    folder, gate = write_checkpoint(tmp_path / "up", "chk_1", 1, DATA), Gate()
    s3.faults.add(Fault(When(operation=operation, key="jobs/job/chk_1/*"), Hold(gate)))
    async with open_courier(s3, part_size=PART) as courier:
        with anyio.fail_after(PATIENCE_S):
            await cancelled(courier, folder, gate.arrived)
        gate.release()
        await assert_shipped_once(s3, courier, folder, tmp_path)
    assert_nothing_left(s3, folder.parent)
