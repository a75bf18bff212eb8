"""The manifest: its bytes to the letter, its round trip, and that nothing a bucket holds does more than be refused."""

from __future__ import annotations

import copy
import json
import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1 import keys, manifest, strictjson
from r2d1.errors import FormatError
from r2d1.manifest import (
    MAX_FILE_BYTES,
    MAX_PARTS,
    PART_SIZE,
    FileEntry,
    Manifest,
    decode_manifest,
    manifest_digest,
    plan_part_size,
)  # fmt: skip
from tests.test_strictjson import ANY_JSON, strict_loads

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
KEY = "jobs/my_run/chk_0042/r2d1.manifest.json"

#: Written by hand from the format page. These bytes are in buckets: they do not change.
GOLDEN = (
    b'{"created_by":"r2d1 1.0.0","epoch":42,"extra":{"left_out":["x.tmp"]},"files":['
    b'{"digest":"blake3:' + b"a" * 64 + b'","etag":"0123","part_size":16777216,"path":".hidden","size":0},'
    b'{"digest":"blake3:' + b"b" * 64 + b'","etag":"4567-2","part_size":16777216,'
    b'"parts":["' + b"c" * 64 + b'","' + b"d" * 64 + b'"],"path":"checkpoint.pt","size":16777217},'
    b'{"digest":"blake3:' + b"a" * 64 + b'","etag":"89ab","key":".r2d1/chk_0042.json","part_size":16777216,'
    b'"path":"chk_0042.json","size":3},'
    b'{"digest":"blake3:' + b"a" * 64 + b'","etag":"cdef","part_size":16777216,"path":"sub/\xc3\xbc b.bin","size":5}],'
    b'"job_id":"my_run","metadata":{"loss":0.043,"note":"\xe6\x97\xa5"},"name":"chk_0042","requires":[],'
    b'"sidecar":{"digest":"blake3:' + b"d" * 64 + b'","size":120},"timestamp":1748123456.7,'
    b'"total_bytes":16777225,"version":1}'
)


def golden(**changes):
    """The manifest whose bytes are ``GOLDEN``; its files out of order, as a caller may give them."""
    fields = {
        "job_id": "my_run",
        "name": "chk_0042",
        "epoch": 42,
        "timestamp": 1748123456.7,
        "metadata": {"note": "日", "loss": 0.043},
        "created_by": "r2d1 1.0.0",
        "sidecar_size": 120,
        "sidecar_digest": f"blake3:{D}",
        "files": (
            FileEntry("sub/ü b.bin", 5, f"blake3:{A}", "cdef", PART_SIZE),
            FileEntry("checkpoint.pt", PART_SIZE + 1, f"blake3:{B}", "4567-2", PART_SIZE, (C, D)),
            FileEntry(".hidden", 0, f"blake3:{A}", "0123", PART_SIZE),
            FileEntry("chk_0042.json", 3, f"blake3:{A}", "89ab", PART_SIZE, key=".r2d1/chk_0042.json"),
        ),
        "extra": {"left_out": ["x.tmp"]},
    }
    return Manifest(**(fields | changes))


def decode(document):
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_manifest(raw, key=KEY)


def document(**changes):
    return json.loads(GOLDEN) | changes


def test_the_bytes_of_a_manifest():
    """Version 1, to the byte: sorted keys, no spaces, UTF-8, files by the bytes of their paths."""
    assert golden().encode() == GOLDEN


def test_the_golden_manifest_is_read():
    """What is in buckets today is read as it was meant."""
    read = decode(GOLDEN)
    meant = golden()
    assert read.files == tuple(sorted(meant.files, key=lambda entry: entry.path.encode()))
    assert (read.job_id, read.name, read.epoch, read.timestamp) == ("my_run", "chk_0042", 42, 1748123456.7)
    assert (read.sidecar_size, read.sidecar_digest, read.metadata) == (120, f"blake3:{D}", meant.metadata)
    assert read.extra == {"left_out": ["x.tmp"]}
    assert read.unknown == {}
    assert read.total_bytes == 16777225
    assert read.encode() == GOLDEN


def test_the_digest_a_head_states():
    """The manifest's digest is BLAKE3 of its bytes as stored."""
    assert manifest_digest(b"") == "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_keys_of_objects():
    """An object lies under its path, or under ``key`` where that is said, in the form in which R2 keeps keys."""
    hidden, weights, twin, _ = decode(GOLDEN).files
    assert [entry.object_key for entry in (hidden, weights, twin)] == [
        ".hidden",
        "checkpoint.pt",
        ".r2d1/chk_0042.json",
    ]
    assert FileEntry("e\u0301", 0, f"blake3:{A}", "", 1).object_key == "\u00e9"


