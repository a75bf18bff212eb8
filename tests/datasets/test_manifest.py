"""The documents of a shard set: read strictly, written byte for byte."""

from __future__ import annotations

import copy
import json

import pytest

from r2d1.datasets import DocumentError, parse_index, parse_manifest, parse_record
from r2d1.datasets.manifest import fill_template
from r2d1.errors import NameRefused
from tests.datasets.making import GOLDEN

EXPECTED = GOLDEN / "expected"


def changed(document, path, value):
    """The JSON of a golden document with one field changed; ``...`` removes it."""
    tree = json.loads((EXPECTED / "bpe" / document).read_bytes())
    part = tree
    for name in path[:-1]:
        part = part[name]
    if value is ...:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return json.dumps(tree).encode()


@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_golden_documents_come_back_byte_for_byte(name):
    """What is read from the original's files is written as the same bytes."""
    manifest = (EXPECTED / name / "manifest.json").read_bytes()
    record = (EXPECTED / name / "build_record.json").read_bytes()
    assert parse_manifest(manifest).to_bytes() == manifest
    assert parse_record(record).to_bytes() == record
    assert parse_record(record).fragment.differences(parse_manifest(manifest)) == []


def test_a_number_that_no_float_holds_is_refused():
    """What could not be written again is not read, wherever it lies."""
    document = changed("manifest.json", ["extra", "mix_id"], "@").replace(b'"@"', b"1e999")
    with pytest.raises(DocumentError, match="the number 1e999 is too large"):
        parse_manifest(document)


def test_an_error_text_can_be_printed_whatever_a_document_holds():
    """Lone surrogates and marks that turn text round are escaped, long names and long lists cut."""
    entry = {"size": -1, "sha256": "x"}
    names = ["\ud800", "\u202eabc", "a" * 100_000, *(str(number) for number in range(1000))]
    with pytest.raises(DocumentError) as caught:
        parse_index(json.dumps(dict.fromkeys(names, entry)).encode())
    text = str(caught.value)
    text.encode("ascii")
    assert len(text) < 20_000
    assert text.endswith(f"; and {len(caught.value.problems) - 20} more")
    assert len(caught.value.problems) >= 1003
    noted = DocumentError("d", ["\ud800\n" + "b" * 100_000])
    assert str(noted) == f"d: \\ud800\\n{'b' * 498}..."


