"""Room on the disk: what ``keep_local`` deletes, what it never does, and what a crash in the middle leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import anyio
import pytest

from r2d1 import placing
from r2d1.checkpoint import inspect
from r2d1.courier import deleting
from r2d1.courier.deleting import delete, finish_deletions
from r2d1.keys import STATE_DIR
from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import files_of, random_files, write_checkpoint, write_sidecar
from tests.cli.shell import finished
from tests.remote_ends import Told, open_courier, open_fetcher

FILES = {"a.bin": b"a" * 300, "sub/b.bin": b"b"}


def names(directory: Path) -> list[str]:
    """Whatever lies in a directory beside r2d1's own state."""
    return sorted(path.name for path in directory.iterdir() if path.name != STATE_DIR)


def pairs(*numbers: int) -> list[str]:
    return sorted(name for number in numbers for name in (f"chk_{number}", f"chk_{number}.json"))


def leftovers(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / STATE_DIR).iterdir() if path.name.startswith(("trash-", "pull-")))


def write_all(directory: Path, *numbers: int) -> None:
    for number in numbers:
        write_checkpoint(directory, f"chk_{number}", number, FILES)


# -- what goes and what stays -------------------------------------------------------------------------------


async def test_the_newest_stay_and_the_others_are_in_the_bucket(s3, tmp_path):
    """A flush returns when room is made; what was deleted comes back whole, and nothing else is left of it."""
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job", keep_local=2)
        for number in range(1, 6):
            write_all(tmp_path, number)
            await courier.flush()
            assert names(tmp_path) == pairs(*range(max(1, number - 1), number + 1))
    assert leftovers(tmp_path) == []
    assert any("deleted after shipping: chk_3" in text for text in told.notices("info"))
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/chk_1", tmp_path / "back")
    assert files_of(info.local_dir) == FILES


async def test_a_start_makes_room_as_well(s3, tmp_path):
    """What an earlier courier shipped and kept goes without a new commit."""
    write_all(tmp_path, 1, 2, 3, 4)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job")
        await courier.flush()
    assert names(tmp_path) == pairs(1, 2, 3, 4)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job", keep_local=1)
        await courier.flush()
        assert names(tmp_path) == pairs(4)


@pytest.mark.parametrize("damage", ["gone", "shorter", "other bytes", "no sidecar", "no manifest", "deleted"])
async def test_what_the_bucket_does_not_hold_whole_is_kept(s3, tmp_path, damage):
    """It is said once, and asked for once: the next rounds do not look again."""
    write_all(tmp_path, 1)
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job", keep_local=1)
        await courier.flush()
        key = "jobs/job/chk_1/a.bin"
        if damage == "deleted":
            assert finished("rm", "r2://jobs/job/chk_1", env=s3.env(), home=tmp_path).exit_code == 0
        elif damage in ("shorter", "other bytes"):
            s3.put(key, b"a" * 299 if damage == "shorter" else b"x" * 300)
        else:
            parts = {"no sidecar": "chk_1.json", "no manifest": "r2d1.manifest.json"}
            s3.delete(f"jobs/job/chk_1/{parts.get(damage, 'a.bin')}")
        for number in (2, 3):
            write_all(tmp_path, number)
            await courier.flush()
        assert names(tmp_path) == pairs(1, 3)
    assert len([text for text in told.notices("warning") if "chk_1: kept on the disk" in text]) == 1


async def test_what_was_pulled_to_resume_from_is_kept(s3, tmp_path):
    """However many newer ones there are."""
    write_all(tmp_path / "first", 1)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path / "first", "job")
    home = tmp_path / "second"
    async with open_fetcher(s3) as fetcher:
        await fetcher.pull("r2://jobs/job/latest", home)
    async with open_courier(s3) as courier:
        await courier.watch(home, "job", keep_local=1)
        write_all(home, 2, 3)
        await courier.flush()
    assert names(home) == pairs(1, 3)


async def test_what_is_being_pulled_is_kept(s3, tmp_path):
    """A pull of the same checkpoint into the directory holds its lock; the next round finds it free."""
    write_all(tmp_path, 1)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job", keep_local=1)
        await courier.flush()
        async with placing.locked(tmp_path, "pull-chk_1"):
            write_all(tmp_path, 2)
            await courier.flush()
            assert names(tmp_path) == pairs(1, 2)
        write_all(tmp_path, 3)
        await courier.flush()
        assert names(tmp_path) == pairs(3)


async def test_what_changed_since_it_was_shipped_is_kept(s3, tmp_path):
    """A file that somebody edited is nowhere else."""
    write_all(tmp_path, 1)
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job", keep_local=1)
        await courier.flush()
        (tmp_path / "chk_1" / "a.bin").write_bytes(b"edited")
        write_all(tmp_path, 2)
        await courier.flush()
        assert names(tmp_path) == pairs(1, 2)


async def test_a_store_that_fails_keeps_everything(s3, tmp_path):
    """Nothing is deleted on trust, and the flush is not kept by it for long."""
    write_all(tmp_path, 1)
    told, gate = Told(), Gate()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job", poll_every=0.05, keep_local=1)
        await courier.flush()
        s3.faults.add(Fault(When(operation="GetObject", key="*/chk_1/r2d1.manifest.json"), Hold(gate), times=None))
        write_all(tmp_path, 2)
        with anyio.move_on_after(1):
            await courier.flush()
        assert names(tmp_path) == pairs(1, 2)
        gate.release()
        await courier.flush()
        assert names(tmp_path) == pairs(2)


