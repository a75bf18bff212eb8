"""``r2d1 verify``, ``reindex``, ``rm`` and ``gc``: keeping a bucket in order, safe beside couriers and readers."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

import click

from r2d1 import remote
from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Exit, Result
from r2d1.cli.running import Session, run
from r2d1.cli.targets import job_target
from r2d1.errors import UriError
from r2d1.finding import is_job_known, why_absent, why_no_latest
from r2d1.gc import GC_AGE_S, Garbage, collect
from r2d1.maintain import Removed, Verified, reindex_job, remove, remove_after, verify_target
from r2d1.observers import counted, size
from r2d1.remote import Remote
from r2d1.uris import Job, Latest, Named, Prefix, parse_uri


@asynccontextmanager
async def _ends(session: Session) -> AsyncIterator[tuple[Remote, random.Random]]:
    rng = random.SystemRandom()
    async with remote.opened(session.settings, tell=session.tell, rng=rng) as ends:
        yield ends, rng


@click.command(
    epilog=examples("r2d1 verify r2://jobs/my_run/latest", "r2d1 verify r2://jobs/my_run/chk_0042 --deep --json")
)
@click.argument("uri", metavar="URI")
@click.option("--deep", is_flag=True, help="Read every byte and check its digest, not only names and sizes.")
@common_options
def verify(common: Common, *, uri: str, deep: bool) -> None:
    """Compare a checkpoint in the bucket with its manifest.

    URI is r2://jobs/<id>/latest (the highest epoch) or r2://jobs/<id>/<name>.
    Exits 1 when something is missing or damaged, 3 when there is no such checkpoint.
    """

    async def verb(session: Session) -> Result:
        target = parse_uri(uri)
        if isinstance(target, Prefix):
            raise UriError(f"{uri!a} is no checkpoint: give r2://jobs/<id>/latest or r2://jobs/<id>/<name>")
        return await _verify(session, target, uri, deep=deep)

    run(common, verb)


async def _verify(session: Session, target: Latest | Named, uri: str, *, deep: bool) -> Result:
    async with _ends(session) as (ends, _):
        lane = ends.lane(session.settings, session.tell)
        verified = await verify_target(lane, ends.catalog, target, uri, deep=deep)
        if verified is not None:
            return _verified(verified)
        if isinstance(target, Named):
            known = await why_absent(lane.store, ends.catalog, target.of, session.tell)
        else:
            known = await why_no_latest(lane.store, target.job_id)
    why = f"nothing is there: {uri}" + (f": {known}" if known else "")
    fields = {"found": False, "uri": uri, "why": known}
    return Result((), fields, code=Exit.NOTHING, why=why, hint="`r2d1 ls` lists what is there")


def _verified(verified: Verified) -> Result:
    fields = asdict(verified)
    read = "every byte was read" if verified.is_deep else "names and sizes only; --deep reads the bytes"
    what = f"{verified.name}, epoch {verified.epoch}, {counted(verified.files, 'file')}, {size(verified.total_bytes)}"
    if verified.problems:
        hint = "`r2d1 rm` it and ship it again, or pull another one by name"
        return Result(
            list(verified.problems), fields, code=Exit.FAILED, why=f"{what}: not as its manifest says", hint=hint
        )
    return Result([f"{what}: as its manifest says ({read})"], fields, f"{verified.name} is whole")


@click.command(epilog=examples("r2d1 reindex r2://jobs/my_run"))
@click.argument("uri", metavar="URI")
@common_options
def reindex(common: Common, *, uri: str) -> None:
    """Rebuild a job's D1 rows and hints from the bucket.

    URI is r2://jobs/<id>. The heads in the bucket alone say what exists; rows and hints that tell of them are written
    anew. Exits 3 when the bucket knows nothing of the job.
    """

    async def verb(session: Session) -> Result:
        target = job_target(uri)
        if not isinstance(target, Job):
            raise UriError(f"{uri!a} is one checkpoint; a whole job is reindexed: r2://jobs/<id>")
        async with _ends(session) as (ends, _):
            done = await reindex_job(ends, target.job_id, session.tell)
            if not done.heads and not await is_job_known(ends.store, target.job_id):
                return _unknown(ends, target.job_id, asdict(done))
        counts = f"{counted(done.heads, 'head')} read, {counted(done.rows, 'row')} written"
        text = f"{counts}, {counted(done.hints, 'hint')} put back"
        return Result([text], asdict(done), f"{target.job_id} is reindexed")

    run(common, verb)


def _unknown(ends: Remote, job_id: str, fields: dict[str, object]) -> Result:
    why = f"nothing is known of job {job_id!a} in {ends.store.where}"
    return Result((), {"found": False, **fields}, code=Exit.NOTHING, why=why, hint="`r2d1 ls` lists the jobs")


@click.command(epilog=examples("r2d1 rm r2://jobs/my_run/chk_0042", "r2d1 rm r2://jobs/my_run --after 41"))
@click.argument("uri", metavar="URI")
@click.option("--after", "after", type=click.IntRange(min=0), metavar="EPOCH", help="Delete all of a higher epoch.")
@common_options
def rm(common: Common, *, uri: str, after: int | None) -> None:
    """Delete a checkpoint, or the end of a timeline that was given up.

    URI is r2://jobs/<id>/<name>, or with --after r2://jobs/<id>. The end is every checkpoint of an epoch above
    --after. The head is marked first, so that readers see it gone at once; a call that was cut is simply made again.
    Local files are not touched (`r2d1 ship` sends one again, `watch` does not as long as it is unchanged), and
    checkpoints of r2d1 0.2 never deleted. Exits 3 when the bucket knows nothing of the job.
    """

    async def verb(session: Session) -> Result:
        target = job_target(uri)
        if isinstance(target, Job) != (after is not None):
            raise UriError(f"{uri!a}: name one checkpoint, or a job together with --after")
        async with _ends(session) as (ends, rng):
            if isinstance(target, Job):
                assert after is not None
                removed = await remove_after(ends, target.job_id, after, rng)
            else:
                one = await remove(ends, target.of, rng)  # also of what is gone: an earlier call may have been cut
                removed = [one] if one else []
            job_id = target.job_id if isinstance(target, Job) else target.of.job_id
            if not removed and not await is_job_known(ends.store, job_id):
                return _unknown(ends, job_id, {"removed": []})
        return _removed(removed)

    run(common, verb)


def _removed(removed: list[Removed]) -> Result:
    done = [one for one in removed if one.had_rest]
    fields = {"removed": [asdict(one) for one in done]}
    lines = [f"{one.name} (epoch {one.epoch})" for one in done]
    if removed and not done:
        return Result(lines, fields, f"nothing to delete: {removed[0].name} was deleted before")
    finished = sum(one.was_marked for one in done)
    told = [f"{counted(len(done) - finished, 'checkpoint')} deleted"] if len(done) > finished else []
    told += [f"the deletion of {counted(finished, 'checkpoint')} that was begun before is finished"] if finished else []
    return Result(lines, fields, ", ".join(told) or "nothing to delete")


@click.command(epilog=examples("r2d1 gc r2://jobs/my_run", "r2d1 gc r2://jobs/my_run --delete"))
@click.argument("uri", metavar="URI")
@click.option("--delete", is_flag=True, help="Delete what is listed.")
@click.option(
    "--age-days",
    type=click.FloatRange(min=0),
    default=GC_AGE_S / 86_400,
    show_default=True,
    help="What is younger is left alone: a courier may still be sending it.",
)
@common_options
def gc(common: Common, *, uri: str, delete: bool, age_days: float) -> None:
    """List (or delete) what no checkpoint needs any more.

    URI is r2://jobs/<id>.
    Ships that were never committed, stale hints and open uploads, once they are old enough.
    """

    async def verb(session: Session) -> Result:
        target = job_target(uri)
        if not isinstance(target, Job):
            raise UriError(f"{uri!a} is one checkpoint; garbage is collected for a job: r2://jobs/<id>")
        async with _ends(session) as (ends, rng):
            age_s = age_days * 86_400
            found = await collect(ends.store, target.job_id, session.tell, rng, delete=delete, gc_age_s=age_s)
        return _garbage(found, delete=delete)

    run(common, verb)


def _garbage(found: Garbage, *, delete: bool) -> Result:
    lines = [*found.ships, *found.hints, *found.uploads, *(f"left alone: {why}" for why in found.skipped)]
    pieces = len(found.ships) + len(found.hints) + len(found.uploads)
    if not pieces:
        return Result(lines, asdict(found), "no garbage found")
    count = counted(pieces, "piece") + " of garbage"
    if delete:
        return Result(lines, asdict(found), f"{count} found, {len(found.deleted)} deleted")
    return Result(lines, asdict(found), f"{count} found; --delete takes it away")
