"""Field case 7: the trigger arrives before the data. A complete set is shipped, or the missing file is named; never a part."""

from __future__ import annotations

import hashlib
import os

import anyio
import pytest

from r2d1.errors import FlushError
from r2d1.events import Committed
from tests.checkpoints import files_of, write_files, write_sidecar
from tests.remote_ends import PATIENCE_S, Told, bodies_sent, open_courier, open_fetcher

FILES = {"one.bin": b"1" * 100, "two.bin": b"2" * 200, "three.bin": b"3" * 300}
SIZES = [{"path": path, "size": len(data)} for path, data in FILES.items()]
PROVEN = [{**entry, "sha256": hashlib.sha256(FILES[entry["path"]]).hexdigest()} for entry in SIZES]


async def until_waiting_for(courier, said):
    """Wait until the courier says that it waits, and for what."""
    with anyio.fail_after(PATIENCE_S):
        await courier._until(lambda: any(said in why for why in courier.status().waiting.values()))


async def assert_shipped_whole(s3, told, tmp_path):
    await told.first(Committed)
    assert len(told.of(Committed)) == 1
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == FILES


@pytest.mark.parametrize(("listed", "keeps_times"), [(PROVEN, False), (SIZES, True)])
async def test_the_last_file_comes_late_and_grows(s3, tmp_path, listed, keeps_times):
    """The courier waits, says for what, and ships one complete set.

    Late bytes are known for this version's by their digests, or by their times where the copy keeps them.
    """
    watched = tmp_path / "watched"
    folder = watched / "chk_1"
    write_files(folder, {path: FILES[path] for path in ("one.bin", "two.bin")})
    write_sidecar(folder, 1, files=listed)
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(watched, "job", poll_every=0.05)
        await until_waiting_for(courier, "'three.bin', which is not there")
        (folder / "three.bin").write_bytes(FILES["three.bin"][:100])
        await until_waiting_for(courier, "'three.bin' has 100 bytes, the sidecar says 300")
        assert bodies_sent(s3) == []
        with open(folder / "three.bin", "ab") as file:
            file.write(FILES["three.bin"][100:])
            file.flush()
            if keeps_times:
                os.utime(folder / "three.bin", ns=(1, 1))
        await assert_shipped_whole(s3, told, tmp_path)


async def test_a_file_that_never_comes_is_named(s3, tmp_path):
    """After the time-out the checkpoint has failed and says what is missing; nothing of it was sent."""
    watched = tmp_path / "watched"
    write_files(watched / "chk_1", {"one.bin": FILES["one.bin"]})
    write_sidecar(watched / "chk_1", 1, files=SIZES)
    async with open_courier(s3) as courier:
        await courier.watch(watched, "job", poll_every=0.05, settle_timeout=0.2)
        with pytest.raises(
            FlushError, match=r"job/chk_1.*not complete after 0\.2 s.*'two\.bin', which is not there"
        ) as error:
            await courier.flush()
        assert error.value.failed == ("job/chk_1",)
        assert bodies_sent(s3) == []
        write_files(watched / "chk_1", FILES)
        write_sidecar(watched / "chk_1", 1, files=SIZES)  # it is tried again when it changes
        await courier.flush()
    assert "jobs/job/chk_1/three.bin" in s3.keys("jobs/")


async def test_without_a_list_a_growing_file_waits_for_the_next_sidecar(s3, tmp_path):
    """A file that is newer than the sidecar is the next version's: it counts as not shipped, until its sidecar comes."""
    watched = tmp_path / "watched"
    folder = watched / "slot_0"
    write_files(folder, {"one.bin": b"1"})
    write_sidecar(folder, 1)
    later = os.stat(watched / "slot_0.json").st_mtime_ns + 1_000_000
    (folder / "two.bin").write_bytes(b"gro")
    os.utime(folder / "two.bin", ns=(later, later))
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(watched, "job", poll_every=0.05, settle_timeout=0.2)
        await until_waiting_for(courier, "'two.bin' is newer than the sidecar")
        with pytest.raises(FlushError, match=r"'two\.bin' is newer"):
            await courier.flush()
        assert bodies_sent(s3) == []
        write_files(folder, FILES)
        write_sidecar(folder, 2)
        await assert_shipped_whole(s3, told, tmp_path)
    assert len([text for text in told.notices("info") if "is newer" in text]) == 1