def test_the_shell_has_it_too(s3, tmp_path):
    """``--keep-local``, ``--newest-first`` and ``--snapshot`` are those of the API."""
    write_all(tmp_path / "ckpts", 1, 2, 3)
    options = ("--once", "--keep-local", "2", "--newest-first", "--snapshot", "hardlink")
    ended = finished("watch", tmp_path / "ckpts", "--job-id", "job", *options, env=s3.env(), home=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    assert names(tmp_path / "ckpts") == pairs(2, 3)
    assert "chk_3: goes first; waiting behind it: chk_2, chk_1" in ended.stderr


# -- a deletion that is cut short ----------------------------------------------------------------------------


class Cut(BaseException):
    """The process dies here."""


STEPS = ["mkdir", "write_text", "rename 1", "rename 2", "remove_tree", "in the tree"]


def die_at(step: str, patch: pytest.MonkeyPatch) -> None:
    """Let the deletion reach a step and go no further."""
    renames = 0

    def dies(*_: object, **__: object) -> None:
        raise Cut

    def rename(source: Path, target: Path) -> None:
        nonlocal renames
        renames += 1
        if step == f"rename {renames}":
            raise Cut
        os.replace(source, target)

    def half(path: Path) -> None:
        shutil.rmtree(next(child for child in path.iterdir() if child.is_dir()) / "sub")
        raise Cut

    if step in ("mkdir", "write_text"):
        patch.setattr(Path, step, dies)
    elif step.startswith("rename"):
        patch.setattr(deleting.os, "rename", rename)
    else:
        patch.setattr(deleting, "remove_tree", half if step == "in the tree" else dies)


@pytest.mark.parametrize("step", STEPS)
def test_the_next_start_finishes_it(tmp_path, step):
    """Wherever it was cut, the checkpoint is there whole, or gone without a trace."""
    write_all(tmp_path, 1, 2)
    placing.state_dir(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        die_at(step, patch)
        with pytest.raises(Cut):
            delete(tmp_path, inspect(tmp_path / "chk_1"))
    finish_deletions(tmp_path)
    assert names(tmp_path) == (pairs(1, 2) if step in STEPS[:3] else pairs(2))
    if step in STEPS[:3]:
        assert files_of(tmp_path / "chk_1") == FILES
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("step", ["rename 2", "remove_tree"])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_what_was_written_anew_meanwhile_stays(tmp_path, step, is_sealed):
    """Before the next start the trainer wrote under the same name, perhaps not to its end: it is not touched."""
    write_all(tmp_path, 1)
    with pytest.MonkeyPatch.context() as patch:
        die_at(step, patch)
        with pytest.raises(Cut):
            delete(tmp_path, inspect(tmp_path / "chk_1"))
    shutil.rmtree(tmp_path / "chk_1", ignore_errors=True)
    new = random_files(a=10)
    if is_sealed:
        write_checkpoint(tmp_path, "chk_1", 7, new)
    else:
        (tmp_path / "chk_1").mkdir()
        (tmp_path / "chk_1" / "a.bin").write_bytes(new["a.bin"])
    finish_deletions(tmp_path)
    assert files_of(tmp_path / "chk_1") == new
    assert (tmp_path / "chk_1.json").exists() is is_sealed or step == "rename 2"
    assert leftovers(tmp_path) == []


def test_what_changes_while_it_is_deleted_is_put_back(tmp_path, monkeypatch):
    """A file that is rewritten after the look: folder and sidecar are back where they were."""
    write_all(tmp_path, 1)
    local = inspect(tmp_path / "chk_1")
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if Path(source).name == "chk_1":
            (Path(source) / "a.bin").write_bytes(b"new")
        real(source, target)

    monkeypatch.setattr(deleting.os, "rename", rename)
    assert delete(tmp_path, local) is False
    assert names(tmp_path) == pairs(1)
    assert (tmp_path / "chk_1" / "a.bin").read_bytes() == b"new"
    assert leftovers(tmp_path) == []


def test_trash_without_a_sidecar_goes(tmp_path):
    """What is left of a removal that was cut, or of an older version's."""
    trash = placing.state_dir(tmp_path) / "trash-0123"
    (trash / "sub").mkdir(parents=True)
    (trash / "sub" / "a.bin").write_bytes(b"x")
    finish_deletions(tmp_path)
    assert leftovers(tmp_path) == []


# -- the lock ------------------------------------------------------------------------------------------------


async def test_a_lock_that_was_deleted_guards_nothing(tmp_path, monkeypatch):
    """Who waited for a lock's file that is gone by then takes the new one, and is alone with it."""
    held: list[str] = []
    waiting: set[int] = set()
    all_wait = anyio.Event()
    real = placing.try_lock

    def try_lock(fd: int) -> bool | None:
        got = real(fd)
        if got is False:
            waiting.add(fd)
            if len(waiting) == 3:
                all_wait.set()
        return got

    monkeypatch.setattr(placing, "try_lock", try_lock)

    async def hold() -> None:
        async with placing.locked(tmp_path, "pull-chk_1") as lock:
            assert lock.exists()  # so whoever comes now waits
            held.append("held")

    async with placing.locked(tmp_path, "pull-chk_1") as lock:
        tasks = [asyncio.create_task(hold()) for _ in range(3)]
        await all_wait.wait()
        lock.unlink()
    await asyncio.gather(*tasks)
    assert len(held) == 3
    with pytest.raises(TimeoutError):
        async with placing.locked(tmp_path, "pull-chk_1"), placing.locked(tmp_path, "pull-chk_1", patience=0.1):
            pass


def test_only_trash_is_touched(tmp_path):
    """Other files of the state folder are left alone."""
    state = placing.state_dir(tmp_path)
    (state / "journal.db").write_bytes(b"x")
    (tmp_path / "chk_1").mkdir()
    write_sidecar(tmp_path / "chk_1", 1)
    finish_deletions(tmp_path)
    assert names(tmp_path) == pairs(1)
    assert (state / "journal.db").exists()