def test_digests_of_slices():
    """A file of one slice has its own digest as the slice's; a larger one has one a slice."""
    hidden, weights, *_ = decode(GOLDEN).files
    assert hidden.slice_digests() == (A,)
    assert weights.slice_digests() == (C, D)
    assert weights.algorithm == "blake3"


def test_the_same_checkpoint():
    """Epoch, paths, sizes and digests make a checkpoint; part size, ETags and the rest do not."""
    files = {entry.path: (entry.size, entry.digest) for entry in golden().files}
    assert golden().has_same_files(42, files)
    assert not golden().has_same_files(43, files)
    assert not golden().has_same_files(42, files | {"new": (0, f"blake3:{A}")})
    assert not golden().has_same_files(42, files | {".hidden": (0, f"blake3:{B}")})
    assert not golden().has_same_files(42, {path: files[path] for path in list(files)[1:]})


# -- round trip ---------------------------------------------------------------------------------------------

HEX = st.text("0123456789abcdef", min_size=64, max_size=64)
PATHS = st.lists(
    st.text(min_size=1, max_size=8).filter(
        lambda path: keys._why_no_path(path) is None and not path.startswith(".r2d1")
    ),
    max_size=4,
    unique_by=lambda path: unicodedata.normalize("NFC", path).split("/")[0],
)
UNKNOWN = st.dictionaries(st.text(min_size=1, max_size=6).map(lambda name: f"x_{name}"), ANY_JSON, max_size=2)


