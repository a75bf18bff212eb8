"""Ranges and parts: a cover without gaps, equal pieces, within R2's limits."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from r2d1.manifest import MAX_FILE_BYTES, PART_SIZE, plan_part_size
from r2d1.objects import BodyCheck, ByteRange, Part
from r2d1.transfer.plan import expected_etag, plan_ranges

TIB = 2**40


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_ranges_cover_everything_once(size, part_size):
    """Consecutive, without gap or overlap, all of one size but the last, none empty."""
    part_size = max(part_size, size // 2000 or 1)
    ranges = plan_ranges(size, part_size)
    assert sum(span.size for span in ranges) == size
    at = 0
    for span in ranges:
        assert span.start == at
        at = span.stop
    assert at == size
    assert all(span.size == part_size for span in ranges[:-1])
    assert all(0 < span.size <= part_size for span in ranges)


@given(
    st.integers(0, 5 * TIB),
    st.sampled_from([5 * 2**20, 8 * 2**20, PART_SIZE, 7_000_001, 64 * 2**20, 5 * 2**30 - 5 * 2**20]),
)
@example(5 * TIB, PART_SIZE)
@example(5 * TIB, 5 * 2**20)
@example(MAX_FILE_BYTES, PART_SIZE)
@example(10_000 * PART_SIZE, PART_SIZE)
@example(10_000 * PART_SIZE + 1, PART_SIZE)
def test_parts_are_within_r2s_limits(size, base):
    """From 0 B to 5 TiB: at most 10,000 equal parts of 5 MiB to 5 GiB, and the plan of them covers the file."""
    part_size = plan_part_size(size, base)
    assert 5 * 2**20 <= part_size <= 5 * 2**30
    ranges = plan_ranges(size, part_size)
    assert len(ranges) <= 10_000
    assert sum(span.size for span in ranges) == size
    assert {span.size for span in ranges[:-1]} <= {part_size}
    assert size == 0 or ranges[-1].stop == size


@pytest.mark.parametrize(
    ("size", "ranges"),
    [
        (0, []),
        (1, [ByteRange(0, 1)]),
        (9, [ByteRange(0, 9)]),
        (10, [ByteRange(0, 10)]),
        (11, [ByteRange(0, 10), ByteRange(10, 11)]),
        (20, [ByteRange(0, 10), ByteRange(10, 20)]),
        (25, [ByteRange(0, 10), ByteRange(10, 20), ByteRange(20, 25)]),
    ],
)
def test_the_edges(size, ranges):
    """Below, at and above a multiple of the part size."""
    assert plan_ranges(size, 10) == ranges


def test_an_empty_file_is_one_request_not_a_part():
    """A file without bytes has no range to ask for."""
    assert plan_ranges(0, PART_SIZE) == []


@pytest.mark.parametrize("size", [0, -1])
def test_a_part_of_nothing_is_no_plan(size):
    """A part size that could never end a file is an error, not an endless loop."""
    with pytest.raises(ValueError, match="at least one byte"):
        plan_ranges(10, size)


def test_the_etag_of_joined_parts():
    """The MD5 of the parts' MD5s, in the order of their numbers, and how many: a value computed by hand."""
    one, two = (hashlib.md5(data).hexdigest() for data in (b"one", b"two"))
    parts = [Part(2, two, 3), Part(1, one, 3, BodyCheck("md5", "x"))]
    assert expected_etag(parts) == "1397b7ee3222e3980d0d20f23a871b02-2"


@pytest.mark.parametrize("etag", ["x", "", "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "-1"])
def test_etags_that_are_no_md5(etag):
    """A store whose ETags mean something else gives nothing to compare with."""
    assert expected_etag([Part(1, "0" * 32, 1), Part(2, etag, 1)]) is None
