"""``r2d1 secrets`` and ``r2d1 init``: what is configured, and the table that checkpoints are told of in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace

import click

from r2d1.catalog import open_catalog
from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Exit, Result
from r2d1.cli.running import Session, run
from r2d1.cli.table import table
from r2d1.retry import Brake, RetryPolicy
from r2d1.settings import Missing, SettingLine, Settings

#: What is no secret by itself: names and addresses. Keys, tokens and the proxy, which may hold a password, are.
_NO_SECRETS = frozenset(
    {
        *("account_id", "bucket", "endpoint_url", "jurisdiction", "public_base", "database_id"),
        *("d1_base_url", "store_url", "ca_bundle", "no_proxy"),
    }
)


@click.command(epilog=examples("r2d1 secrets", "r2d1 secrets --show", "r2d1 secrets --env-file prod.env"))
@click.option("--show", is_flag=True, help="Show bucket, ids and addresses in full; keys and tokens never are.")
@common_options
def secrets(common: Common, *, show: bool) -> None:
    """Show the settings that were found, masked, and what is missing.

    Each value is masked, so that the output can be pasted anywhere: at most the first and last four characters of a
    long one are shown. With --show what is no secret (bucket, ids, addresses) is shown in full. Exits 2 when what the
    store needs is missing; D1 may be.
    """

    async def verb(session: Session) -> Result:
        for notice in session.settings.notices():
            session.tell.notice("warning", notice)
        return _report(session.settings, show=show)

    run(common, verb)


def _report(settings: Settings, *, show: bool) -> Result:
    report = [_shown(line, settings) if show else line for line in settings.report()]
    rows = [(line.variable, line.masked or "-", line.source, line.needed_for) for line in report]
    lines = table(("setting", "value", "source", "needed for"), rows)
    gaps = {"R2": settings.missing_r2(), "D1": settings.missing_d1()}
    lines += [line for need, some in gaps.items() for line in _said(need, some, settings)]
    missing = {need: [{"names": gap.names, "note": gap.note} for gap in some] for need, some in gaps.items()}
    fields = {"settings": [asdict(line) for line in report], "missing": missing}
    summary = ", ".join(f"{need} {'incomplete' if some else 'complete'}" for need, some in gaps.items())
    if gaps["R2"]:
        hint = "Set them in the environment or in an env file"
        return Result(lines, fields, code=Exit.USAGE, why=f"{summary} (what is missing is listed above)", hint=hint)
    return Result(lines, fields, summary)


def _shown(line: SettingLine, settings: Settings) -> SettingLine:
    """A line with its value in full, if that is no secret."""
    value = getattr(settings, line.field)
    return replace(line, masked=value) if value and line.field in _NO_SECRETS else line


def _said(need: str, missing: Sequence[Missing], settings: Settings) -> list[str]:
    if missing:
        return [f"missing for {need}:", *(f"  {gap}" for gap in missing)]
    return [f"{need}: not needed, the store is {settings.store_url}" if settings.store_url else f"{need}: complete"]


@click.command(epilog=examples("r2d1 init", "r2d1 init --env-file prod.env"))
@common_options
def init(common: Common) -> None:
    """Create the table that tells of checkpoints.

    In D1, or beside the embedded store. Couriers create it themselves when it is missing; a token that may not
    create tables needs somebody else to run this once.
    """
    run(common, _init)


async def _init(session: Session) -> Result:
    settings = session.settings
    if settings.store_url is None:
        settings.require_d1()
    catalog = open_catalog(settings, tell=session.tell, policy=RetryPolicy(), brake=Brake(random.SystemRandom()))
    assert catalog is not None
    try:
        await catalog.ensure()
    finally:
        await catalog.aclose()
    return Result((), {"where": catalog.where}, f"the table checkpoints is in {catalog.where}")
