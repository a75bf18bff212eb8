"""What a courier that was killed has left pinned: it goes back where it was if it is whole and nowhere else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from r2d1.checkpoint import inspect
from r2d1.courier.snapshot import pin, snapshots, take_up
from r2d1.journal import Journal
from r2d1.sidecar import write_sidecar


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "state")) as journal:
        yield journal


@pytest.fixture
def slot(tmp_path: Path) -> Path:
    """A checkpoint that is pinned, in a directory of its own."""
    folder = tmp_path / "w" / "slot_0"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"a")
    (folder / "sub" / "b.bin").write_bytes(b"b")
    write_sidecar(folder, epoch=1)
    pin(inspect(folder))
    return folder


def rotate(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.with_name(f"{folder.name}.json").unlink()


def left(folder: Path) -> list[Path]:
    return list(snapshots(folder.parent).iterdir())


def test_what_was_taken_away_is_put_back(slot, journal):
    rotate(slot)
    assert take_up(slot.parent, journal, "scope") == ["slot_0"]
    assert (slot / "sub" / "b.bin").read_bytes() == b"b"
    assert inspect(slot).sidecar.epoch == 1
    assert not left(slot)


def test_what_was_rewritten_in_place_and_taken_away_is_not(slot, journal):
    """The files are shared: a part of the next version lies under the sidecar of the last one."""
    (slot / "a.bin").write_bytes(b"next")
    rotate(slot)
    assert take_up(slot.parent, journal, "scope") == []
    assert not slot.exists()
    assert not left(slot)


@pytest.mark.parametrize("missing", ["sub", ".slot_0"])
def test_what_was_not_pinned_whole_is_not(slot, journal, missing):
    rotate(slot)
    pinned = snapshots(slot.parent) / ("slot_0/sub" if missing == "sub" else missing)
    shutil.rmtree(pinned) if pinned.is_dir() else pinned.unlink()
    assert take_up(slot.parent, journal, "scope") == []
    assert not left(slot)


def test_killed_while_putting_back_it_goes_on(slot, journal):
    """The sidecar is there again, the folder is not yet."""
    rotate(slot)
    sidecar = slot.with_name("slot_0.json")
    os.link(snapshots(slot.parent) / "slot_0.json", sidecar)
    assert take_up(slot.parent, journal, "scope") == ["slot_0"]
    assert inspect(slot).sidecar.epoch == 1


@pytest.mark.parametrize("begun", ["folder", "sidecar"])
def test_what_the_trainer_begins_anew_is_left_alone(slot, journal, begun):
    rotate(slot)
    if begun == "folder":
        slot.mkdir()
    else:
        slot.with_name("slot_0.json").write_text("{}")
    before = sorted(slot.parent.iterdir())
    assert take_up(slot.parent, journal, "scope") == []
    assert sorted(slot.parent.iterdir()) == before
    assert not left(slot)
