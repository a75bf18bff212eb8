"""``r2d1 ls`` and ``r2d1 status``: what the bucket and the catalog hold, and what a directory still owes."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from r2d1 import keys, remote
from r2d1.catalog import Catalog, open_catalog
from r2d1.cli.common import Common, common_options, examples, job_id_option
from r2d1.cli.ending import Exit, Result, of_error
from r2d1.cli.running import Session, opened_store, run
from r2d1.cli.table import age, table
from r2d1.cli.targets import job_target
from r2d1.errors import R2D1Error
from r2d1.events import Teller
from r2d1.finding import D1_PATIENCE_S, Found, find_latest, why_absent
from r2d1.keys import CheckpointKeys
from r2d1.listing import Listed, State, list_checkpoints, list_jobs, look_at
from r2d1.objects import ObjectStore
from r2d1.observers import counted, size
from r2d1.retry import Brake, RetryPolicy
from r2d1.uris import Named

if TYPE_CHECKING:
    from r2d1.cli.here import Here

_BAD = (State.DAMAGED, State.UNREADABLE)


@click.command(epilog=examples("r2d1 ls", "r2d1 ls r2://jobs/my_run", "r2d1 ls r2://jobs/my_run/chk_0042 --json"))
@click.argument("uri", metavar="[URI]", required=False)
@common_options
def ls(common: Common, *, uri: str | None) -> None:
    """List the jobs of the bucket, or the checkpoints of a job.

    URI is r2://jobs/<id> or r2://jobs/<id>/<name>; without it the jobs. For a job its checkpoints, newest first:
    name, epoch, age, size and state. Checkpoints of r2d1 0.2 are included and marked. Exits 1 when a head cannot be
    read, or the manifest it names is missing; files are not looked at, `r2d1 verify` compares them.
    """

    async def verb(session: Session) -> Result:
        target = job_target(uri) if uri else None
        async with _bucket(session) as store:
            if target is None:
                return _jobs(await list_jobs(store))
            if isinstance(target, Named):
                return await _one(store, target.of, session.tell)
            return _checkpoints(await list_checkpoints(store, target.job_id), time.time())

    run(common, verb)


@asynccontextmanager
async def _bucket(session: Session) -> AsyncIterator[ObjectStore]:
    for notice in session.settings.notices():
        session.tell.notice("warning", notice)
    async with opened_store(session) as store:
        yield store


async def _one(store: ObjectStore, of: CheckpointKeys, tell: Teller) -> Result:
    one = await look_at(store, of)
    if one is not None:
        return _checkpoints([one], time.time())
    why = await why_absent(store, None, of, tell)
    return Result((), {"checkpoints": [], "why": why}, "0 checkpoints" + (f": {of.name}: {why}" if why else ""))


def _jobs(jobs: Sequence[str]) -> Result:
    return Result([keys.shown(job)[1:-1] for job in jobs], {"jobs": list(jobs)}, counted(len(jobs), "job"))


def _checkpoints(found: Sequence[Listed], now: float) -> Result:
    rows = [_row(one, now) for one in found]
    lines = table(("name", "epoch", "age", "size", "state"), rows) if rows else []
    fields = {"checkpoints": [{**asdict(one), "age_s": _age_s(one.timestamp, now)} for one in found]}
    bad = [one for one in found if one.state in _BAD]
    if bad:
        why = f"{bad[0].name} is {bad[0].state}: {bad[0].note}" + (f" ({len(bad)} such)" if len(bad) > 1 else "")
        return Result(lines, fields, code=Exit.FAILED, why=why, hint="The others can be pulled by name")
    return Result(lines, fields, counted(len(found), "checkpoint"))


def _row(one: Listed, now: float) -> tuple[str, ...]:
    seconds = _age_s(one.timestamp, now)
    return (
        one.name,
        "-" if one.epoch is None else str(one.epoch),
        "-" if seconds is None else age(seconds),
        "-" if one.total_bytes is None else size(one.total_bytes),
        f"{one.state}: {one.note}" if one.note else str(one.state),
    )


def _age_s(timestamp: float | None, now: float) -> float | None:
    return None if timestamp is None else round(now - timestamp, 3)


@dataclass(frozen=True, slots=True)
class _Newest:
    """The newest checkpoint of a job, and who said so."""

    source: str
    name: str
    epoch: int
    timestamp: float
    r2_prefix: str


@click.command(epilog=examples("r2d1 status --job-id my_run", "r2d1 status --job-id my_run ./checkpoints"))
@click.argument(
    "directory", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@job_id_option
@common_options
def status(common: Common, *, directory: Path | None, job_id: str) -> None:
    """Tell the newest checkpoint of a job and what a directory still owes.

    The age of the newest checkpoint is the job's heartbeat: the bucket says which one it is (D1 where only D1's
    settings are given, or the bucket does not answer). For a watched DIR, its journal tells which ships were begun
    and not committed, and which rows are owed, its lock whether a courier is at work; what lies there
    and is not shipped is listed with what keeps it: a file that is missing, a link that leaves the folder, what the
    store said when a courier last tried, or nothing (no watch has tried yet). Exits 1 when the bucket could not be
    asked, and tells of DIR all the same.
    """

    async def verb(session: Session) -> Result:
        keys.check_job_id(job_id)
        here = await _look_here(session, directory, job_id) if directory else None
        asked = await _ask(session, job_id)
        result = _status(job_id, asked, here, time.time())
        if asked.error is None:
            return result
        failed = of_error(asked.error, verbose=common.verbose, command="r2d1 status")
        return replace(failed, lines=result.lines, fields={**result.fields, **failed.fields})

    run(common, verb)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the remote ends said of a job; with an ``error`` the bucket could not be asked, and ``newest`` is D1's."""

    source: str = ""
    newest: _Newest | None = None
    error: Exception | None = None


