"""``r2d1 pull``: what a URI means, brought to the disk."""

from __future__ import annotations

from pathlib import Path

import click

from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Exit, Result
from r2d1.cli.running import Session, run
from r2d1.fetcher import AsyncFetcher, FetchInfo


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
def pull(common: Common, *, uri: str, dest: Path, force: bool, allow_missing: bool) -> None:
    """Bring a checkpoint or a prefix from the bucket to the disk.

    The folder appears under its name only when every byte of it was verified; an interrupted pull is resumed by the
    next one. The folder's path is printed on stdout.
    """

    async def verb(session: Session) -> Result:
        async with AsyncFetcher(session.settings, observer=session.observer) as fetcher:
            return _result(await fetcher.pull(uri, dest, force), allow_missing=allow_missing)

    run(common, verb)


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
    }
    if info.found:
        what = f"{info.name}, epoch {info.epoch}," if info.name else info.source
        how = "verified" if info.verified else "not verified: it has no manifest"
        return Result([str(info.local_dir)], fields, f"{what} is in {info.local_dir} ({how})")
    if allow_missing:
        return Result((), fields, f"nothing is there: {info.source}; a fresh start")
    hint = "For a first run, --allow-missing makes this exit 0"
    return Result((), fields, code=Exit.NOTHING, why=f"nothing is there: {info.source}", hint=hint)
