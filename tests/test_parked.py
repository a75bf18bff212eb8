"""Why the store would not take a checkpoint: kept in the journal for other processes and the next start."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from r2d1.courier import AsyncCourier
from r2d1.errors import FlushError, R2D1Error
from r2d1.events import ShipFailed
from r2d1.journal import Done, Journal, Parked, scope_of
from r2d1.testing import Answer, Fault, Gate, Hold, S3Double, When
from tests.checkpoints import random_files, write_checkpoint, write_sidecar
from tests.cli.shell import answer, finished
from tests.remote_ends import Told, open_courier

SCOPE = scope_of("memory://bucket", "job")
REFUSED = Fault(When(method="PUT"), Answer(403, "AccessDenied", "scripted"), times=None)


@asynccontextmanager
async def refusing(s3: S3Double, directory: Path, **watching: object) -> AsyncIterator[AsyncCourier]:
    """A courier whose store has refused every checkpoint of a directory."""
    s3.faults.add(REFUSED)
    async with open_courier(s3) as courier:
        await courier.watch(directory, "job", **watching)
        with pytest.raises(FlushError):
            await courier.flush()
        yield courier
        s3.faults.clear()
        await courier.flush()


async def refuse(s3: S3Double, directory: Path, times: int = 1, **watching: object) -> None:
    """A courier's life in which its store refused every checkpoint of a directory, so often."""
    s3.faults.add(REFUSED)
    told = Told()
    with anyio.CancelScope() as scope:  # leaving it drains nothing, so nothing is tried once more
        async with open_courier(s3, observer=told) as courier:
            await courier.watch(directory, "job", **watching)
            await told.first(ShipFailed)
            for _ in range(times - 1):
                with pytest.raises(FlushError):
                    await courier.flush()
            scope.cancel()
    s3.faults.clear()


def noted(s3: S3Double, directory: Path) -> dict[str, Parked]:
    """What the journal says, as another process reads it."""
    journal = Journal.of(directory)
    scopes = {scope for (scope,) in journal._all("SELECT scope FROM parked")}
    found = {name: parked for scope in scopes for name, parked in journal.all_parked(str(scope)).items()}
    journal.close()
    return found


def asked(s3: S3Double, directory: Path) -> dict[str, Any]:
    """What ``r2d1 status`` says of the directory, in a process of its own."""
    ended = finished("status", "--job-id", "job", directory, "--json", env=s3.env(), home=directory)
    return answer(ended)["journal"]


def status_of(s3: S3Double, directory: Path) -> dict[str, str]:
    return asked(s3, directory)["not_shipped"]


# -- what other eyes see --------------------------------------------------------------------------------------


@pytest.mark.parametrize("snapshot", [None, "hardlink"])
async def test_another_process_is_told_why(s3, tmp_path, snapshot):
    """``r2d1 status`` names the store's words, how often it was tried and when; no secret is on the disk."""
    write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))
    await refuse(s3, tmp_path, times=3, snapshot=snapshot)
    said = asked(s3, tmp_path)
    why = said["not_shipped"]["chk_1"]
    assert why.startswith("tried 3 times, the last at 20")
    assert "403 AccessDenied - scripted" in why
    assert said["parked"]["chk_1"]["times"] == 3
    text = finished("status", "--job-id", "job", tmp_path, env=s3.env(), home=tmp_path).stdout
    assert f"    chk_1: {why}" in text.splitlines()
    secrets = [value.encode() for name, value in s3.env().items() if "SECRET" in name]
    assert secrets
    raw = b"".join(path.read_bytes() for path in (tmp_path / ".r2d1").glob("journal.db*"))
    assert b"AccessDenied" in raw
    assert not any(secret in raw for secret in secrets)


async def test_what_ship_could_not_send_is_told_as_well(s3, tmp_path):
    """``r2d1 ship`` leaves the store's words for ``r2d1 status``, until the same command goes well."""
    write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))
    ship = partial(finished, "ship", "--job-id", "job", tmp_path / "chk_1", "--json", env=s3.env(), home=tmp_path)
    s3.faults.add(REFUSED)
    for _ in range(2):
        assert (await anyio.to_thread.run_sync(ship)).exit_code == 1
    s3.faults.clear()
    why = (await anyio.to_thread.run_sync(status_of, s3, tmp_path))["chk_1"]
    assert why.startswith("tried 2 times")
    assert "403 AccessDenied - scripted" in why
    assert (await anyio.to_thread.run_sync(ship)).exit_code == 0
    assert noted(s3, tmp_path) == {}


