"""Heads and ship records: their bytes to the letter, and that a foreign or mangled one is refused, never believed."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1 import keys
from r2d1.documents import OPEN, TAKEN, Head, ShipRecord, decode_head, decode_record
from r2d1.errors import FormatError
from r2d1.keys import CheckpointKeys
from tests.test_strictjson import ANY_JSON, strict_loads

A = "a" * 64
OF = CheckpointKeys("my_run", "chk_0042")

#: Written by hand from the format page. These bytes are in buckets: they do not change.
GOLDEN_HEAD = (
    b'{"deleted":false,"epoch":42,"manifest":"blake3:' + b"a" * 64 + b'","name":"chk_0042",'
    b'"prefix":"jobs/my_run/.r2d1/v/0123456789ab/chk_0042","replaces":"jobs/my_run/chk_0042","seq":2,'
    b'"timestamp":1748123456.7,"version":1}'
)
GOLDEN_FIRST = (
    b'{"deleted":false,"epoch":0,"manifest":"blake3:' + b"a" * 64 + b'","name":"chk_0042",'
    b'"prefix":"jobs/my_run/chk_0042","replaces":null,"seq":1,"timestamp":0.0,"version":1}'
)
GOLDEN_GONE = (
    b'{"deleted":true,"epoch":0,"manifest":null,"name":"chk_0042","prefix":null,"replaces":null,"seq":1,'
    b'"timestamp":0.0,"version":1}'
)
GOLDEN_RECORD = b'{"created_by":"r2d1 1.0.0","host":"node-7","owner":"' + b"0f" * 16 + b'","state":"open","version":1}'

HEAD = Head(2, "chk_0042", 42, 1748123456.7, OF.prefix("0123456789ab"), f"blake3:{A}", OF.prefix("0"))
RECORD = ShipRecord(OPEN, "0f" * 16, "node-7", "r2d1 1.0.0")


def head(document):
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_head(raw, key=OF.head, of=OF)


def record(document):
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_record(raw, key=OF.record("0"))


def changed(raw, **changes):
    return json.loads(raw) | changes


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (HEAD, GOLDEN_HEAD),
        (Head(1, "chk_0042", 0, 0.0, OF.prefix("0"), f"blake3:{A}"), GOLDEN_FIRST),
        (Head(1, "chk_0042", 0, 0.0, "", "", deleted=True), GOLDEN_GONE),
    ],
)
def test_the_bytes_of_a_head(value, raw):
    """Version 1, to the byte, both ways: a head that replaces, a first one, and the one gc writes where none was."""
    assert value.encode() == raw
    assert head(raw) == value


def test_the_bytes_of_a_ship_record():
    """Version 1, to the byte, both ways."""
    assert RECORD.encode() == GOLDEN_RECORD
    assert record(GOLDEN_RECORD) == RECORD
    assert RECORD.taken().encode() == GOLDEN_RECORD.replace(b"open", b"taken")
    assert RECORD.taken().state == TAKEN


def test_what_a_head_still_needs():
    """A head needs its own prefix and the one it replaced, for the readers on their way; a deleted one nothing."""
    assert HEAD.names(HEAD.prefix)
    assert HEAD.names(HEAD.replaces)
    assert not HEAD.names(OF.prefix("ba9876543210"))
    gone = Head(3, "chk_0042", 42, 0.0, HEAD.prefix, HEAD.manifest, HEAD.replaces, deleted=True)
    assert not gone.names(HEAD.prefix)


@given(
    st.integers(0, 2**63),
    st.integers(0, keys.MAX_EPOCH),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.dictionaries(st.text(max_size=6).map(lambda name: f"x_{name}"), ANY_JSON, max_size=3),
)
def test_heads_come_back(seq, epoch, timestamp, deleted, unknown):
    """What is encoded is strict JSON and decodes into the same head, fields of other versions included."""
    value = Head(seq, "chk_0042", epoch, timestamp, OF.prefix("0"), f"blake3:{A}", None, deleted, unknown)
    strict_loads(value.encode())
    again = head(value.encode())
    assert again.encode() == value.encode()
    assert (again.seq, again.epoch, again.timestamp, again.deleted) == (seq, epoch, timestamp, deleted)


@given(
    st.dictionaries(st.sampled_from([*json.loads(GOLDEN_HEAD), "x"]), ANY_JSON, max_size=3),
    st.sets(st.sampled_from([*json.loads(GOLDEN_HEAD)]), max_size=2),
)
def test_any_head_is_valid_or_refused(changes, missing):
    """A head that somebody changed names objects of its own checkpoint, or raises FormatError: nothing else."""
    document = {name: value for name, value in changed(GOLDEN_HEAD, **changes).items() if name not in missing}
    try:
        read = head(document)
    except FormatError:
        return
    assert read.name == "chk_0042"
    assert 0 <= read.epoch <= keys.MAX_EPOCH
    assert math.isfinite(read.timestamp)
    assert read.deleted or OF.ship_of(read.prefix) is not None
    assert read.replaces is None or OF.ship_of(read.replaces) is not None
    assert head(read.encode()).encode() == read.encode()


@given(
    st.dictionaries(st.sampled_from([*json.loads(GOLDEN_RECORD), "x"]), ANY_JSON, max_size=3),
    st.sets(st.sampled_from([*json.loads(GOLDEN_RECORD)]), max_size=2),
)
def test_any_record_is_valid_or_refused(changes, missing):
    """A record that somebody changed has its four texts, or raises FormatError: nothing else."""
    document = {name: value for name, value in changed(GOLDEN_RECORD, **changes).items() if name not in missing}
    try:
        read = record(document)
    except FormatError:
        return
    assert all(isinstance(text, str) for text in (read.state, read.owner, read.host, read.created_by))
    assert record(read.encode()).encode() == read.encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2.*update r2d1"),
        ({"requires": ["x"]}, "update r2d1"),
        ({"name": "chk_0043"}, "chk_0043"),
        ({"name": None}, "names None"),
        ({"seq": -1}, "seq"),
        ({"seq": True}, "seq"),
        ({"epoch": 2**53}, "epoch"),
        ({"timestamp": 10**400}, "timestamp"),
        ({"timestamp": None}, "timestamp"),
        ({"deleted": 0}, "deleted"),
        ({"prefix": "jobs/my_run/chk_0043"}, "prefix"),
        ({"prefix": "jobs/other/chk_0042"}, "prefix"),
        ({"prefix": "jobs/my_run/chk_0042/"}, "prefix"),
        ({"prefix": "jobs/my_run/checkpoints/chk_0042"}, "prefix"),
        ({"prefix": "jobs/my_run/.r2d1/v/../../chk_0042"}, "prefix"),
        ({"prefix": None}, "prefix"),
        ({"prefix": ""}, "prefix"),
        ({"replaces": "jobs/my_run/chk_0043"}, "replaces"),
        ({"replaces": 1}, "replaces"),
        ({"manifest": None}, "manifest"),
        ({"manifest": f"blake3:{A[1:]}"}, "manifest"),
        ({"manifest": f"sha256:{A}"}, "manifest"),
        ({"manifest": [f"blake3:{A}"]}, "manifest"),
    ],
)
def test_heads_that_are_refused(changes, said):
    """What is wrong is named, with the head's key; a head of another version, or that names foreign objects, too."""
    with pytest.raises(FormatError, match=said) as error:
        head(changed(GOLDEN_HEAD, **changes))
    assert OF.head in str(error.value)


@pytest.mark.parametrize("missing", ["prefix", "manifest", "replaces"])
def test_a_deleted_head_may_name_nothing(missing):
    """gc's head names no objects, whether the fields are null or absent."""
    document = json.loads(GOLDEN_GONE)
    del document[missing]
    assert head(document).encode() == GOLDEN_GONE


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"version": 0}, "version 0"), ({"owner": None}, "owner"), ({"state": 1}, "state"), ({"host": []}, "host")],
)
def test_records_that_are_refused(changes, said):
    """A record that is none is named with its key."""
    with pytest.raises(FormatError, match=said) as error:
        record(changed(GOLDEN_RECORD, **changes))
    assert OF.record("0") in str(error.value)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"null", b"\xff", b"[" * 10_000])
def test_what_is_no_document(raw):
    """Bytes that are no JSON object are a FormatError with the key."""
    with pytest.raises(FormatError, match="chk_0042"):
        head(raw)
    with pytest.raises(FormatError, match="chk_0042"):
        record(raw)
