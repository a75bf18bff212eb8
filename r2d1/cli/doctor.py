"""``r2d1 doctor``: one line a check, and an exit code for scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Exit, Result
from r2d1.cli.running import Session, run
from r2d1.doctor import Finding, Status, checked_origin, diagnose
from r2d1.errors import ConfigError
from r2d1.observers import counted


def _check_origin(ctx: click.Context, param: click.Parameter, origin: str | None) -> str | None:
    try:
        return None if origin is None else checked_origin(origin)
    except ConfigError as exc:
        raise click.BadParameter(str(exc), ctx, param) from exc


@click.command(epilog=examples("r2d1 doctor", "r2d1 doctor --env-file prod.env --cors-origin https://app.example"))
@click.option(
    "--cors-origin",
    metavar="ORIGIN",
    callback=_check_origin,
    help="Also check that web pages of this origin may read.",
)
@common_options
def doctor(common: Common, *, cors_origin: str | None) -> None:
    """Check that bucket, public base and D1 do what is needed of them.

    Writes, reads, joins and deletes temporary objects below `_doctor/`, which are always removed. Exits 0 when all is
    fine, 2 when settings are missing (all are named), 1 when a check failed.
    """

    async def verb(session: Session) -> Result:
        return _result(await diagnose(session.settings, cors_origin=cors_origin, observer=session.observer))

    run(common, verb)


def _result(findings: Sequence[Finding]) -> Result:
    lines = [line for each in findings for line in (each.line, *each.paste.splitlines())]
    fields = {"findings": [{**asdict(each), "status": str(each.status)} for each in findings]}
    bad = [each for each in findings if each.status is Status.FAILED]
    if bad:
        why = f"{counted(len(bad), 'check')} failed: {', '.join(each.check for each in bad)}"
        hint = bad[0].hint if len(bad) == 1 else "Each line says what to do"
        return Result(lines, fields, code=Exit.FAILED, why=why, hint=hint)
    return Result(lines, fields, "all is fine")
