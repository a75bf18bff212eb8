"""The mix registry, shipped and given."""

from __future__ import annotations

import hashlib
import json

import pytest
import rfc8785

from r2d1.datasets import DocumentError, load_registry, parse_registry
from r2d1.datasets.canonical import canonical, canonical_sha256
from r2d1.errors import ConfigError
from tests.datasets.making import GOLDEN, mix, registry, source


def test_the_shipped_registry_is_the_documented_one():
    """Sources, pins and ratios of ``od-a-v1`` and ``od-a-proxy-v1`` are those of the format document."""
    found = load_registry()
    assert {
        name: (s.repo, s.revision[:8], s.config, s.files, s.exclude, s.text_field, s.licence)
        for name, s in found.sources.items()
    } == {
        "fineweb-edu": (
            "HuggingFaceFW/fineweb-edu",
            "87f09149",
            "default",
            ("data/CC-MAIN-*/*.parquet",),
            ("data/CC-MAIN-2025-26/*",),
            "text",
            "ODC-By-1.0",
        ),
        "fineweb-edu-holdout": (
            "HuggingFaceFW/fineweb-edu",
            "87f09149",
            "default",
            ("data/CC-MAIN-2025-26/*.parquet",),
            (),
            "text",
            "ODC-By-1.0",
        ),
        "fineweb-edu-sample10bt": (
            "HuggingFaceFW/fineweb-edu",
            "87f09149",
            "sample-10BT",
            ("sample/10BT/*.parquet",),
            (),
            "text",
            "ODC-By-1.0",
        ),
        "dclm-baseline": ("mlfoundations/dclm-baseline-1.0", "a3b142c1", None, ("*.parquet",), (), "text", "CC-BY-4.0"),
        "wikipedia-en": (
            "wikimedia/wikipedia",
            "b04c8d1c",
            None,
            ("20231101.en/*.parquet",),
            (),
            "text",
            "CC-BY-SA-3.0",
        ),
        "finemath-4plus": (
            "HuggingFaceTB/finemath",
            "e92b25a6",
            None,
            ("finemath-4plus/*.parquet",),
            (),
            "text",
            "ODC-By-1.0",
        ),
        "pes2o-v2": ("allenai/peS2o", "636a503e", None, ("data/v2/*.parquet",), (), "text", "ODC-By-1.0"),
        "mmlu-test": ("cais/mmlu", "c30699e8", None, ("all/test-*.parquet",), (), "question", "MIT"),
        "arc-challenge-test": (
            "allenai/ai2_arc",
            "210d026f",
            None,
            ("ARC-Challenge/test-*.parquet",),
            (),
            "question",
            "CC-BY-SA-4.0",
        ),
        "hellaswag-validation": ("Rowan/hellaswag", "218ec52e", None, ("data/validation-*.parquet",), (), "ctx", "MIT"),
    }
    big, proxy = found.mixes["od-a-v1"], found.mixes["od-a-proxy-v1"]
    assert big.components == (
        ("fineweb-edu", 0.55),
        ("dclm-baseline", 0.3),
        ("wikipedia-en", 0.05),
        ("finemath-4plus", 0.05),
        ("pes2o-v2", 0.05),
    )
    assert proxy.components == (("fineweb-edu-sample10bt", 1.0),)
    for one in (big, proxy):
        assert one.decontam_against == (
            "mmlu-test",
            "arc-challenge-test",
            "hellaswag-validation",
            "fineweb-edu-holdout",
        )
        assert (one.holdout, one.seq_len, one.tokenizer) == ("fineweb-edu-holdout", 1024, "modernbert-base")
    pin = found.tokenizers["modernbert-base"]
    assert (pin.repo, pin.revision[:8], pin.sha256[:8], pin.licence) == (
        "answerdotai/ModernBERT-base",
        "8949b909",
        "9fd55248",
        "Apache-2.0",
    )


def test_the_hash_of_a_registry_is_that_of_its_canonical_form():
    """The golden registry has the hash the original gave it, in any key order and white space."""
    data = (GOLDEN / "registry.json").read_bytes()
    wanted = json.loads((GOLDEN / "expected" / "bpe.facts.json").read_bytes())["registry_sha256"]
    assert parse_registry(data).sha256 == wanted
    other = json.dumps(json.loads(data), sort_keys=True, indent=7, ensure_ascii=False).encode()
    assert other != data
    assert parse_registry(other).sha256 == wanted
    assert wanted == hashlib.sha256(rfc8785.dumps(json.loads(data))).hexdigest()


def test_canonical_forms_of_the_original(vectors):
    """The RFC 8785 vectors give the same text and hash."""
    for vector in vectors["rfc8785"]:
        value = json.loads(vector["json"])
        assert canonical(value, "x").decode() == vector["canonical"]
        assert canonical_sha256(value, "x") == vector["sha256"]


@pytest.mark.parametrize("value", [{"a": 2**53}, {"a": float("inf")}, {"a": "\ud800"}])
def test_what_has_no_canonical_form(value):
    """An integer beyond 2^53-1, an infinity and half a surrogate pair are refused by name."""
    with pytest.raises(DocumentError, match="the spec: has no canonical form"):
        canonical(value, "the spec")


