"""``r2d1 ls`` and ``r2d1 status``: what the bucket and the catalog hold, and what a directory still owes."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from r2d1 import keys
from r2d1.catalog import Catalog, open_catalog
from r2d1.cli.common import Common, common_options, examples, job_id_option
from r2d1.cli.ending import Exit, Result
from r2d1.cli.running import Session, opened_store, run
from r2d1.cli.table import age, table
from r2d1.cli.targets import job_target
from r2d1.finding import find_latest
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
    name, epoch, age, size and state. Checkpoints of r2d1 0.2 are included and marked. Exits 1 when one is damaged or
    cannot be read.
    """

    async def verb(session: Session) -> Result:
        target = job_target(uri) if uri else None
        async with _bucket(session) as store:
            if target is None:
                return _jobs(await list_jobs(store))
            if isinstance(target, Named):
                one = await look_at(store, target.of)
                return _checkpoints([one] if one else [], time.time())
            return _checkpoints(await list_checkpoints(store, target.job_id), time.time())

    run(common, verb)


@asynccontextmanager
async def _bucket(session: Session) -> AsyncIterator[ObjectStore]:
    for notice in session.settings.notices():
        session.tell.notice("warning", notice)
    async with opened_store(session) as store:
        yield store


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

    The age of the newest row is the job's heartbeat (without D1: of the newest checkpoint in the bucket). For a
    watched DIR, its journal tells which ships were begun and not committed, and which rows are owed; what lies there
    and is not shipped is listed with what keeps it: a file that is missing, a link that leaves the folder, what the
    store said when a courier last tried, or nothing (no watch has tried yet).
    """

    async def verb(session: Session) -> Result:
        keys.check_job_id(job_id)
        newest = await _newest(session, job_id)
        here = await _look_here(session, directory, job_id) if directory else None
        return _status(job_id, newest, here, time.time())

    run(common, verb)


async def _newest(session: Session, job_id: str) -> _Newest | None:
    settings = session.settings
    if not settings.has_d1 and settings.store_url is None:
        return await _newest_in_bucket(session, job_id)
    catalog = open_catalog(settings, tell=session.tell, policy=RetryPolicy(), brake=Brake(random.SystemRandom()))
    assert catalog is not None
    try:
        return await _newest_row(catalog, job_id)
    finally:
        await catalog.aclose()


async def _newest_row(catalog: Catalog, job_id: str) -> _Newest | None:
    for row in await catalog.rows(job_id, limit=1):
        return _Newest(catalog.where, row.name, row.epoch, row.timestamp, row.r2_prefix)
    return None


async def _newest_in_bucket(session: Session, job_id: str) -> _Newest | None:
    async with _bucket(session) as store:
        found = await find_latest(store, None, job_id, session.tell)
        if found is None:
            return None
        prefix = found.head.prefix if found.head else found.of.legacy
        return _Newest(store.where, found.of.name, found.epoch, found.timestamp, prefix)


async def _look_here(session: Session, directory: Path, job_id: str) -> Here:
    from r2d1.cli.here import look_here  # the courier's libraries, which nothing else here needs

    return await look_here(session, directory, job_id)


def _status(job_id: str, newest: _Newest | None, here: Here | None, now: float) -> Result:
    lines = [_heartbeat(job_id, newest, now)]
    fields: dict[str, object] = {"job_id": job_id, "newest": None}
    if newest is not None:
        fields["newest"] = {**asdict(newest), "age_s": _age_s(newest.timestamp, now)}
    if here is not None:
        whys = {one.name: one.why or str(one.parked or "ready to be shipped") for one in here.not_shipped}
        parked = {one.name: asdict(one.parked) for one in here.not_shipped if one.parked}
        owed = {"rows_owed": here.rows_owed, "ships_under_way": here.ships_under_way, "done": len(here.done)}
        fields["journal"] = {"directory": str(here.directory), **owed, "not_shipped": whys, "parked": parked}
        lines.append(f"{here.directory}: {counted(len(here.done), 'checkpoint')} shipped or pulled")
        lines.append(f"  ships under way: {', '.join(here.ships_under_way) or 'none'}")
        lines.append(f"  rows owed: {', '.join(here.rows_owed) or 'none'}")
        lines.append("  not shipped:" if whys else "  not shipped: none")
        lines += [f"    {name}: {why}" for name, why in whys.items()]
    return Result(lines, fields, "no checkpoint yet" if newest is None else f"asked {newest.source}")


def _heartbeat(job_id: str, newest: _Newest | None, now: float) -> str:
    if newest is None:
        return f"{job_id}: no checkpoint yet"
    ago = age(now - newest.timestamp)
    return f"{job_id}: newest is {newest.name}, epoch {newest.epoch}, {ago} ago"
