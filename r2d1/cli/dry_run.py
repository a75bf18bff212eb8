"""``--dry-run``: what shipping would do, shown; nothing is sent and nothing written."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from r2d1 import keys, remote
from r2d1.checkpoint import LocalCheckpoint
from r2d1.cli.ending import Exit, Result
from r2d1.cli.here import read_journal
from r2d1.cli.running import Session
from r2d1.courier.preview import Outlook, Preview, preview, preview_directory
from r2d1.journal import scope_of
from r2d1.objects import ObjectStore
from r2d1.observers import counted, size
from r2d1.tasks import in_thread
from r2d1.transfer.lane import Lane


async def show_directory(session: Session, directory: Path, job_id: str, *, ordered: bool) -> Result:
    """What one scan of a directory would ship."""
    keys.check_job_id(job_id)
    async with _looking(session) as (lane, bucket):
        scope = scope_of(lane.store.where, job_id)
        done = (await in_thread(read_journal, directory.absolute(), scope)).done
        return _result(await preview_directory(lane, directory, job_id, ordered=ordered, bucket=bucket, done=done))


async def show_one(
    session: Session, folder: Path, job_id: str, drafted: LocalCheckpoint | None, *, ordered: bool
) -> Result:
    """What shipping one checkpoint would do; ``drafted`` is its state with a sidecar that is still to be written."""
    async with _looking(session) as (lane, bucket):
        return _result([await preview(lane, folder, job_id, ordered=ordered, bucket=bucket, drafted=drafted)])


@asynccontextmanager
async def _looking(session: Session) -> AsyncIterator[tuple[Lane, ObjectStore | None]]:
    """A lane that nothing will travel on, and the bucket to ask: none where asking would make its directory."""
    settings = session.settings
    settings.require_r2()
    async with remote.opened(settings, tell=session.tell, rng=random.SystemRandom()) as ends:
        is_there = settings.store_dir is None or settings.store_dir.exists()
        yield Lane(ends.store, session.tell), ends.store if is_there else None


def _result(found: Sequence[Preview]) -> Result:
    failing = [one for one in found if one.outlook is Outlook.FAIL]
    new = [one for one in found if one.outlook is Outlook.SHIP]
    summary = (
        f"nothing was sent; {len(new)} of {counted(len(found), 'checkpoint')} would be shipped, "
        f"{size(sum(one.total_bytes for one in new))}"
    )
    lines = [line for one in found for line in _lines_of(one)]
    fields = {"dry_run": True, "checkpoints": [_fields_of(one) for one in found]}
    if failing:
        why = f"{failing[0].name} would fail: {failing[0].why}"
        return Result(lines, fields, code=Exit.FAILED, why=why, hint="Nothing was sent; mend it before shipping")
    return Result(lines, fields, summary)


def _lines_of(one: Preview) -> list[str]:
    about = (
        "" if one.epoch is None else f" epoch {one.epoch}, {counted(len(one.files), 'file')}, {size(one.total_bytes)},"
    )
    lines = [f"{one.name}:{about} {one.outlook}{f': {one.why}' if one.why else ''}"]
    lines += [f"    {path}  {size(count)}" for path, count in one.files]
    lines += [f"    left out: {path}" for path in one.left_out]
    return [*lines, *(f"    note: {warning}" for warning in one.warnings)]


def _fields_of(one: Preview) -> dict[str, object]:
    return {
        "name": one.name,
        "folder": str(one.folder),
        "outlook": one.outlook.name.lower(),
        "why": one.why,
        "epoch": one.epoch,
        "total_bytes": one.total_bytes,
        "files": [{"path": path, "size": count} for path, count in one.files],
        "left_out": one.left_out,
        "warnings": one.warnings,
    }
