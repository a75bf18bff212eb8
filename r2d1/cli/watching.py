"""``r2d1 watch``: ship what appears in a directory until a signal comes, or once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio
import click

from r2d1 import keys
from r2d1.cli.common import (
    Common,
    common_options,
    examples,
    job_id_option,
    seconds_option,
    transfer_options,
    unordered_option,
)
from r2d1.cli.dry_run import show_directory
from r2d1.cli.ending import GO_ON, Exit, Result
from r2d1.cli.running import Session, run
from r2d1.cli.undrained import undrained
from r2d1.courier import AsyncCourier, ShipReport, Status
from r2d1.errors import FlushError
from r2d1.events import Event, ShipFailed
from r2d1.observers import counted, size
from r2d1.tasks import one_error

_MEND = "Mend what is named above and run the command again; what is in the bucket is not sent again"
_ROWS = "The checkpoints are in the bucket; the next run writes the rows"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What ``watch`` was told; times are seconds."""

    directory: Path
    job_id: str
    poll_every: float
    once: bool
    grace: float
    settle_timeout: float
    force_polling: bool
    newest_first: bool
    keep_local: int | None
    snapshot: str | None
    ordered: bool


@dataclass(slots=True)
class _End:
    """How far a watch came before it was stopped, and which failures were told on the way."""

    is_scanned: bool = False
    report: ShipReport | None = None
    told: set[str] = field(default_factory=set)


@click.command(
    epilog=examples(
        "r2d1 watch ./checkpoints --job-id my_run",
        "r2d1 watch ./checkpoints --job-id my_run --poll-every 5 --grace 120",
        "r2d1 watch ./checkpoints --job-id my_run --keep-local 3 --snapshot hardlink",
        "r2d1 watch ./checkpoints --job-id my_run --once",
        "r2d1 watch ./checkpoints --job-id my_run --once --dry-run",
    )
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@job_id_option
@seconds_option("--poll-every", 30, "Time between full scans, for what events do not tell.", above_zero=True)
@click.option("--once", is_flag=True, help="Scan once, ship what is there, exit.")
@click.option("--dry-run", is_flag=True, help="With --once: show what would be shipped; send and write nothing.")
@seconds_option("--grace", 30, "How long the first SIGINT or SIGTERM lets it finish.")
@seconds_option("--settle-timeout", 60, "How long a checkpoint may lack a file that its sidecar lists.")
@click.option("--force-polling", is_flag=True, help="Use no file system events (network file systems).")
@click.option("--newest-first", is_flag=True, help="For links that cannot keep up: the newest goes first.")
@click.option(
    "--keep-local",
    type=click.IntRange(min=1),
    metavar="N",
    help="Delete all but the newest N from DIR once the bucket holds them.  [default: keep all]",
)
@click.option(
    "--snapshot",
    type=click.Choice(["hardlink"]),
    help="Pin the files of a checkpoint while it is shipped, against the trainer's rotation.",
)
@unordered_option
@common_options
@transfer_options
def watch(common: Common, *, directory: Path, dry_run: bool, unordered: bool, **given: object) -> None:
    """Ship checkpoints as they appear in a directory.

    Each folder with a sidecar beside it in DIR is shipped; a DIR that is not there yet is waited for. SIGTERM, or
    Ctrl-C, lets what is under way finish for --grace seconds; a second one stops at once. Nothing is lost by either.
    """
    plan = _Plan(directory=directory, ordered=not unordered, **given)  # type: ignore[arg-type]  # click made them
    if directory.exists() and not directory.is_dir():
        raise click.UsageError(f"{directory} is not a directory")
    if dry_run and not plan.once:
        raise click.UsageError("--dry-run goes with --once")
    if plan.once and not directory.exists():
        raise click.UsageError(f"{directory}: no such directory (without --once it would be waited for)")
    if dry_run:
        run(common, lambda session: show_directory(session, directory, plan.job_id, ordered=plan.ordered))
    run(common, lambda session: _watch(session, plan), gently=True)


async def _watch(session: Session, plan: _Plan) -> Result:
    """Watch until a signal comes (or once), then bring out everything within ``grace`` seconds of that signal."""
    keys.check_job_id(plan.job_id)
    end = _End()

    def observe(event: Event) -> None:
        if isinstance(event, ShipFailed):
            end.told.add(f"{event.job_id}/{event.name} failed: {event.error}")
        session.observer(event)

    async with undrained(session, observe) as courier:
        try:
            with anyio.CancelScope() as limit, one_error():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_limit, session, limit, plan.grace)
                    await _watch_and_flush(courier, session, plan, end)
                    tasks.cancel_scope.cancel()
        except FlushError as error:
            return _incomplete(error, courier.status(), end.told if plan.once else set())
        return _result(end, courier.status(), plan)


async def _watch_and_flush(courier: AsyncCourier, session: Session, plan: _Plan, end: _End) -> None:
    await courier.watch(
        plan.directory,
        plan.job_id,
        plan.poll_every,
        ordered=plan.ordered,
        settle_timeout=plan.settle_timeout,
        force_polling=plan.force_polling,
        newest_first=plan.newest_first,
        keep_local=plan.keep_local,
        snapshot=plan.snapshot,
    )
    end.is_scanned = True
    if not plan.once:
        await session.stop.asked.wait()
    end.report = await courier.flush(timeout=None)


async def _limit(session: Session, limit: anyio.CancelScope, grace: float) -> None:
    await session.stop.asked.wait()
    limit.deadline = anyio.current_time() + grace
    text = f"finishing what is under way, at most {grace:g} s; Ctrl-C or SIGTERM once more stops at once"
    session.tell.notice("warning", text)


def _incomplete(error: FlushError, status: Status, told: set[str]) -> Result:
    """What failed; ``told`` is what stands a few lines above already."""
    first, *details = [line for line in str(error).splitlines() if line.strip() not in told]
    names = [*error.failed, *error.unfinished]
    return Result(
        code=Exit.FAILED,
        details=details,
        why=f"{first}: {_some(names)}",
        hint=_MEND,
        fields={"failed": dict(status.failed) | dict(status.parked), "rows_owed": status.rows_owed},
    )


def _result(end: _End, status: Status, plan: _Plan) -> Result:
    report = end.report or ShipReport()
    left = list(dict.fromkeys((*status.queued, *status.in_flight, *status.waiting, *status.failed, *status.parked)))
    lines = [one.prefix for one in report.shipped] if plan.once else []
    fields = {
        "shipped": [asdict(one) for one in report.shipped],
        "already": report.already,
        "left": left,
        "rows_owed": status.rows_owed,
    }
    if why := _why_stopped(end, status, left, plan):
        hint = GO_ON if end.report is None else _ROWS
        return Result(lines, fields, code=Exit.STOPPED, why=why, hint=hint)
    sent = sum(one.sent_bytes for one in report.shipped)
    counts = f"{counted(len(report.shipped), 'checkpoint')} shipped, {size(sent)} sent"
    return Result(lines, fields, counts if report.shipped else "nothing was left to do")


def _why_stopped(end: _End, status: Status, left: list[str], plan: _Plan) -> str:
    """What was left undone; empty when nothing was."""
    if not end.is_scanned:
        return f"{plan.directory} was not scanned within {plan.grace:g} s"
    if end.report is None and left:
        return f"{counted(len(left), 'checkpoint')} not finished within {plan.grace:g} s: {_some(left)}"
    return f"D1 rows are still owed for {_some(status.rows_owed)}" if status.rows_owed else ""


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
