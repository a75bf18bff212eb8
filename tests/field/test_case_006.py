"""Field case 6: a rename into place is not treated as a creation. Each checkpoint is shipped once, under its final name."""

from __future__ import annotations

import os

import pytest

from r2d1.events import Committed
from tests.checkpoints import write_checkpoint, write_files, write_sidecar
from tests.remote_ends import Told, bodies_sent, open_courier

FILES = {"a.bin": b"a" * 1000, "sub/b.bin": b"b"}


def renamed_within(watched, outside):
    """(a) The folder gets its final name within the watched directory, then the sidecar."""
    write_files(watched / "building", FILES)
    write_sidecar(outside / "step-5", 5)
    os.replace(watched / "building", watched / "step-5")
    os.replace(outside / "step-5.json", watched / "step-5.json")


def renamed_from_outside(watched, outside):
    """(b) Folder and sidecar come from a directory beside the watched one."""
    write_checkpoint(outside, "step-5", 5, FILES)
    os.rename(outside / "step-5", watched / "step-5")
    os.rename(outside / "step-5.json", watched / "step-5.json")


def sidecar_first(watched, outside):
    """(b) as well, in the order in which a sorted move does it on some systems: the sidecar is there first."""
    write_checkpoint(outside, "step-5", 5, FILES)
    os.rename(outside / "step-5.json", watched / "step-5.json")
    os.rename(outside / "step-5", watched / "step-5")


def renamed_with_its_sidecar_there(watched, outside):
    """(c) A temporary folder with its sidecar, then the folder is renamed."""
    write_files(watched / "tmp-step-5", FILES)
    write_sidecar(watched / "step-5", 5)
    os.rename(watched / "tmp-step-5", watched / "step-5")


def both_renamed(watched, outside):
    """(c) The sidecar has the temporary name too, and both are renamed."""
    write_checkpoint(watched, "tmp-step-5", 5, FILES, name="step-5")
    os.rename(watched / "tmp-step-5", watched / "step-5")
    os.rename(watched / "tmp-step-5.json", watched / "step-5.json")


@pytest.mark.parametrize(
    "appear", [renamed_within, renamed_from_outside, sidecar_first, renamed_with_its_sidecar_there, both_renamed]
)
async def test_a_rename_is_a_creation(s3, tmp_path, appear):
    """Events alone find it, once, and no key has the temporary name."""
    watched, outside = tmp_path / "watched", tmp_path / "outside"
    watched.mkdir()
    outside.mkdir()
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(watched, "job", poll_every=3600)
        appear(watched, outside)
        await told.first(Committed)
        await courier.flush()
    assert [event.name for event in told.of(Committed)] == ["step-5"]
    assert sorted(record.key for record in bodies_sent(s3)) == [
        "jobs/job/step-5/a.bin",
        "jobs/job/step-5/r2d1.manifest.json",
        "jobs/job/step-5/step-5.json",
        "jobs/job/step-5/sub/b.bin",
    ]


async def test_a_folder_that_still_has_its_temporary_name(s3, tmp_path):
    """A pair called ``tmp-*`` is a checkpoint being written: nothing of it is sent until it has its name."""
    watched = tmp_path / "watched"
    write_checkpoint(watched, "tmp-step-5", 5, FILES, name="step-5")
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(watched, "job", poll_every=3600)
        report = await courier.flush()
        assert report.shipped == ()
        assert bodies_sent(s3) == []
        os.rename(watched / "tmp-step-5", watched / "step-5")
        os.rename(watched / "tmp-step-5.json", watched / "step-5.json")
        await told.first(Committed)
    assert not any("tmp-step-5" in key for key in s3.keys("jobs/"))
