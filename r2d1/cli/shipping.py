"""``r2d1 ship``: one checkpoint, with the sidecar written first if it has none."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from r2d1 import keys
from r2d1.checkpoint import Identity, LocalCheckpoint, inspect_as, sidecar_path
from r2d1.cli.common import (
    Common,
    common_options,
    examples,
    job_id_option,
    seconds_option,
    transfer_options,
    unordered_option,
)
from r2d1.cli.dry_run import show_one
from r2d1.cli.ending import Exit, Result
from r2d1.cli.running import Session, run
from r2d1.cli.undrained import undrained
from r2d1.courier import Shipped
from r2d1.observers import size
from r2d1.sidecar import parse_sidecar, write_sidecar
from r2d1.tasks import in_thread

_ROWS = "Run the same command again, or `r2d1 watch`, and the row is written; nothing is sent twice"


@dataclass(frozen=True, slots=True)
class _Draft:
    """A sidecar that is still to be written."""

    epoch: int
    metadata: dict[str, object]


def _parse_meta(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, object]:
    """``k=v`` → a dict; values are JSON if they can be read as such, else text."""
    metadata: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!a} is not of the form name=value", ctx, param)
        try:
            metadata[name] = json.loads(text)
        except ValueError:
            metadata[name] = text
    return metadata


@click.command(
    epilog=examples(
        "r2d1 ship ./checkpoints/chk_0042 --job-id my_run",
        "r2d1 ship ./model --job-id my_run --epoch 42 --meta loss=0.043 --meta note=best",
        "r2d1 ship ./checkpoints/chk_0042 --job-id my_run --dry-run",
    )
)
@click.argument("path", metavar="PATH", type=click.Path(exists=True, path_type=Path))
@job_id_option
@click.option("--epoch", type=click.IntRange(0, keys.MAX_EPOCH), help="For a folder without sidecar: write one.")
@click.option(
    "--meta", "metadata", multiple=True, callback=_parse_meta, metavar="K=V", help="Metadata of that sidecar."
)
@click.option("--dry-run", is_flag=True, help="Show what would be shipped; send and write nothing.")
@seconds_option("--settle-timeout", 60, "How long to wait for a file that the sidecar lists.")
@unordered_option
@common_options
@transfer_options
def ship(
    common: Common,
    *,
    path: Path,
    job_id: str,
    epoch: int | None,
    metadata: dict[str, object],
    dry_run: bool,
    settle_timeout: float,
    unordered: bool,
) -> None:
    """Ship one checkpoint.

    PATH is a checkpoint's folder or its sidecar (<folder>.json). For a folder without one, --epoch and --meta write
    it first; values of --meta are JSON if they can be read as such, else text. Ctrl-C or SIGTERM stops at once; the
    same command goes on where it stopped.
    """
    folder = path.absolute()
    folder = folder if path.is_dir() else folder.with_name(folder.name.removesuffix(".json"))
    draft = _draft(folder, epoch, metadata)

    async def verb(session: Session) -> Result:
        keys.check_job_id(job_id)
        if dry_run:
            drafted = await in_thread(_drafted, folder, draft) if draft else None
            return await show_one(session, folder, job_id, drafted, ordered=not unordered)
        session.settings.require_r2()
        if draft is not None:
            await in_thread(lambda: write_sidecar(folder, epoch=draft.epoch, metadata=draft.metadata))
        return await _ship(session, folder, job_id, settle_timeout, ordered=not unordered)

    run(common, verb)


def _draft(folder: Path, epoch: int | None, metadata: dict[str, object]) -> _Draft | None:
    """The sidecar that the options ask to write; None when there is one already."""
    sidecar = sidecar_path(folder)
    if not sidecar.exists():
        if epoch is None:
            raise click.UsageError(f"{folder} has no sidecar: give --epoch to write one")
        return _Draft(epoch, metadata)
    if epoch is not None or metadata:
        raise click.UsageError(f"{sidecar} is there already: --epoch and --meta would write it")
    return None


def _drafted(folder: Path, draft: _Draft) -> LocalCheckpoint:
    """The checkpoint as it would be once its sidecar is written."""
    now = time.time_ns()
    fields = {"name": folder.name, "epoch": draft.epoch, "timestamp": now / 1e9, "metadata": draft.metadata}
    raw = json.dumps(fields).encode()
    return inspect_as(folder, parse_sidecar(raw, stem=folder.name, mtime=now / 1e9), Identity(len(raw), now, now, 0))


async def _ship(session: Session, folder: Path, job_id: str, settle_timeout: float, *, ordered: bool) -> Result:
    async with undrained(session) as courier:
        shipped = await courier.ship(folder, job_id, ordered=ordered, settle_timeout=settle_timeout)
        return _result(shipped, courier.status().rows_owed)


def _result(shipped: Shipped, rows_owed: tuple[str, ...]) -> Result:
    fields = {**asdict(shipped), "rows_owed": rows_owed}
    lines = [shipped.prefix]
    if rows_owed:
        why = f"{shipped.name} is in the bucket, but its D1 row could not be written"
        return Result(lines, fields, code=Exit.STOPPED, why=why, hint=_ROWS)
    how = f"{size(shipped.sent_bytes)} sent" if shipped.is_new else "it was there already, nothing sent"
    return Result(lines, fields, f"{shipped.name}, epoch {shipped.epoch}, is in the bucket ({how})")