async def test_the_next_courier_knows_until_it_has_tried(s3, tmp_path):
    """While the first attempt after a restart is under way, the status tells what became of those before it."""
    write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))
    await refuse(s3, tmp_path)
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject"), Hold(gate)))
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job")
        await gate.arrived.wait()
        status = courier.status()
        assert status.in_flight == ("job/chk_1",)
        assert "AccessDenied" in status.parked["job/chk_1"]
        assert not status.is_healthy
        gate.release()
        await courier.flush()
        assert courier.status().parked == {}
        assert courier.status().is_healthy
    assert noted(s3, tmp_path) == {}


async def test_the_count_goes_on_over_restarts(s3, tmp_path):
    """Attempts of the same state are counted whoever made them."""
    write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))
    await refuse(s3, tmp_path, times=2)
    await refuse(s3, tmp_path, times=2)
    assert noted(s3, tmp_path)["chk_1"].times == 4


# -- when it is forgotten -------------------------------------------------------------------------------------


async def test_shipped_is_forgiven(s3, tmp_path):
    """A reason is gone from the journal with the commit."""
    write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))
    async with refusing(s3, tmp_path):
        assert set(noted(s3, tmp_path)) == {"chk_1"}
    assert noted(s3, tmp_path) == {}
    assert status_of(s3, tmp_path) == {}


async def test_a_reason_is_for_one_state(s3, tmp_path):
    """Of a checkpoint that was written over since nothing is known; a courier drops the old reason."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))
    await refuse(s3, tmp_path)
    (folder / "a.bin").write_bytes(b"another version")
    write_sidecar(folder, 2)
    assert status_of(s3, tmp_path) == {"chk_1": "ready to be shipped"}
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject"), Hold(gate)))
    async with open_courier(s3) as courier:
        await courier.watch(tmp_path, "job")
        await gate.arrived.wait()
        assert courier.status().parked == {}
        assert noted(s3, tmp_path) == {}
        gate.release()


async def test_what_is_gone_is_forgotten(s3, tmp_path):
    """The journal holds no reason for what rotation took away, so it does not grow."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))
    write_checkpoint(tmp_path, "chk_2", 2, random_files(a=100))
    async with refusing(s3, tmp_path) as courier:
        assert set(noted(s3, tmp_path)) == {"chk_1", "chk_2"}
        (folder / "a.bin").unlink()
        folder.with_name("chk_1.json").unlink()
        folder.rmdir()
        with pytest.raises(FlushError):
            await courier.flush()
        assert set(noted(s3, tmp_path)) == {"chk_2"}
        write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))


async def test_a_journal_that_cannot_be_written_stops_nothing(s3, tmp_path, monkeypatch):
    """The reason is told all the same, and that it could not be noted."""
    write_checkpoint(tmp_path, "chk_1", 1, random_files(a=100))

    def refuse_to_write(*_: object) -> None:
        raise R2D1Error("journal: scripted")

    monkeypatch.setattr(Journal, "record_parked", refuse_to_write)
    s3.faults.add(REFUSED)
    told = Told()
    async with open_courier(s3, observer=told) as courier:
        await courier.watch(tmp_path, "job")
        await told.first(ShipFailed)
        await told.until(lambda: any("could not be noted" in text for text in told.notices("warning")))
        s3.faults.clear()
        await courier.flush()


# -- the record -----------------------------------------------------------------------------------------------


def test_a_reason_is_one_short_line(tmp_path):
    """Whatever a server or a file name put into it."""
    journal = Journal(tmp_path)
    journal.record_parked(SCOPE, "chk_1", Parked("state", "a\nb\udcff " + "x" * 5000, 1.5))
    (parked,) = journal.all_parked(SCOPE).values()
    assert parked.why.startswith("a b\\udcff xxx")
    assert len(parked.why) == 1000
    journal.record_done(SCOPE, "chk_1", Done("state", 1, "p", "m", "shipped"))
    assert journal.all_parked(SCOPE) == {}
    journal.close()


def test_how_often_and_when():
    """A person reads it as a sentence."""
    text = "tried 1 time, the last at 1970-01-01 00:00:01 UTC: why"
    assert str(Parked("state", "why", 1.5)) == text
    assert str(Parked("state", "why", 1.5, 2)) == text.replace("1 time,", "2 times,")


def test_a_journal_from_before_there_were_reasons(tmp_path):
    """It is taken as it is, and gets what it lacks; one with tables nobody knows is taken, too."""
    journal = Journal(tmp_path)
    journal.owe(SCOPE, "chk_1")
    journal.close()
    with sqlite3.connect(journal.path) as db:
        db.execute("DROP TABLE parked")
        db.execute("CREATE TABLE of_a_later_day (x TEXT)")
    db.close()
    again = Journal(tmp_path)
    assert again.owed(SCOPE) == ["chk_1"]
    again.record_parked(SCOPE, "chk_1", Parked("state", "why", 1.5))
    assert set(again.all_parked(SCOPE)) == {"chk_1"}
    again.close()
    assert not (tmp_path / "journal.broken").exists()