async def _ask(session: Session, job_id: str) -> _Asked:
    """The newest checkpoint by the heads of the bucket; by D1's rows where there is no bucket to ask."""
    if session.settings.has_d1 and session.settings.missing_r2():
        return await _ask_d1_alone(session, job_id)
    try:
        async with remote.opened(session.settings, tell=session.tell, rng=random.SystemRandom()) as ends:
            try:
                found = await find_latest(ends.store, ends.catalog, job_id, session.tell)
            except R2D1Error as exc:
                return _Asked(newest=await _newest_row_if_told(ends.catalog, job_id, session.tell), error=exc)
            return _Asked(ends.store.where, _newest_of(found, ends.store.where))
    except (R2D1Error, OSError) as exc:
        return _Asked(error=exc)


def _newest_of(found: Found | None, source: str) -> _Newest | None:
    if found is None:
        return None
    prefix = found.head.prefix if found.head else found.of.legacy
    return _Newest(source, found.of.name, found.epoch, found.timestamp, prefix)


async def _ask_d1_alone(session: Session, job_id: str) -> _Asked:
    catalog = open_catalog(
        session.settings, tell=session.tell, policy=RetryPolicy(), brake=Brake(random.SystemRandom())
    )
    assert catalog is not None
    try:
        return _Asked(catalog.where, await _newest_row(catalog, job_id))
    finally:
        await catalog.aclose()


async def _newest_row_if_told(catalog: Catalog | None, job_id: str, tell: Teller) -> _Newest | None:
    """D1's word, where the bucket has none; that it has none either is told, the bucket's error is the command's."""
    if catalog is None:
        return None
    try:
        with anyio.fail_after(D1_PATIENCE_S):
            return await _newest_row(catalog, job_id)
    except (R2D1Error, TimeoutError) as exc:
        tell.notice("warning", f"D1 could not be asked for the newest checkpoint: {exc or 'no answer in time'}")
        return None


async def _newest_row(catalog: Catalog, job_id: str) -> _Newest | None:
    for row in await catalog.rows(job_id, limit=1):
        return _Newest(catalog.where, row.name, row.epoch, row.timestamp, row.r2_prefix)
    return None


async def _look_here(session: Session, directory: Path, job_id: str) -> Here:
    from r2d1.cli.here import look_here  # the courier's libraries, which nothing else here needs

    return await look_here(session, directory, job_id)


def _status(job_id: str, asked: _Asked, here: Here | None, now: float) -> Result:
    newest = asked.newest
    lines = [_heartbeat(job_id, asked, now)]
    fields: dict[str, object] = {"job_id": job_id, "newest": None}
    if newest is not None:
        fields["newest"] = {**asdict(newest), "age_s": _age_s(newest.timestamp, now)}
    if here is not None:
        fields["journal"] = _fields_here(here)
        lines += _lines_here(here)
    return Result(lines, fields, f"asked {asked.source}" if newest else "no checkpoint yet")


def _whys(here: Here) -> dict[str, str]:
    return {one.name: one.why or str(one.parked or "ready to be shipped") for one in here.not_shipped}


def _fields_here(here: Here) -> dict[str, object]:
    holder = here.holder
    return {
        "directory": str(here.directory),
        "rows_owed": here.rows_owed,
        "ships_under_way": here.ships_under_way,
        "done": len(here.done),
        "courier": {"is_held": holder.is_held, "pid": holder.pid, "by": holder.by},
        "not_shipped": _whys(here),
        "parked": {one.name: asdict(one.parked) for one in here.not_shipped if one.parked},
    }


def _lines_here(here: Here) -> list[str]:
    whys = _whys(here)
    under_way = ", ".join(here.ships_under_way) or "none"
    if here.ships_under_way and here.holder.is_held is False:
        under_way += " (begun and left; the next courier goes on with it)"
    known = f"the journal knows {counted(len(here.done), 'checkpoint')} as shipped or pulled"
    return [
        f"{here.directory}: {known} (`r2d1 ls` tells which the bucket has now)",
        f"  courier: {here.holder}",
        f"  ships under way: {under_way}",
        f"  rows owed: {', '.join(here.rows_owed) or 'none'}",
        "  not shipped:" if whys else "  not shipped: none",
        *(f"    {name}: {why}" for name, why in whys.items()),
    ]


def _heartbeat(job_id: str, asked: _Asked, now: float) -> str:
    newest = asked.newest
    if newest is None:
        return f"{job_id}: {'the newest checkpoint cannot be told' if asked.error else 'no checkpoint yet'}"
    said = f"newest is {newest.name}, epoch {newest.epoch}, {age(now - newest.timestamp)} ago"
    return f"{job_id}: {said} by D1's rows; the bucket could not be asked" if asked.error else f"{job_id}: {said}"
