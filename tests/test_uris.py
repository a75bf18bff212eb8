"""The three forms of a URI, taken literally."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1.errors import NameRefused, UriError
from r2d1.keys import CheckpointKeys
from r2d1.uris import Job, Latest, Named, Prefix, parse_job_uri, parse_uri


@pytest.mark.parametrize(
    ("uri", "meant"),
    [
        ("r2://jobs/my_run/latest", Latest("my_run")),
        ("r2://jobs/my_run/latest/", Latest("my_run")),
        ("r2://jobs/my run+%20#?/latest", Latest("my run+%20#?")),
        ("r2://jobs/a/b/latest", Latest("a/b")),
        ("r2://jobs/a/b/c/latest", Latest("a/b/c")),
        ("r2://jobs/latest/latest", Latest("latest")),
        ("r2://jobs/my_run/chk_0042", Named(CheckpointKeys("my_run", "chk_0042"))),
        ("r2://jobs/my_run/chk_0042/", Named(CheckpointKeys("my_run", "chk_0042"))),
        ("r2://jobs/日本/slot_0", Named(CheckpointKeys("日本", "slot_0"))),
        ("r2://jobs/a%20b/c%20d", Prefix("jobs/a%20b/c%20d")),
        ("r2://jobs/my_run/chk_0042/sub", Prefix("jobs/my_run/chk_0042/sub")),
        ("r2://jobs/my_run/checkpoints", Prefix("jobs/my_run/checkpoints")),
        ("r2://jobs/my_run/checkpoints/chk_1", Prefix("jobs/my_run/checkpoints/chk_1")),
        ("r2://jobs/my_run", Prefix("jobs/my_run")),
        ("r2://jobs", Prefix("jobs")),
        ("r2://jobs/latest", Prefix("jobs/latest")),
        ("r2://datasets/mnist", Prefix("datasets/mnist")),
        ("r2://datasets/latest", Prefix("datasets/latest")),
        ("r2://a?b#c%2F", Prefix("a?b#c%2F")),
        ("r2://x/cafe\u0301", Prefix("x/caf\u00e9")),
        ("r2://x/" + "y" * 300, Prefix("x/" + "y" * 300)),
        ("r2://x\\y", Prefix("x\\y")),
        ("r2://jobs/" + "x" * 129 + "/chk_1", Prefix("jobs/" + "x" * 129 + "/chk_1")),
        ("r2://jobs/cafe\u0301/chk_1", Prefix("jobs/caf\u00e9/chk_1")),
    ],
)
def test_what_a_uri_means(uri, meant):
    """Latest, a named checkpoint, or any prefix; nothing is decoded, and a slash at the end changes nothing."""
    assert parse_uri(uri) == meant


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "r2://",
        "r2:///",
        "r2:///x",
        "r2://a//b",
        "r2://a/../b",
        "r2://./a",
        "s3://bucket/x",
        "./ckpts",
        "R2://x",
        "r2:/x",
        "r2://" + "x" * 1025,
        "r2://\ud800",
        "https://x/y",
    ],
)
def test_what_is_no_uri(uri):
    """Anything else is refused, shown escaped: a typing error must not look like a fresh start."""
    with pytest.raises(UriError) as error:
        parse_uri(uri)
    str(error.value).encode("ascii")


@pytest.mark.parametrize("job_id", ["x" * 129, "a\\b", "a\nb", "cafe\u0301"])
def test_a_job_id_that_cannot_be(job_id):
    """``latest`` of an impossible id is an error, not an absence."""
    with pytest.raises(NameRefused):
        parse_uri(f"r2://jobs/{job_id}/latest")


@given(
    st.text(max_size=60)
    | st.lists(st.sampled_from(["jobs", "latest", "a", "chk_1", "", "..", "é"]), max_size=6).map("/".join)
)
def test_any_text(text):
    """Whatever somebody types is one of the three forms or one of two errors."""
    try:
        meant = parse_uri(f"r2://{text}")
    except (UriError, NameRefused):
        return
    path = text.rstrip("/")
    if isinstance(meant, Latest):
        assert path == f"jobs/{meant.job_id}/latest"
    elif isinstance(meant, Named):
        assert path == f"jobs/{meant.of.job_id}/{meant.of.name}"
    else:
        assert meant.prefix == unicodedata.normalize("NFC", path)
        assert not meant.prefix.endswith("/")


def test_job_uris():
    """The commands that list or clean take a job or one of its checkpoints."""
    assert parse_job_uri("r2://jobs/my_run") == Job("my_run")
    assert parse_job_uri("r2://jobs/my_run/") == Job("my_run")
    assert parse_job_uri("r2://jobs/my_run/chk_1") == Named(CheckpointKeys("my_run", "chk_1"))


@pytest.mark.parametrize(
    "uri",
    ["r2://jobs", "r2://datasets/x", "r2://jobs/a/b/c", "jobs/a", "r2://jobs/a/latest", "r2://jobs/a/checkpoints"],
)
def test_what_no_command_may_clean(uri):
    """A prefix, or ``latest``, is nothing that a deleting command takes."""
    with pytest.raises((UriError, NameRefused)):
        parse_job_uri(uri)
