"""``r2d1 pull``: what a URI means, brought to the disk."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from r2d1.cli.common import Common, common_options, examples, transfer_options
from r2d1.cli.ending import Exit, Result
from r2d1.cli.here import look_here
from r2d1.cli.running import Session, run
from r2d1.courier.preview import Outlook, Preview
from r2d1.fetcher import AsyncFetcher, FetchInfo
from r2d1.uris import Latest, parse_uri


@click.command(
    epilog=examples(
        "r2d1 pull r2://jobs/my_run/latest --dest ./checkpoints",
        "r2d1 pull r2://jobs/my_run/chk_0042 --dest ./checkpoints --force",
        "r2d1 pull r2://jobs/my_run/latest --dest ./checkpoints --allow-missing",
        "r2d1 pull r2://datasets/mnist --dest ./data",
    )
)
@click.argument("uri", metavar="URI")
@click.option(
    "--dest",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="A directory, made if missing; a checkpoint lands in a folder of its name there.",
)
@click.option("--force", is_flag=True, help="Fetch anew even what is there and matches.")
@click.option("--allow-missing", is_flag=True, help="Exit 0 instead of 3 when nothing is there (a fresh start).")
@common_options
@transfer_options
def pull(common: Common, *, uri: str, dest: Path, force: bool, allow_missing: bool) -> None:
    """Bring a checkpoint or a prefix from the bucket to the disk.

    URI is r2://jobs/<id>/latest (the highest epoch), r2://jobs/<id>/<name>, or r2://<any/prefix>; it names no bucket.

    A checkpoint's folder appears under its name only when every byte of it was verified; an interrupted pull is
    resumed by the next one. A prefix has no digests to verify against: its files are placed one by one, bound to the
    sizes and ETags of one listing. The folder's path is printed on stdout. Ctrl-C or SIGTERM stops at once.
    """

    async def verb(session: Session) -> Result:
        async with AsyncFetcher(session.settings, observer=session.observer) as fetcher:
            info = await fetcher.pull(uri, dest, force)
        target = parse_uri(uri)
        if isinstance(target, Latest):
            await _tell_newer(session, target.job_id, dest, info)
        return _result(info, allow_missing=allow_missing)

    run(common, verb)


async def _tell_newer(session: Session, job_id: str, dest: Path, info: FetchInfo) -> None:
    """A run may take a checkpoint that never left this disk for one that it has not; say that it is there."""
    pulled = -1 if info.epoch is None else info.epoch
    left = [one for one in await _whole_here(session, job_id, dest) if (one.epoch or 0) > pulled]
    if left:
        names = ", ".join(f"{one.name} (epoch {one.epoch})" for one in left[:3]) + (", …" if len(left) > 3 else "")
        session.tell.notice(
            "warning",
            f"{dest}: newer than what the bucket has of job {job_id!a}, and not shipped to it from here: {names}. "
            f"`r2d1 watch {shlex.quote(str(dest))} --job-id {shlex.quote(job_id)} --once` ships what is left",
        )


async def _whole_here(session: Session, job_id: str, dest: Path) -> list[Preview]:
    here = await look_here(session, dest, job_id)
    whole = [one for one in here.not_shipped if one.outlook is Outlook.SHIP]
    return sorted(whole, key=lambda one: one.epoch or 0, reverse=True)


def _result(info: FetchInfo, *, allow_missing: bool) -> Result:
    fields = {
        "found": info.found,
        "source": info.source,
        "local_dir": str(info.local_dir),
        "name": info.name,
        "epoch": info.epoch,
        "cached": info.cached,
        "verified": info.verified,
        "size_mb": info.size_mb,
        "manifest": info.manifest,
        "timestamp": info.timestamp,
        "metadata": dict(info.metadata),
        "why": info.why,
    }
    if info.found:
        what = f"{info.name}, epoch {info.epoch}," if info.name else info.source
        how = "verified" if info.verified else "not verified: it has no manifest"
        return Result([str(info.local_dir)], fields, f"{what} is in {info.local_dir} ({how})")
    text = f"nothing is there: {info.source}" + (f": {info.why}" if info.why else "")
    if allow_missing:
        return Result((), fields, text if info.why else f"{text}; a fresh start")
    hint = "`r2d1 ls` lists what is there" if info.why else "For a first run, --allow-missing makes this exit 0"
    return Result((), fields, code=Exit.NOTHING, why=text, hint=hint)