@st.composite
def entries(draw, path):
    size = draw(st.integers(0, 10**7) | st.integers(0, MAX_FILE_BYTES))
    part_size = draw(st.sampled_from([max(1, -(-size // count)) for count in (1, 2, 3)]) | st.just(max(1, size)))
    count = -(-size // part_size) if size > part_size else 0
    return FileEntry(
        path=path,
        size=size,
        digest=f"blake3:{draw(HEX)}",
        etag=draw(st.text(max_size=8)),
        part_size=part_size,
        parts=tuple(draw(st.lists(HEX, min_size=count, max_size=count))),
        key=draw(st.none() | st.just(f".r2d1/{path}")) if len(path) < 200 else None,
        unknown=draw(UNKNOWN),
    )


@st.composite
def manifests(draw):
    paths = draw(PATHS)
    return Manifest(
        job_id=draw(st.sampled_from(["my_run", "日本 7", "a/b"])),
        name=draw(st.sampled_from(["chk_0042", "slot_0"])),
        epoch=draw(st.integers(0, keys.MAX_EPOCH)),
        timestamp=draw(st.floats(allow_nan=False, allow_infinity=False)),
        metadata=draw(ANY_JSON),
        created_by=draw(st.text(max_size=8)),
        sidecar_size=draw(st.integers(0, 2**24)),
        sidecar_digest=f"blake3:{draw(HEX)}",
        files=tuple(sorted((draw(entries(path)) for path in paths), key=lambda entry: entry.path.encode())),
        extra=draw(st.dictionaries(st.text(max_size=6), ANY_JSON, max_size=2)),
        unknown=draw(UNKNOWN),
    )


def tidy(value):
    """A value as strict JSON keeps it."""
    return strictjson.parse(strictjson.encode(strictjson.clean(value)))


@given(manifests())
def test_a_manifest_comes_back(made):
    """What is encoded is strict JSON and is decoded into the same manifest, fields of other versions included."""
    raw = made.encode()
    strict_loads(raw)
    read = decode(raw)
    assert read.encode() == raw
    for name in ("job_id", "name", "epoch", "timestamp", "created_by", "sidecar_size", "sidecar_digest", "total_bytes"):
        assert getattr(read, name) == getattr(made, name)
    for name in ("metadata", "extra", "unknown"):
        assert getattr(read, name) == tidy(getattr(made, name))
    for one, other in zip(read.files, made.files, strict=True):
        assert one.unknown == tidy(other.unknown)
        assert one == FileEntry(
            other.path, other.size, other.digest, other.etag, other.part_size, other.parts, other.key, one.unknown
        )


def test_unknown_fields_are_written_back():
    """A field that a later version added survives being read and written by this one."""
    changed = document(later={"deep": [1, 2]})
    changed["files"][0]["mode"] = 0o644
    changed["requires"] = []
    again = json.loads(decode(changed).encode())
    assert again["later"] == {"deep": [1, 2]}
    assert again["files"][0]["mode"] == 0o644
    assert again == changed


# -- refusals -----------------------------------------------------------------------------------------------


def sites(value, at=()):
    """The place of every value within a document."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield from sites(item, (*at, name))


SITES = [at for at in sites(json.loads(GOLDEN)) if at]
TELLING = st.sampled_from(
    [
        "",
        "..",
        "../../evil",
        "/etc/evil",
        "a/../b",
        "\0",
        "latest",
        ".r2d1/journal.db",
        "blake3:",
        f"blake3:{A}",
        -1,
        0,
        1,
        2**53,
        10**500,
        1.0,
        1e999,
        math.nan,
        [],
        {},
        [[]],
        None,
        True,
    ]
)


@given(st.lists(st.tuples(st.sampled_from(SITES), TELLING | ANY_JSON | st.just("delete")), min_size=1, max_size=3))
def test_any_mutation_is_valid_or_refused(changes):
    """A manifest that somebody changed decodes to one that keeps every rule, or raises FormatError: nothing else."""
    mutated = json.loads(GOLDEN)
    for at, value in changes:
        change(mutated, at, value)
    try:
        read = decode(json.dumps(mutated).encode("utf-8", "surrogatepass"))
    except FormatError:
        return
    assert_rules(read)
    assert decode(read.encode()).encode() == read.encode()


def change(document, at, value):
    *way, last = at
    holder = document
    for step in way:
        try:
            holder = holder[step]
        except (KeyError, IndexError, TypeError):
            return  # an earlier change took it away
    if isinstance(holder, dict if isinstance(last, str) else list) and (isinstance(last, str) or last < len(holder)):
        if value == "delete":
            holder.pop(last, None) if isinstance(holder, dict) else holder.pop(last)
        else:
            holder[last] = copy.deepcopy(value)


def assert_rules(read):
    keys.check_job_id(read.job_id, reading=True)
    keys.check_name(read.name)
    keys.check_paths(entry.path for entry in read.files)
    keys.check_paths(entry.object_key for entry in read.files)
    assert 0 <= read.epoch <= keys.MAX_EPOCH
    assert math.isfinite(read.timestamp)
    for entry in read.files:
        assert 0 <= entry.size <= MAX_FILE_BYTES
        assert entry.part_size > 0
        assert len(entry.slice_digests()) == max(1, -(-entry.size // entry.part_size)) <= MAX_PARTS
        assert isinstance(entry.etag, str)


@given(st.integers(0, len(GOLDEN) - 1), st.integers(0, 255))
def test_any_flipped_byte_is_valid_or_refused(at, byte):
    """Damage to the bytes themselves is a FormatError or goes unnoticed here; the head's digest tells."""
    raw = bytearray(GOLDEN)
    raw[at] = byte
    try:
        assert_rules(decode(bytes(raw)))
    except FormatError:
        return


HOSTILE = ["../../evil", "/etc/evil", "a/../../b", "..\\x", "C:\\x", "", ".", "..", "a\0b", "x" * 300, "a//b", "a/"]


@pytest.mark.parametrize(
    ("field", "path"),
    [
        *(("path", path) for path in [*HOSTILE, ".r2d1", ".r2d1/journal.db"]),
        *(("key", path) for path in HOSTILE),
    ],
)
def test_hostile_paths_are_refused(field, path):
    """A path or key that would leave the checkpoint, or land in r2d1's own state, refuses the whole manifest."""
    hostile = document()
    hostile["files"][1][field] = path
    with pytest.raises(FormatError) as error:
        decode(hostile)
    str(error.value).encode("ascii")


def test_two_objects_of_one_key_are_refused():
    """No file of a checkpoint can be another one's object."""
    twins = document()
    twins["files"][1]["key"] = ".hidden"
    with pytest.raises(FormatError, match="NFC"):
        decode(twins)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"version": True}, "version True"),
        ({"version": None}, "version None"),
        ({"requires": ["packed"]}, "packed"),
        ({"requires": "packed"}, "packed"),
        ({"requires": None}, "None"),
    ],
)
def test_a_newer_version_is_refused_as_such(changes, said):
    """A manifest that this version does not understand says so, and what to do."""
    with pytest.raises(FormatError, match=rf"{said}.*update r2d1"):
        decode(document(**changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job_id": "../x"}, "job id"),
        ({"name": "latest"}, "checkpoint name"),
        ({"epoch": 2**53}, "epoch"),
        ({"epoch": True}, "epoch"),
        ({"epoch": 1.0}, "epoch"),
        ({"timestamp": "now"}, "timestamp"),
        ({"timestamp": 10**400}, "timestamp"),
        ({"timestamp": math.inf}, "timestamp"),
        ({"created_by": 1}, "created_by"),
        ({"total_bytes": 1}, "total_bytes"),
        ({"sidecar": {"size": 2**24 + 1, "digest": f"blake3:{A}"}}, r"sidecar\.size"),
        ({"sidecar": {"size": 1, "digest": "blake3:x"}}, r"sidecar\.digest"),
        ({"sidecar": None}, "sidecar"),
        ({"files": {}}, "files"),
        ({"files": [None]}, r"files\[0\]"),
        ({"extra": []}, "extra"),
    ],
)
def test_what_is_wrong_is_named(changes, said):
    """Every field that is no good is named in the error, with the manifest's key."""
    with pytest.raises(FormatError, match=said) as error:
        decode(document(**changes))
    assert KEY in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": -1}, "size"),
        ({"size": MAX_FILE_BYTES + 1, "part_size": 2**43, "parts": []}, "size"),
        ({"part_size": 0}, "part_size"),
        ({"part_size": 1}, "10000 parts"),
        ({"parts": [C]}, "parts"),
        ({"parts": [C, D[:-1]]}, "hex"),
        ({"parts": [C, D.upper()]}, "hex"),
        ({"parts": None}, "parts"),
        ({"digest": f"blake3:{A[:-1]}"}, "digest"),
        ({"digest": A}, "digest"),
        ({"etag": None}, "etag"),
        ({"key": None}, "key"),
        ({"key": ""}, "refused"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(changes, said):
    """A file's fields are checked one by one, and the file is named."""
    wrong = document()
    wrong["files"][1] |= changes
    with pytest.raises(FormatError, match=said) as error:
        decode(wrong)
    assert "checkpoint.pt" in str(error.value) or changes == {"key": ""}


def test_every_problem_is_named_at_once():
    """Validation gathers all issues before it raises."""
    with pytest.raises(FormatError) as error:
        decode(document(epoch=-1, timestamp=None, extra=1))
    assert all(name in str(error.value) for name in ("epoch", "timestamp", "extra"))


@pytest.mark.parametrize(
    "missing",
    ["job_id", "name", "epoch", "timestamp", "metadata", "created_by", "total_bytes", "sidecar", "files", "version"],
)
def test_missing_fields_are_named(missing):
    """A field that is not there is named."""
    wrong = document()
    del wrong[missing]
    with pytest.raises(FormatError, match=missing):
        decode(wrong)


def test_an_unknown_algorithm_is_read():
    """A digest of a later algorithm is no malformed manifest: who must check it will say that it cannot."""
    later = document()
    later["files"][0]["digest"] = "blake9:abc"
    assert decode(later).files[0].algorithm == "blake9"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff"])
def test_what_is_no_document(raw):
    """Bytes that are no JSON object are a FormatError with the key."""
    with pytest.raises(FormatError, match="chk_0042"):
        decode(raw)


def test_limits(monkeypatch):
    """A manifest that no reader would take is never written, and one with too many files never read."""
    monkeypatch.setattr(manifest, "MAX_MANIFEST_BYTES", len(GOLDEN) - 1)
    with pytest.raises(FormatError, match="bytes"):
        golden().encode()
    monkeypatch.setattr(manifest, "MAX_FILES", 3)
    with pytest.raises(FormatError, match="4 files"):
        decode(GOLDEN)


def test_nothing_strict_json_lacks_is_written():
    """NaN in a manifest's metadata or in a field of another version becomes null; a lone surrogate U+FFFD."""
    odd = golden(
        metadata={"loss": math.nan},
        unknown={"x": math.inf},
        extra={"y": "\ud800"},
        files=(FileEntry("a", 0, f"blake3:{A}", "", 1, unknown={"z": math.nan}),),
    )
    fields = strict_loads(odd.encode())
    assert (fields["metadata"], fields["x"], fields["extra"]) == ({"loss": None}, None, {"y": "\ufffd"})
    assert fields["files"][0]["z"] is None


# -- part sizes ---------------------------------------------------------------------------------------------


@given(st.integers(0, 5 * 2**40), st.sampled_from([PART_SIZE, 5 * 2**20, 5 * 2**20 + 1, 64 * 2**20]))
def test_part_sizes(size, base):
    """From nothing to 5 TiB: the base doubled as often as needed and no oftener, at most 10,000 parts of at most 5 GiB."""
    part_size = plan_part_size(size, base)
    assert -(-size // part_size) <= 10_000
    assert part_size % base == 0
    assert (part_size // base).bit_count() == 1
    assert part_size <= 5 * 2**30
    assert part_size == base or -(-size // (part_size // 2)) > 10_000


def test_part_sizes_at_the_edge():
    """10,000 parts are allowed, 10,001 are not."""
    assert plan_part_size(0) == plan_part_size(10_000 * PART_SIZE) == PART_SIZE == 16_777_216
    assert plan_part_size(10_000 * PART_SIZE + 1) == 2 * PART_SIZE
