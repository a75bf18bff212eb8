"""The arithmetic of rows, units and shards."""

from __future__ import annotations

import pytest

from r2d1.datasets.layout import default_samples_per_shard, is_shard_name, plan_layout, shard_name
from r2d1.errors import ConfigError


def test_default_samples_per_shard(vectors):
    """The default equals the original's for every vector, and is refused where the original refuses."""
    for seq_len, unit, wanted in vectors["default_samples_per_shard"]:
        if wanted is None:
            with pytest.raises(ConfigError, match="does not fit a shard of 64 MiB"):
                default_samples_per_shard(seq_len, unit)
        else:
            assert default_samples_per_shard(seq_len, unit) == wanted


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"unit": 4, "samples_per_shard": 6}, "6, not a multiple of the unit 4"),
        ({"unit": 4, "samples_per_shard": 0}, "0, not a multiple"),
        ({"unit": 512, "samples_per_shard": 32769 * 512}, "over the limit of 67108864"),
        ({"unit": 0}, "must be 1 or more"),
    ],
)
def test_layouts_that_do_not_do(values, said):
    """A layout by hand must be whole units and within 64 MiB."""
    with pytest.raises(ConfigError, match=said):
        plan_layout(1023, **values)


def test_the_largest_shard_is_allowed():
    """Exactly 64 MiB is not over 64 MiB."""
    assert plan_layout(1023, unit=512, samples_per_shard=32768).shard_size == 64 * 2**20


def test_shard_names():
    """Shards have five digits, and nothing else is a shard's name."""
    assert shard_name(42) == "shard-00042.u16"
    assert is_shard_name("shard-00042.u16")
    assert not any(map(is_shard_name, ("shard-042.u16", "shard-00042.u16.tmp", "xshard-00042.u16", "shard-٠٠٠٤٢.u16")))
