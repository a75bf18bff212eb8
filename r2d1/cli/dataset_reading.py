"""``r2d1 datasets prefetch``: units of a published set, from its bases into a cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Result
from r2d1.cli.running import Session, run
from r2d1.datasets.cache import UnitCache
from r2d1.datasets.manifest import ShardManifest, parse_manifest
from r2d1.datasets.prefetching import DEPTH, STREAMS
from r2d1.datasets.prefetching import prefetch as prefetched
from r2d1.observers import counted
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    from r2d1.datasets.spec import DatasetSpec

_GIB = 1 << 30


def _parse_units(ctx: click.Context, param: click.Parameter, text: str | None) -> list[range] | None:
    """``0-99,250`` → ranges."""
    if text is None:
        return None
    ranges = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise click.BadParameter(f"{piece!a} is neither a number nor a range such as 0-99", ctx, param)
        ranges.append(range(int(first), int(last or first) + 1))
    return ranges


@click.command(
    epilog=examples(
        "r2d1 datasets prefetch --manifest data/od/manifest.json --cache units --base https://data.example --units 0-3",
        "r2d1 datasets prefetch --spec spec.json --trusted KEY --cache u --base https://data.example --cache-limit 2",
    )
)
@click.option(
    "--manifest",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The set's manifest.json, from a source that you trust.",
)
@click.option(
    "--spec",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Or its signed spec: the manifest then comes from a base.",
)
@click.option("--trusted", multiple=True, metavar="KEY", help="A public key (hex) that may have signed the spec.")
@click.option(
    "--base", "bases", required=True, multiple=True, metavar="URL", help="Where it is published; repeat for mirrors."
)
@click.option(
    "--cache", required=True, type=click.Path(file_okay=False, path_type=Path), help="Directory for the units."
)
@click.option("--cache-limit", type=click.FloatRange(min=0, min_open=True), metavar="GIB", help="Its size at most.")
@click.option("--units", callback=_parse_units, metavar="IDS", help="Such as 0-99,250; in this order.  [default: all]")
@click.option("--streams", type=click.IntRange(min=1), default=STREAMS, show_default=True, help="Requests at once.")
@click.option("--depth", type=click.IntRange(min=1), default=DEPTH, show_default=True, help="Units fetched ahead.")
@common_options
def prefetch(
    common: Common,
    *,
    manifest: Path | None,
    spec: Path | None,
    trusted: tuple[str, ...],
    bases: tuple[str, ...],
    cache: Path,
    cache_limit: float | None,
    units: list[range] | None,
    streams: int,
    depth: int,
) -> None:
    """Bring units of a published set into a cache.

    Each unit is verified and kept at CACHE/<its sha256>; what is there already is not fetched again. The paths are
    printed in the order asked for.
    """
    if (manifest is None) is (spec is None):
        raise click.UsageError("give either --manifest or --spec")

    async def verb(session: Session) -> Result:
        dataset = await in_thread(_read, manifest, spec)
        limit = None if cache_limit is None else int(cache_limit * _GIB)
        given = prefetched(
            dataset,
            None if units is None else _each(units),
            UnitCache(cache, limit=limit),
            bases,
            streams,
            depth,
            trusted=trusted,
            settings=session.settings,
            observer=session.observer,
        )
        count = 0
        async with aclosing(given):
            async for unit in given:
                count += 1
                if not common.as_json:
                    click.echo(given.path(unit))
        return Result((), {"units": count, "cache": str(cache)}, f"{counted(count, 'unit')} verified in {cache}")

    run(common, verb)


def _each(units: list[range]) -> Iterator[int]:
    for each in units:
        yield from each


def _read(manifest: Path | None, spec: Path | None) -> ShardManifest | DatasetSpec:
    if manifest is not None:
        return parse_manifest(manifest.read_bytes(), str(manifest))
    assert spec is not None
    from r2d1.datasets import parse_spec

    return parse_spec(spec.read_bytes(), str(spec))
