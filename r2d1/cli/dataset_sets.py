"""``r2d1 datasets build`` and ``verify``: shard sets on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Exit, Result
from r2d1.cli.progress import progress_of
from r2d1.cli.running import Session, run
from r2d1.datasets.layout import DEFAULT_UNIT, MANIFEST_NAME
from r2d1.datasets.report import VerifyReport
from r2d1.errors import R2D1Error
from r2d1.observers import counted, size
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    from r2d1.datasets import BuildReport

_MIB = 1 << 20

workers_option = click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Processes at once.  [default: all cores]"
)


@click.command(
    epilog=examples(
        "r2d1 datasets build --mix prose --out data/prose --cache cache --registry registry.json",
        "r2d1 datasets build --mix prose --out data/few --cache cache --registry registry.json --limit-docs 9 --unit 4",
    )
)
@click.option("--mix", required=True, metavar="ID", help="The mix of the registry that is built.")
@click.option(
    "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory of the set to be made."
)
@click.option(
    "--cache",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Holds <source id>/**/*.parquet of every source, and tokenizer.json.",
)
@click.option(
    "--registry",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A mix registry (JSON).  [default: the one that r2d1 ships]",
)
@click.option("--limit-docs", type=click.IntRange(min=1), metavar="N", help="At most N documents a source.")
@click.option(
    "--unit", type=click.IntRange(min=1), default=DEFAULT_UNIT, show_default=True, metavar="ROWS", help="Rows a unit."
)
@click.option(
    "--samples-per-shard",
    type=click.IntRange(min=1),
    metavar="ROWS",
    help="Rows a shard, a multiple of --unit.  [default: the most that 64 MiB hold]",
)
@click.option(
    "--memory", type=click.IntRange(min=512), default=2048, show_default=True, metavar="MIB", help="Memory in all."
)
@workers_option
@common_options
def build(
    common: Common,
    *,
    mix: str,
    out: Path,
    cache: Path,
    registry: Path | None,
    limit_docs: int | None,
    unit: int,
    samples_per_shard: int | None,
    memory: int,
    workers: int | None,
) -> None:
    """Build the shard set of a text mix from parquet files.

    Offline and deterministic: the same inputs give the same bytes on any machine. A build that was killed or failed
    leaves OUT.building, and the same command goes on where it stopped. A set that OUT holds is replaced at the end.
    """

    async def verb(session: Session) -> Result:
        from r2d1.datasets import BuildOptions, build_mix_async, load_registry

        options = BuildOptions(
            unit=unit, samples_per_shard=samples_per_shard, limit_docs=limit_docs, workers=workers, memory=memory * _MIB
        )
        known = await in_thread(load_registry, registry)
        _tell_before(session, out, known.unread)
        with _told_what_is_left(session, out), progress_of(common) as on_progress:
            report = await build_mix_async(
                mix, out=out, cache=cache, registry=known, options=options, on_progress=on_progress
            )
        return _built(report)

    run(common, verb)


def _tell_before(session: Session, out: Path, unread: Sequence[str]) -> None:
    for name in unread:
        text = f"{name} of the registry is no field that this version of r2d1 knows: it has no effect on what is built"
        session.tell.notice("warning", text)
    if (out / MANIFEST_NAME).exists():
        session.tell.notice("warning", f"{out} holds a set already, which is replaced when this one is built")


@contextmanager
def _told_what_is_left(session: Session, out: Path) -> Iterator[None]:
    try:
        yield
    except (R2D1Error, OSError):
        if (left := out.with_name(f"{out.name}.building")).exists():
            text = f"{left} keeps what was finished: the same command goes on with it. It may be deleted"
            session.tell.notice("warning", text)
        raise


def _built(report: BuildReport) -> Result:
    manifest = report.manifest
    fields = {
        "directory": report.directory,
        "n_samples": manifest.n_samples,
        "n_shards": manifest.n_shards,
        "n_units": manifest.n_units,
        "merkle_root": manifest.merkle_root,
        "unicode": report.unicode_version,
        "tokenizers": report.tokenizers_version,
        "sources": [
            {"source": each.source, "rows_removed": each.rows_removed, "documents": each.documents_given}
            for each in report.sources
        ],
    }
    lines = [
        f"{each.source}: {counted(each.documents_given, 'document')} taken, {each.rows_removed} removed by"
        f" decontamination, {each.rows_denied} denied by the filter"
        for each in report.sources
    ]
    lines.append(f"merkle_root {manifest.merkle_root}")
    lines.append(f"made with Unicode {report.unicode_version} and tokenizers {report.tokenizers_version}")
    rows = f"{manifest.n_samples} rows in {counted(manifest.n_shards, 'shard')}"
    return Result(lines, fields, f"{rows} are in {report.directory}")


@click.command(epilog=examples("r2d1 datasets verify data/od", "r2d1 datasets verify data/od --sample 8"))
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Read N random units instead of everything.")
@workers_option
@common_options
def verify(common: Common, *, directory: Path, sample: int | None, workers: int | None) -> None:
    """Verify a shard set on disk.

    Every hash and all roots; every error is told with its file, and what was and was not read is said.
    """

    async def verb(session: Session) -> Result:
        from r2d1.datasets import verify_shard_set_async

        with progress_of(common) as on_progress:
            report = await verify_shard_set_async(directory, workers=workers, on_progress=on_progress, sample=sample)
        return _verified(report)

    run(common, verb)


def _verified(report: VerifyReport) -> Result:
    fields = {
        "directory": report.directory,
        "mode": report.mode,
        "problems": [{"file": each.file, "text": each.text} for each in report.problems],
        "checked": report.checked,
        "not_checked": report.not_checked,
        "bytes_read": report.bytes_read,
        "bytes_total": report.bytes_total,
        "units_read": report.units_read,
        "units_total": report.units_total,
        "unlisted": report.unlisted,
    }
    if report.ok:
        read = f"{report.units_read} of {report.units_total} units, {size(report.bytes_read)}"
        return Result(report.lines(), fields, f"no error found ({report.mode}: {read})")
    why = f"{counted(len(report.problems), 'error')} in {report.directory}, first {report.problems[0]}"
    hint = "Build the set again, or copy it again from where it is whole"
    return Result(report.lines(), fields, code=Exit.FAILED, why=why, hint=hint)
