"""A set of 10,000 tiny shards: published with one look and one body a shard, resumed, verified, read."""

from __future__ import annotations

import pytest

from r2d1.datasets import prefetch, publish_shard_set, verify_shard_set
from r2d1.settings import Settings
from tests.datasets.published import make_set

SHARDS = 10_000


@pytest.mark.soak
def test_ten_thousand_tiny_shards(s3, tmp_path):
    """Requests grow with the shards and nothing else does; a second run sends nothing; any unit can be read."""
    made = make_set(tmp_path / "set", shards=SHARDS)
    settings = Settings.from_env(environ=s3.env())
    assert publish_shard_set(made.directory, settings).sent == SHARDS + 1
    assert s3.counts["PutObject"].requests == SHARDS + 1
    assert s3.counts["HeadObject"].requests == SHARDS + 2  # the manifest's key before anything is sent, and at the end
    assert publish_shard_set(made.directory, settings).sent == 0
    assert verify_shard_set(made.directory, workers=2).ok
    wanted = list(range(0, made.manifest.n_units, 997))
    with prefetch(made.manifest, wanted, tmp_path / "cache", [s3.public_url]) as units:
        for unit in units:
            assert units.path(unit).read_bytes() == made.unit(unit)
