"""Content digests as values."""

from __future__ import annotations

import hashlib

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from r2d1.digest import digest_of, hex_of, is_hex, new_hasher, split_digest
from r2d1.errors import FormatError

#: BLAKE3 of nothing, from its specification's test vectors.
OF_NOTHING = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_the_digest_of_nothing():
    """The algorithm is BLAKE3 with 32 bytes, written as lower-case hex after its name."""
    assert digest_of(b"") == f"blake3:{OF_NOTHING}"


def test_sha256_is_known():
    """A manifest that names SHA-256 can be checked."""
    assert digest_of(b"abc", "sha256") == "sha256:" + hashlib.sha256(b"abc").hexdigest()


@given(st.lists(st.binary(max_size=100)))
def test_blocks_and_whole_agree(blocks):
    """A digest does not depend on how the bytes come."""
    assert hex_of(blocks) == hex_of(b"".join(blocks)) == blake3(b"".join(blocks)).hexdigest()


@given(st.binary(max_size=100), st.sampled_from(["blake3", "sha256"]))
def test_a_digest_splits_into_what_it_was_made_of(data, algorithm):
    """Algorithm and value come back."""
    assert split_digest(digest_of(data, algorithm)) == (algorithm, hex_of(data, algorithm))


def test_an_algorithm_of_the_future_is_split_too():
    """A digest of an unknown algorithm is well formed: it is refused only by who must check it."""
    assert split_digest("blake9:abc") == ("blake9", "abc")
    with pytest.raises(FormatError, match=r"blake9.*known: blake3, sha256"):
        new_hasher("blake9")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "blake3",
        "blake3:",
        f":{OF_NOTHING}",
        f"blake3:{OF_NOTHING[:-1]}",
        f"blake3:{OF_NOTHING}0",
        f"blake3:{OF_NOTHING.upper()}",
        "x:abg",
        "x:a b",
        "x:ab\n",
        f"sha256:{'0' * 40}",
    ],
)
def test_what_is_no_digest(text):
    """A text that cannot be a digest is told at once, not as damage after a download."""
    with pytest.raises(FormatError):
        split_digest(text)


def test_a_long_text_is_shortened_in_the_message():
    """An error text stays readable whatever the bucket holds, and escaped."""
    with pytest.raises(FormatError) as error:
        split_digest("\n" * 10_000)
    assert len(str(error.value)) < 500
    assert "\n" not in str(error.value)


def test_hex_of_a_slice():
    """The length is that of the algorithm, where it is known."""
    assert is_hex("a" * 64, "blake3")
    assert not is_hex("a" * 63, "sha256")
    assert is_hex("a", "other")
