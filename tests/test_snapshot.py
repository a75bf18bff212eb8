"""What a courier that was killed has left pinned: it goes back where it was if it is whole and nowhere else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from r2d1 import AsyncCourier, Settings, write_sidecar
from r2d1.checkpoint import inspect
from r2d1.courier.snapshot import let_go, pin, snapshots, take_up
from r2d1.journal import Journal
from r2d1.testing.faults import Answer, Fault, Gate, Hold, When
from tests.checkpoints import write_checkpoint


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
    assert take_up(slot.parent, journal, "scope").put_back == ["slot_0"]
    assert (slot / "sub" / "b.bin").read_bytes() == b"b"
    assert inspect(slot).sidecar.epoch == 1
    assert not left(slot)


def test_what_was_rewritten_in_place_and_taken_away_is_not(slot, journal):
    """The files are shared: a part of the next version lies under the sidecar of the last one."""
    (slot / "a.bin").write_bytes(b"next")
    rotate(slot)
    assert take_up(slot.parent, journal, "scope").put_back == []
    assert not slot.exists()
    assert not left(slot)


@pytest.mark.parametrize("missing", ["sub", ".slot_0"])
def test_what_was_not_pinned_whole_is_not(slot, journal, missing):
    rotate(slot)
    pinned = snapshots(slot.parent) / ("slot_0/sub" if missing == "sub" else missing)
    shutil.rmtree(pinned) if pinned.is_dir() else pinned.unlink()
    assert take_up(slot.parent, journal, "scope").put_back == []
    assert not left(slot)


def test_killed_while_putting_back_it_goes_on(slot, journal):
    """The sidecar is there again, the folder is not yet."""
    rotate(slot)
    sidecar = slot.with_name("slot_0.json")
    os.link(snapshots(slot.parent) / "slot_0.json", sidecar)
    assert take_up(slot.parent, journal, "scope").put_back == ["slot_0"]
    assert inspect(slot).sidecar.epoch == 1


@pytest.mark.parametrize("begun", ["folder", "sidecar"])
def test_what_the_trainer_begins_anew_is_left_alone(slot, journal, begun):
    rotate(slot)
    if begun == "folder":
        slot.mkdir()
    else:
        slot.with_name("slot_0.json").write_text("{}")
    before = sorted(slot.parent.iterdir())
    assert take_up(slot.parent, journal, "scope").put_back == []
    assert sorted(slot.parent.iterdir()) == before
    assert bool(left(slot)) is (begun == "folder")  # an empty one may be what rotation has left


@pytest.mark.parametrize("cut", ["folder", "file", "sidecar"])
@pytest.mark.parametrize("is_start", [True, False])
def test_a_rotation_that_was_cut(slot, journal, cut, is_start):
    """What is left of it is completed at the start; under way rotation may still be at it, and nothing is dropped."""
    if cut == "folder":
        shutil.rmtree(slot)
    elif cut == "file":
        (slot / "a.bin").unlink()
    else:
        slot.with_name("slot_0.json").unlink()
    put_back = take_up(slot.parent, journal, "scope", is_start=is_start).put_back
    if is_start or cut == "folder":
        assert put_back == ["slot_0"]
        assert ((slot / "a.bin").read_bytes(), (slot / "sub" / "b.bin").read_bytes()) == (b"a", b"b")
        assert inspect(slot).sidecar.epoch == 1
        assert not left(slot)
    else:
        assert put_back == []
        rotate_rest(slot)
        assert take_up(slot.parent, journal, "scope", is_start=False).put_back == ["slot_0"]
        assert inspect(slot).total_bytes == 2


def rotate_rest(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_name(f"{folder.name}.json").unlink(missing_ok=True)


def test_what_is_being_shipped_is_left_alone(slot, journal):
    rotate(slot)
    before = sorted(left(slot))
    assert take_up(slot.parent, journal, "scope", busy={"slot_0"}).put_back == []
    assert sorted(left(slot)) == before


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_ship_that_failed(slot, is_whole):
    """The links are dropped if the trainer still has everything."""
    if not is_whole:
        (slot / "a.bin").unlink()
    let_go(snapshots(slot.parent) / "slot_0", slot)
    assert bool(left(slot)) is not is_whole


def test_what_cannot_be_settled_is_told_and_kept(slot, journal):
    """A dangling link in the place of the folder, and a mark that makes no sense."""
    shutil.rmtree(slot)
    slot.symlink_to("nowhere")
    taken = take_up(slot.parent, journal, "scope")
    assert taken.put_back == []
    assert (snapshots(slot.parent) / "slot_0" / "a.bin").exists() or not taken.troubles
    (snapshots(slot.parent) / ".slot_0").write_bytes(b"\xff\xfe")
    take_up(slot.parent, journal, "scope")


def test_leftovers_without_a_folder_go(slot, journal):
    shutil.rmtree(snapshots(slot.parent) / "slot_0")
    take_up(slot.parent, journal, "scope")
    assert not left(slot)


@pytest.mark.parametrize("end", ["stop", "refusal"])
async def test_taken_away_while_a_ship_fails(s3, tmp_path, end):
    """Rotation took it while it was pinned, and then it was not shipped: it is put back, and shipped later."""
    folder = write_checkpoint(tmp_path, "chk_0001", 1, {"a.bin": b"a" * 100})
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Hold(gate)))
    if end == "refusal":
        s3.faults.add(Fault(When(operation="PutObject", key="*/chk_0001.json"), Answer(403, "AccessDenied")))
    settings = Settings.from_env(environ=s3.env())
    async with AsyncCourier(settings) as courier:
        await courier.watch(tmp_path, "job", snapshot="hardlink", poll_every=0.05)
        await gate.arrived.wait()
        rotate(folder)
        if end == "stop":
            courier.stop()
        gate.release()
        await anyio.sleep(0)
        if end == "refusal":
            with anyio.fail_after(20):
                while not (folder / "a.bin").exists():  # noqa: ASYNC110 - the scan puts it back, which tells nobody
                    await anyio.sleep(0.05)
    s3.faults.clear()
    async with AsyncCourier(settings) as courier:
        await courier.watch(tmp_path, "job", snapshot="hardlink")
        await courier.flush(timeout=30)
    assert s3.get("jobs/job/chk_0001/a.bin") == b"a" * 100


def test_letting_go_never_hides_why_a_ship_failed(slot):
    """Where the folder cannot even be looked at, the pinned one stays, and nothing is raised."""
    shutil.rmtree(slot)
    slot.mkdir()
    (slot / "a.bin").symlink_to("nowhere")
    let_go(snapshots(slot.parent) / "slot_0", slot)
    assert left(slot)
