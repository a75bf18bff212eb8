"""How rows, units and shards fit together: the arithmetic and the names of a shard set. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from r2d1.errors import ConfigError

MANIFEST_NAME = "manifest.json"
RECORD_NAME = "build_record.json"
#: The fields of ``extra`` in the manifest of a set that was built from a mix.
BUILT_EXTRA = ("dropped_tail_samples", "mix_id", "removed_ids_sha256")
ROW_FORMAT = "u16[seq_len+1] token ids"
TEMPLATE_WORD = "{shard_sha256}"
SHARD_TEMPLATE = TEMPLATE_WORD
#: A shard fits one PUT and one buffer (formats.md §9).
MAX_SHARD_SIZE = 64 * 2**20
DEFAULT_UNIT = 512
#: ``shard-<5 digits>.u16`` has no name for more.
MAX_SHARDS = 100_000
MAX_TOKEN_ID = 65535

_SHARD_NAME = re.compile(r"shard-([0-9]{5})\.u16", re.ASCII)


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """``seq_len`` in tokens, ``unit`` and ``samples_per_shard`` in rows; a row holds ``seq_len + 1`` ids."""

    seq_len: int
    unit: int
    samples_per_shard: int

    @property
    def row_size(self) -> int:
        """Bytes of a row."""
        return 2 * (self.seq_len + 1)

    @property
    def unit_size(self) -> int:
        """Bytes of a unit."""
        return self.unit * self.row_size

    @property
    def shard_size(self) -> int:
        """Bytes of a full shard."""
        return self.samples_per_shard * self.row_size

    def shards_of(self, n_samples: int) -> list[range]:
        """The rows of each shard of a set of ``n_samples`` rows."""
        step = self.samples_per_shard
        return [range(at, min(at + step, n_samples)) for at in range(0, n_samples, step)]


def default_samples_per_shard(seq_len: int, unit: int) -> int:
    """The largest power of two whose shard stays within 64 MiB, rounded down to a multiple of ``unit``.

    ``ConfigError`` when not even one unit fits.
    """
    fitting = MAX_SHARD_SIZE // (2 * (seq_len + 1))
    power = 1 << (fitting.bit_length() - 1) if fitting else 0
    rows = power - power % unit
    if not rows:
        raise ConfigError(
            f"a unit of {unit} rows of {seq_len + 1} tokens does not fit a shard of 64 MiB; choose a smaller unit"
        )
    return rows


def plan_layout(seq_len: int, *, unit: int = DEFAULT_UNIT, samples_per_shard: int | None = None) -> ShardLayout:
    """The layout of a set to be written; ``ConfigError`` names every value that does not do."""
    if seq_len < 1 or unit < 1:
        raise ConfigError(f"seq_len {seq_len} and unit {unit} must be 1 or more")
    rows = default_samples_per_shard(seq_len, unit) if samples_per_shard is None else samples_per_shard
    layout = ShardLayout(seq_len=seq_len, unit=unit, samples_per_shard=rows)
    if problems := list(layout_problems(layout)):
        raise ConfigError("; ".join(problems))
    return layout


def layout_problems(layout: ShardLayout) -> Iterator[str]:
    """What is wrong with a layout whose values are all positive."""
    if layout.samples_per_shard < 1 or layout.samples_per_shard % layout.unit:
        yield f"samples_per_shard is {layout.samples_per_shard}, not a multiple of the unit {layout.unit}"
    if layout.shard_size > MAX_SHARD_SIZE:
        yield (
            f"samples_per_shard is {layout.samples_per_shard}: a shard of {layout.shard_size} bytes"
            f" is over the limit of {MAX_SHARD_SIZE} (64 MiB)"
        )


def shard_name(shard: int) -> str:
    """The file name of a shard."""
    return f"shard-{shard:05d}.u16"


def is_shard_name(name: str) -> bool:
    """Whether a file name is one that shards have."""
    return _SHARD_NAME.fullmatch(name) is not None
