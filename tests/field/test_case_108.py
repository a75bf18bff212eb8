"""Field case 108: a key exists but holds wrong or short bytes. Found when publishing, by size or by reading."""

from __future__ import annotations

import pytest

from tests.cli.shell import last_line, run
from tests.datasets.making import sha
from tests.datasets.published import make_set


def flipped(data):
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[:-1], flipped, lambda data: data + b"x"],
    ids=["0 bytes", "truncated", "a byte flipped", "too long"],
)
def test_it_is_found_when_publishing(damage, s3, tmp_path):
    """Exit 1, the key named, the object left as it is for its owner to look at, and no manifest."""
    made = make_set(tmp_path / "set", shards=3)
    key = sha(made.shards[2])
    s3.put(key, damage(made.shards[2]))
    result = run("datasets", "publish", made.directory, env=s3.env())
    assert result.exit_code == 1
    assert key in last_line(result)
    assert "nothing was overwritten" in last_line(result)
    assert s3.get(key) == damage(made.shards[2])
    assert "manifest.json" not in s3.keys()


def test_with_metadata_that_lies_it_is_found_when_read_back(s3, tmp_path):
    """Right size and right metadata over wrong bytes: reading units back through the public base finds them."""
    made = make_set(tmp_path / "set", shards=3)
    key = sha(made.shards[2])
    s3.put(key, bytes(len(made.shards[2])), sha256=key)
    result = run("datasets", "publish", made.directory, "--verify-units", "12", env=s3.env())
    assert result.exit_code == 1
    assert "4 of 12 units could not be verified" in result.stderr
    assert key in result.stderr


def test_once_it_is_deleted_the_publication_goes_on(s3, tmp_path):
    """The hint is true: with the object deleted the same command ends well and sends what was missing."""
    made = make_set(tmp_path / "set", shards=3)
    key = sha(made.shards[2])
    s3.put(key, b"")
    assert run("datasets", "publish", made.directory, env=s3.env()).exit_code == 1
    s3.delete(key)
    assert run("datasets", "publish", made.directory, env=s3.env()).exit_code == 0
    assert s3.get(key) == made.shards[2]