def test_where_units_and_shards_lie():
    """Sizes, unit places and keys follow from the counts; the last shard is short."""
    manifest = parse_manifest((EXPECTED / "bpe" / "manifest.json").read_bytes())
    assert (manifest.n_samples, manifest.n_shards, manifest.n_units, manifest.depth) == (264, 17, 66, 9)
    assert [manifest.shard_size(n) for n in (0, 15, 16)] == [1056, 1056, 528]
    assert list(manifest.shard_units(16)) == [64, 65]
    assert manifest.unit_place(65) == (16, 264, 264)
    assert manifest.shard_key(16) == manifest.shard_sha256s[16]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["seq_len"], ..., "seq_len is missing"),
        (["seq_len"], 0, "seq_len is 0, not an integer from 1"),
        (["seq_len"], True, "seq_len is True, not an integer"),
        (["seq_len"], 32.0, "seq_len is 32.0, not an integer"),
        (["samples_per_shard"], "16", "samples_per_shard is '16', not an integer"),
        (["samples_per_shard"], 18, "samples_per_shard is 18, not a multiple of the unit 4"),
        (["samples_per_shard"], 2**25, "over the limit of 67108864"),
        (["n_shards"], 16, "n_shards is 16, where n_samples 264 asks for 17"),
        (["n_samples"], 265, "n_samples is 265, not a multiple of the unit 4"),
        (["n_samples"], 268, "unit_sha256s has 66, where n_samples 268 asks for 67"),
        (["n_samples"], 2**53, "n_samples is 9007199254740992, not an integer from 1 to 9007199254740991"),
        (["depth"], 8, "depth is 8, where n_samples 264 asks for 9"),
        (["merkle_root"], "0" * 63, "merkle_root is '0000"),
        (["merkle_root"], "A" * 64, "not 64 lower-case hexadecimal digits"),
        (["shard_sha256s"], {}, "shard_sha256s is {}, not an array"),
        (["shard_sha256s", 3], None, r"shard_sha256s\[3\] is None, not 64 lower-case"),
        (["shard_sha256s", 3], "0" * 64, "shard_sha256_root is ce382d.*, but the list has the root"),
        (["unit_sha256s", 3], "0" * 64, "unit_sha256_root is 4ee21d.*, but the list has the root"),
        (["shard_sha256_root"], "0" * 64, "shard_sha256_root is 0000.*, but the list has the root ce382d"),
        (["tokenizer"], "bytes", "tokenizer is 'bytes', not an object"),
        (["tokenizer", "sha256"], 1, "tokenizer.sha256 is 1, not 64"),
        (["tokenizer", "more"], 1, "tokenizer.'more' is not a field of this document"),
        (["unit"], 0, "unit is 0, not an integer from 1"),
        (["sample_format"], "u8", "sample_format is 'u8'; this version reads"),
        (["shard_uri_template"], "shards", "{shard_sha256} must occur exactly once"),
        (["shard_uri_template"], "../{shard_sha256}", "'..'"),
        (["extra"], [], r"extra is \[\], not an object"),
        (["surprise"], 1, "'surprise' is not a field of this document"),
    ],
)
def test_each_malformed_field_is_named(path, value, said):
    """Every field of a manifest is checked, and the error names it."""
    with pytest.raises(DocumentError, match=said):
        parse_manifest(changed("manifest.json", path, value))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["fragment", "depth"], 8, "fragment.depth is not 9"),
        (["fragment", "source", "mix_id"], "", "fragment.source.mix_id is ''"),
        (["fragment", "assign_unit"], ..., "fragment.assign_unit is missing"),
        (["removed_ids", 0], "ff" * 32, "removed_ids are not sorted"),
        (["removed_ids", 0], "x", r"removed_ids\[0\] is 'x'"),
        (["more"], 1, "'more' is not a field"),
    ],
)
def test_build_records_are_as_strict(path, value, said):
    """The fields of a build record are checked and named likewise."""
    with pytest.raises(DocumentError, match=said):
        parse_record(changed("build_record.json", path, value))


def test_all_problems_are_told_at_once():
    """One error names every malformed field, not the first only."""
    tree = json.loads(changed("manifest.json", ["unit"], None))
    broken = copy.deepcopy(tree) | {"depth": -1, "merkle_root": 7}
    with pytest.raises(DocumentError) as caught:
        parse_manifest(json.dumps(broken).encode(), "some/manifest.json")
    assert [text.split(" ")[0] for text in caught.value.problems] == ["unit", "merkle_root", "depth"]
    assert str(caught.value).startswith("some/manifest.json: unit is None")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"\xff", b'{"a": 1, "a": 2}', b'{"seq_len": NaN}', b"[" * 100_000], ids=range(6)
)
def test_what_is_no_json_object(data):
    """Other bytes, a key given twice, NaN and endless nesting are one clear error."""
    with pytest.raises(DocumentError, match="JSON"):
        parse_manifest(data)


@pytest.mark.parametrize("template", ["", "a", "{shard_sha256}{shard_sha256}", "/{shard_sha256}", "a//{shard_sha256}"])
def test_templates_that_lead_astray(template):
    """A template must hold the hash exactly once and give a safe path."""
    with pytest.raises(NameRefused):
        fill_template(template, "0" * 64)


def test_templates_are_filled_literally():
    """Nothing in a template but the one word has a meaning."""
    assert fill_template("a/{0}%s/{shard_sha256}.u16", "ab" * 32) == "a/{0}%s/" + "ab" * 32 + ".u16"
