"""``r2d1 datasets publish`` and ``publish-labels``: from this machine's disk into the bucket."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Result
from r2d1.cli.progress import progress_of
from r2d1.cli.running import Session, run
from r2d1.datasets.labels import LabelsReport, publish_labels_async
from r2d1.datasets.publish import VERIFY_UNITS, PublishReport, publish_shard_set_async
from r2d1.observers import counted, size
from r2d1.settings import Settings


def _check_target(ctx: click.Context, param: click.Parameter, target: str) -> str:
    if target != "r2" and not target.startswith("file://"):
        raise click.BadParameter(f"{target!a} is neither r2 nor file:///DIR", ctx, param)
    return target


to_option = click.option(
    "--to",
    "target",
    default="r2",
    callback=_check_target,
    show_default=True,
    metavar="r2|URL",
    help="r2 is the bucket of the settings; file:///DIR is a directory in its place.",
)


def _settings(common: Common, target: str) -> Settings:
    """The settings, with the store that ``--to`` names."""
    return common.settings() if target == "r2" else Settings.from_env(env_file=common.env_file, store_url=target)


@click.command(
    epilog=examples(
        "r2d1 datasets publish data/od --to r2 --env-file .env",
        "r2d1 datasets publish data/od --to r2 --env-file .env --prefix sets/od-a-v1 --verify-units 2",
        "r2d1 datasets publish data/od --to file:///srv/mirror --verify-units 0",
    )
)
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@to_option
@click.option("--prefix", default="", help="Where in the bucket; without it at the top.")
@click.option(
    "--verify-units",
    type=click.IntRange(min=0),
    default=VERIFY_UNITS,
    show_default=True,
    metavar="N",
    help="Random units read back through the public base at the end.",
)
@click.option(
    "--replace/--no-replace",
    "may_replace",
    default=True,
    show_default=True,
    help="Whether the documents of another set at this prefix are replaced.",
)
@common_options
def publish(common: Common, *, directory: Path, target: str, prefix: str, verify_units: int, may_replace: bool) -> None:
    """Publish a shard set in the bucket.

    Shards first, to keys that never change; then build_record.json; manifest.json last. Only these are sent. What is
    there already is skipped, so the same command goes on where it was interrupted. The documents
    of another set at this prefix are replaced with a warning; --no-replace refuses before anything is sent.
    """

    async def verb(session: Session) -> Result:
        with progress_of(common) as on_progress:
            report = await publish_shard_set_async(
                directory,
                session.settings,
                prefix=prefix,
                verify_units=verify_units,
                may_replace=may_replace,
                observer=session.observer,
                on_progress=on_progress,
            )
        return _published(report)

    run(common, verb, settings=partial(_settings, common, target))


def _published(report: PublishReport) -> Result:
    where = f"{report.where}/{report.prefix}" if report.prefix else report.where
    verified = f"; {counted(len(report.verified_units), 'unit')} verified" if report.verified_units else ""
    summary = (
        f"{counted(report.sent, 'object')} sent ({size(report.sent_bytes)}), {report.present} there already,"
        f" at {where}{verified}"
    )
    return Result((), asdict(report), summary)


@click.command(
    name="publish-labels",
    epilog=examples("r2d1 datasets publish-labels labels --prefix labels/teacher-od-a-v1 --env-file .env"),
)
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@to_option
@click.option("--prefix", required=True, help="Where in the bucket.")
@click.option("--hidden", is_flag=True, help="Publish .env, .git and the like, too; without it they are an error.")
@common_options
def publish_labels(common: Common, *, directory: Path, target: str, prefix: str, hidden: bool) -> None:
    """Publish a directory of labels in the bucket.

    Every file at its relative path, then labels-index.json with the size and SHA-256 of each. Files that did not
    change are neither sent nor read again. Paths that the index named before and no longer does are printed.
    """

    async def verb(session: Session) -> Result:
        with progress_of(common) as on_progress:
            report = await publish_labels_async(
                directory,
                session.settings,
                prefix=prefix,
                hidden=hidden,
                observer=session.observer,
                on_progress=on_progress,
            )
        return _labelled(report)

    run(common, verb, settings=partial(_settings, common, target))


def _labelled(report: LabelsReport) -> Result:
    lines = [f"removed: {path}" for path in report.removed]
    summary = (
        f"{counted(report.sent, 'file')} sent ({size(report.sent_bytes)}), {report.present} there already,"
        f" {len(report.removed)} removed from the index, at {report.where}/{report.prefix}"
    )
    return Result(lines, asdict(report), summary)
