"""``r2d1 datasets prefetch``: units of a published set, from its bases into a cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from itertools import chain
from pathlib import Path

import click

from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Result
from r2d1.cli.running import Session, run
from r2d1.datasets.cache import UnitCache
from r2d1.datasets.manifest import ShardManifest, parse_manifest
from r2d1.datasets.prefetching import DEPTH, STREAMS, UnitNotFound
from r2d1.datasets.prefetching import prefetch as prefetched
from r2d1.observers import counted
from r2d1.tasks import in_thread

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
        ids = range(int(first), int(last or first) + 1)
        if not ids:
            raise click.BadParameter(f"{piece!a} ends before it begins", ctx, param)
        ranges.append(ids)
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
    printed in the order asked for. With --cache-limit the units used longest ago are removed to make room.
    """
    if (manifest is None) is (spec is None):
        raise click.UsageError("give either --manifest or --spec")
    if spec is not None and not trusted:
        raise click.UsageError("a spec is believed when it is signed: give the public keys that you trust (--trusted)")

    async def verb(session: Session) -> Result:
        dataset = await _manifest(session, manifest, spec, bases, trusted)
        limit = None if cache_limit is None else int(cache_limit * _GIB)
        asked = [range(dataset.n_units)] if units is None else units
        _check_units(session, dataset, asked, limit)
        given = prefetched(
            dataset,
            chain.from_iterable(asked),
            UnitCache(cache, limit=limit),
            bases,
            streams,
            depth,
            settings=session.settings,
            observer=session.observer,
        )
        count, paths = 0, []
        async with aclosing(given):
            async for unit in given:
                count += 1
                if common.as_json:
                    paths.append(str(given.path(unit)))
                else:
                    click.echo(given.path(unit))
        fields = {"units": count, "cache": str(cache), "paths": paths}
        return Result((), fields, f"{counted(count, 'unit')} verified in {cache}")

    run(common, verb)


async def _manifest(
    session: Session, manifest: Path | None, spec: Path | None, bases: Sequence[str], trusted: Sequence[str]
) -> ShardManifest:
    """The manifest on the disk, or what a base's manifest says that the signed spec binds."""
    if manifest is not None:
        data = await in_thread(manifest.read_bytes)
        return await in_thread(parse_manifest, data, str(manifest))
    assert spec is not None
    from r2d1.datasets import fetch_manifest_async, parse_spec

    data = await in_thread(spec.read_bytes)
    signed = parse_spec(data, str(spec))
    return await fetch_manifest_async(
        signed, bases, trusted=trusted, settings=session.settings, observer=session.observer
    )


def _check_units(session: Session, manifest: ShardManifest, asked: Sequence[range], limit: int | None) -> None:
    """Refuse units that there are not before any is fetched, and tell when not all will be in the cache at once."""
    if (last := max(each[-1] for each in asked)) >= manifest.n_units:
        raise UnitNotFound(f"unit {last} of a set with {manifest.n_units} units, which are counted from 0")
    count = sum(map(len, asked))
    if limit is not None and count * manifest.layout.unit_size > limit:
        room = limit // manifest.layout.unit_size
        text = (
            f"the cache has room for {room} units, and {count} were asked for: a path may be gone soon after it is told"
        )
        session.tell.notice("warning", text)
