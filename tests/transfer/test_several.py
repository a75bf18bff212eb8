"""Small files go in rows; whatever goes wrong with one of a row ends like anything else that goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from r2d1 import AsyncCourier, AsyncFetcher, Settings
from r2d1.checkpoint import Identity, LocalFile, inspect
from r2d1.errors import AccessRefused, CheckpointError, IntegrityError
from r2d1.testing import S3Double
from r2d1.testing.faults import Answer, CutReply, Fault, FlipReply, FlipRequest, Hook, Reset, When
from r2d1.transfer.download import Wanted
from r2d1.transfer.several import rows_down, rows_up
from tests.checkpoints import files_of, write_checkpoint

#: So many small files that rows of two come of them.
FILES: Mapping[str, bytes] = {f"{number:03}.bin": b"%d" % number * 50 for number in range(66)}
PREFIX = "jobs/job/chk_0001"


def settings_of(s3: S3Double, **given: object) -> Settings:
    return Settings.from_env(environ=s3.env(), **given)


async def ship(s3: S3Double, folder: Path, **given: object) -> None:
    async with AsyncCourier(settings_of(s3, **given)) as courier:
        await courier.ship(folder, "job")


async def pull(s3: S3Double, dest: Path, **given: object) -> dict[str, bytes]:
    async with AsyncFetcher(settings_of(s3, **given)) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", dest)
    return files_of(info.local_dir)


def bodies(s3: S3Double, operation: str) -> list[str]:
    """The files that requests of an operation were made for, in their order."""
    asked = (record.key for record in s3.requests if record.operation == operation)
    return [key.removeprefix(f"{PREFIX}/") for key in asked if key.startswith(PREFIX) and key.endswith(".bin")]


@pytest.mark.parametrize(
    "mishap",
    [
        Answer(503, "SlowDown", retry_after=0),
        Answer(500),
        Reset(),
        CutReply(after=0),
        FlipRequest(),
        FlipRequest(after_check=True),
    ],
    ids=["503", "500", "reset", "no reply", "damaged", "damaged unseen"],
)
async def test_a_mishap_on_the_way_up(s3, tmp_path, mishap):
    """One of a row fails: it is sent again, and so are those behind it that were not sent."""
    folder = write_checkpoint(tmp_path / "w", "chk_0001", 1, FILES)
    s3.faults.add(Fault(When(operation="PutObject", key="*/051.bin"), mishap))
    await ship(s3, folder)
    sent = bodies(s3, "PutObject")
    assert set(sent) == set(FILES)
    assert len(sent) <= len(FILES) + 2
    if mishap == FlipRequest(after_check=True):  # no header can tell: whoever pulls notices
        with pytest.raises(IntegrityError, match=r"051\.bin"):
            await pull(s3, tmp_path / "down")
    else:
        assert await pull(s3, tmp_path / "down") == dict(FILES)


@pytest.mark.parametrize("mishap", [Answer(503, retry_after=0), Reset(), CutReply(after=20), FlipReply()], ids=str)
async def test_a_mishap_on_the_way_down(s3, tmp_path, mishap):
    """One of a row fails or is damaged: it is fetched again, and nothing wrong is ever placed."""
    await ship(s3, write_checkpoint(tmp_path / "w", "chk_0001", 1, FILES))
    s3.faults.add(Fault(When(operation="GetObject", key="*/051.bin"), mishap))
    assert await pull(s3, tmp_path / "down") == dict(FILES)
    assert len(bodies(s3, "GetObject")) == len(FILES) + 1


async def test_damage_that_stays(s3, tmp_path):
    """A file that is wrong in the bucket fails the pull by name, and leaves nothing that looks like a checkpoint."""
    await ship(s3, write_checkpoint(tmp_path / "w", "chk_0001", 1, FILES))
    s3.model.corrupt(f"{PREFIX}/051.bin")
    with pytest.raises(IntegrityError, match=r"051\.bin"):
        await pull(s3, tmp_path / "down")
    assert not (tmp_path / "down" / "chk_0001").exists()


async def test_a_file_that_changes_in_the_middle_of_a_row(s3, tmp_path):
    """It is noticed, and the checkpoint is not committed with it."""
    folder = write_checkpoint(tmp_path / "w", "chk_0001", 1, FILES)
    change = Hook(before=lambda _: (folder / "001.bin").write_bytes(b"other"))
    s3.faults.add(Fault(When(operation="PutObject", key="*/000.bin"), change))
    with pytest.raises(CheckpointError):
        async with AsyncCourier(settings_of(s3)) as courier:
            await courier.ship(folder, "job", settle_timeout=0.1)
    assert not [key for key in s3.keys() if "/heads/" in key]


async def test_a_store_that_takes_no_checksums(s3, tmp_path):
    """Its refusal is found out with the first file, and all arrive."""
    refusal = Fault(
        When(operation="PutObject", matches=lambda call: "x-amz-checksum-crc64nvme" in call.headers),
        Answer(501, "NotImplemented"),
        times=None,
    )
    s3.faults.add(refusal)
    await ship(s3, write_checkpoint(tmp_path / "w", "chk_0001", 1, FILES))
    assert await pull(s3, tmp_path / "down") == dict(FILES)


@pytest.mark.parametrize("check", ["md5", "none"])
async def test_with_another_check(s3, tmp_path, check):
    await ship(s3, write_checkpoint(tmp_path / "w", "chk_0001", 1, FILES), upload_check=check)
    assert await pull(s3, tmp_path / "down") == dict(FILES)
    assert len(bodies(s3, "PutObject")) == len(FILES)


async def test_nothing_is_sent_twice_by_the_next_start(s3, tmp_path):
    """Files that went in rows are remembered like others."""
    folder = write_checkpoint(tmp_path / "w", "chk_0001", 1, FILES)
    s3.faults.add(Fault(When(operation="PutObject", key="*/r2d1.manifest.json"), Answer(403, "AccessDenied"), times=1))
    with pytest.raises(AccessRefused):
        await ship(s3, folder)
    await ship(s3, folder)
    assert len(bodies(s3, "PutObject")) == len(FILES)


def local(path: str, size: int) -> LocalFile:
    return LocalFile(path, path, Identity(size, 0, 0, 0))


def test_rows_up():
    """Small files in their order, few enough in a row that no connection waits for another's; large ones alone."""
    small = [local(f"{at}", 1) for at in range(64)]
    assert [len(row) for row in rows_up(small, 1 << 20)] == [2] * 32
    assert [len(row) for row in rows_up(small[:31], 1 << 20)] == [1] * 31
    many = [local(f"{at}", 1) for at in range(1600)]
    assert [len(row) for row in rows_up(many, 1 << 20)] == [16] * 100
    large = local("large", 1 << 20)
    rows = list(rows_up([*many[:20], large, *many[20:1000]], 1 << 20))
    assert [row for row in rows if large in row] == [[large]]
    assert sorted(file.path for row in rows for file in row) == sorted(["large", *(file.path for file in many[:1000])])
    weighty = [local(f"{at}", 100_000) for at in range(640)]
    assert {len(row) for row in rows_up(weighty, 1 << 20)} == {2}
    assert {len(row) for row in rows_up(weighty, 1000)} == {1}


def test_rows_down():
    """An empty file, one that is there in part and a large one go alone."""
    wanted = [Wanted(f"{at}", f"{at}", 1, None, 1 << 20) for at in range(96)]
    odd = [Wanted("empty", "empty", 0, None, 1 << 20), Wanted("large", "large", 1 << 20, None, 1 << 20)]
    rows = list(rows_down([*odd, *wanted], {"7"}))
    assert [row for row in rows if row[0] in odd] == [[one] for one in odd]
    assert [wanted[7]] in rows
    assert max(map(len, rows)) == 2


def test_an_inspected_folder_goes_in_rows(tmp_path):
    files = inspect(write_checkpoint(tmp_path, "chk_0001", 1, FILES)).files
    assert [len(row) for row in rows_up(files, 1 << 20)] == [2] * 33