def broken(change):
    tree = registry(
        sources={"prose": source(), "more": source(), "test": source(role="eval")},
        mixes={"m": mix(components=[["prose", 0.5], ["more", 0.5]], decontam_against=["test"])},
        tokenizers={"t": {"repo": "a/b", "revision": "0" * 40, "filename": "t", "sha256": "0" * 64, "license": "x"}},
    )
    change(tree)
    return json.dumps(tree).encode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(version=2), "version is 2; this version of r2d1 reads 1"),
        (lambda r: r.pop("sources"), "sources is missing"),
        (lambda r: r["sources"]["prose"].update(revision="main"), "sources.prose.revision is 'main', not 40"),
        (lambda r: r["sources"]["prose"].update(files=[]), "sources.prose.files is empty"),
        (lambda r: r["sources"]["prose"].update(files=[1]), r"sources.prose.files\[0\] is 1, not a text"),
        (lambda r: r["sources"]["prose"].pop("text_field"), "sources.prose.text_field is missing"),
        (lambda r: r["sources"]["prose"].update(filter={"column": "c", "allow": {"a": 1}}), "filter.allow.a is 1"),
        (
            lambda r: r["sources"]["prose"].update(filter={"column": "c", "allow": {"a": "x"}, "deny": ["a"]}),
            "both hold 'a'",
        ),
        (lambda r: r["sources"].update({"../up": source()}), "the id '../up' names a folder"),
        (
            lambda r: r["sources"].update({"a/b": source()}),
            "the id 'a/b' names a folder of the cache, and it holds a slash",
        ),
        (lambda r: r["mixes"]["m"].update(seq_len=None), "exactly one of the two"),
        (lambda r: r["mixes"]["m"].update(record={}), "exactly one of the two"),
        (lambda r: r["mixes"]["m"].update(seq_len=0), "mixes.m.seq_len is 0"),
        (lambda r: r["mixes"]["m"].update(components=[["prose", 0.5], ["more", 0.4]]), "sum to 0.9, not to 1"),
        (lambda r: r["mixes"]["m"].update(components=[["prose", 0.5], ["prose", 0.5]]), "hold 'prose' twice"),
        (
            lambda r: r["mixes"]["m"].update(components=[["prose", -1], ["more", 2]]),
            r"components\[0\] is \['prose', -1\]",
        ),
        (lambda r: r["mixes"]["m"].update(components=[["x", 1.0]]), "components names 'x', which is not under sources"),
        (lambda r: r["mixes"]["m"].update(decontam_against=["x"]), "decontam_against names 'x'"),
        (lambda r: r["mixes"]["m"].update(holdout="x"), "holdout names 'x'"),
        (lambda r: r["mixes"]["m"].update(holdout="prose"), "also a component"),
        (lambda r: r["mixes"]["m"].update(tokenizer="x"), "mixes.m.tokenizer is 'x', which is not under tokenizers"),
        (lambda r: r["mixes"]["m"].update(tokenizer=None), "mixes.m.tokenizer is None"),
        (lambda r: r["tokenizers"]["t"].update(sha256="x"), "tokenizers.t.sha256 is 'x'"),
        (lambda r: r["tokenizers"].update(bytes=r["tokenizers"]["t"]), "'bytes' is the built-in byte tokenizer"),
        (lambda r: r["build_records"].update(m={"merkle_root": 1}), "build_records.m.merkle_root is 1"),
        (lambda r: r["build_records"].update(n={"merkle_root": "0" * 64}), "build_records.n is the record of no mix"),
    ],
)
def test_each_malformed_field_is_named(change, said):
    """Every source, tokenizer and mix is checked, used or not, and the error names the field."""
    parse_registry(broken(len))
    with pytest.raises(DocumentError, match=said):
        parse_registry(broken(change))


def test_all_problems_at_once():
    """One error names every malformed field of a registry."""

    def change(tree):
        tree["sources"]["prose"]["repo"] = 1
        tree["mixes"]["m"]["holdout"] = "x"

    with pytest.raises(DocumentError) as caught:
        parse_registry(broken(change))
    assert len(caught.value.problems) == 2


def test_unknown_fields_are_kept_in_the_hash():
    """A field of tomorrow is allowed and changes the hash; it is named, as it may be a mistyped one."""
    plain = parse_registry(broken(len))
    more = parse_registry(broken(lambda tree: tree["sources"]["prose"].update(note="x")))
    assert more.sources == plain.sources
    assert (plain.unread, more.unread) == ((), ("sources.prose.note",))
    assert more.sha256 != plain.sha256


def test_build_records_may_be_absent():
    """A registry of one's own records no build; one that is malformed is a matter of configuration."""
    assert parse_registry(broken(lambda tree: tree.pop("build_records"))).merkle_roots == {}
    with pytest.raises(ConfigError, match="build_records is None"):
        parse_registry(broken(lambda tree: tree.update(build_records=None)))


def test_record_mixes_are_read_but_not_built():
    """A registry may hold record mixes; asking for one, or for an unknown one, is refused in clear words."""
    tree = broken(lambda tree: tree["mixes"].update(r=mix(seq_len=None, record={"fields": 3}, tokenizer=None)))
    found = parse_registry(tree)
    with pytest.raises(ConfigError, match="mix r is a record mix .* only text mixes can be built"):
        found.text_mix("r")
    with pytest.raises(ConfigError, match="no mix 'nope'; it has m, r"):
        found.text_mix("nope")


def test_a_registry_that_is_not_there(tmp_path):
    """A missing file is named."""
    with pytest.raises(ConfigError, match=r"nowhere.json cannot be read: No such file"):
        load_registry(tmp_path / "nowhere.json")
