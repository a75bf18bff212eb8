"""``r2d1 datasets``: the table of its commands; each is imported when it is called."""

from __future__ import annotations

import click

from r2d1.cli.common import examples
from r2d1.cli.lazy import LazyGroup

#: Command → (module that holds a function of that name, its one line in the list of commands).
COMMANDS = {
    "build": ("r2d1.cli.dataset_sets", "Build the shard set of a text mix from parquet files."),
    "verify": ("r2d1.cli.dataset_sets", "Verify a shard set on disk."),
    "publish": ("r2d1.cli.dataset_publishing", "Publish a shard set in the bucket."),
    "publish-labels": ("r2d1.cli.dataset_publishing", "Publish a directory of labels in the bucket."),
    "prefetch": ("r2d1.cli.dataset_reading", "Bring units of a published set into a cache."),
    "spec": ("r2d1.cli.dataset_specs", "Sign and verify dataset specs."),
}


@click.group(
    cls=LazyGroup,
    commands_in=COMMANDS,
    epilog=examples(
        "r2d1 datasets verify data/od", "r2d1 datasets publish data/od --env-file .env --prefix sets/od-a-v1"
    ),
)
def datasets() -> None:
    """Build, verify, publish and prefetch datasets.

    Every command takes --env-file, --json, --quiet and --verbose as the others do. `docs/hosting.md` walks through
    them.
    """
