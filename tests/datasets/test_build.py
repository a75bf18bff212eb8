"""Building a text mix: byte for byte, refusing what cannot be used, placing the result last."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import anyio
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from r2d1.datasets import (
    BuildOptions,
    DocumentError,
    build,
    build_mix,
    build_mix_async,
    parse_registry,
    verify_shard_set,
)
from r2d1.datasets.stages import order_key
from r2d1.datasets.workers import Workers
from r2d1.errors import ConfigError, FormatError, IntegrityError, LockHeld
from tests.datasets import naive
from tests.datasets.making import GOLDEN, files_of, mix, registry, sha, source, write_parquet, write_registry

GOLDEN_OPTIONS = BuildOptions(unit=4, samples_per_shard=16)


def build_golden(name, out, cache="cache", registry_file=GOLDEN / "registry.json", **options):
    settings = BuildOptions(**{"unit": 4, "samples_per_shard": 16, **options})
    return build_mix(f"golden-a-{name}", out=out, cache=GOLDEN / cache, registry=registry_file, options=settings)


def plain(tmp_path, texts, *, changes=None, options=None, **parts):
    """Build the mix ``m`` of one source with these texts."""
    write_parquet(tmp_path / "cache" / "prose" / "a.parquet", {"text": pa.array(texts, pa.string())})
    path = write_registry(tmp_path / "registry.json", mixes={"m": mix(**(changes or {}))}, **parts)
    settings = options or BuildOptions(unit=1, workers=1)
    return build_mix("m", out=tmp_path / "out", cache=tmp_path / "cache", registry=path, options=settings)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("cache", ["cache", "cache-shuffled"])
@pytest.mark.parametrize("name", ["bytes", "bpe"])
def test_golden_sets_byte_for_byte(tmp_path, name, cache, workers):
    """Both mixes come out of both layouts as the original's files, with its counts on the way."""
    report = build_golden(name, tmp_path / "out", cache, workers=workers)
    assert files_of(tmp_path / "out") == files_of(GOLDEN / "expected" / name)
    facts = json.loads((GOLDEN / "expected" / f"{name}.facts.json").read_bytes())
    assert [asdict(one) for one in report.sources] == facts["sources"]
    for fact in ("reference_texts", "reference_shingles", "ids_left_over"):
        assert getattr(report, fact) == facts[fact]
    assert report.record.fragment.source.registry_sha256 == facts["registry_sha256"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    assert report.unicode_version
    assert report.tokenizers_version


@pytest.mark.parametrize(("size", "processes"), [(2**20, 1), (17 * 2**20, 3)])
def test_a_process_is_started_for_work_that_is_worth_it(tmp_path, monkeypatch, size, processes):
    """A stage has a process for each 8 MiB or part of them, as one that starts costs as much as reading them."""
    counts = []

    class Counted(Workers):
        def __init__(self, count, *, threads):
            counts.append(count)
            super().__init__(1)

    monkeypatch.setattr(build, "Workers", Counted)
    for number in range(4):
        write_parquet(tmp_path / "cache" / "prose" / f"{number}.parquet", {"text": [chr(97 + number) * (size // 4)]})
    path = write_registry(tmp_path / "registry.json", mixes={"m": mix(seq_len=1023)})
    options = BuildOptions(unit=1, samples_per_shard=2**12, workers=4)
    build_mix("m", out=tmp_path / "out", cache=tmp_path / "cache", registry=path, options=options)
    references, scan, tokenize, _ = counts
    assert (references, scan, tokenize) == (1, processes, processes)


def test_a_registry_in_another_order_gives_the_same_bytes(tmp_path):
    """Key order and white space of the registry change nothing."""
    tree = json.loads((GOLDEN / "registry.json").read_bytes())
    (tmp_path / "r.json").write_text(json.dumps(tree, sort_keys=True, indent=3))
    build_golden("bpe", tmp_path / "out", registry_file=tmp_path / "r.json")
    assert files_of(tmp_path / "out") == files_of(GOLDEN / "expected" / "bpe")


def test_order_keys_of_the_original(vectors):
    """The order keys are those of the vectors; their parts are not escaped."""
    for vector in vectors["order_keys"]:
        assert order_key(vector["mix"], vector["source"], vector["text"].encode()).hex() == vector["key"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [None, 1, 7])
def test_random_mixes_equal_the_plain_builder(tmp_path, seed, limit):
    """Any mix, with references, equal texts and limits, has the bytes that a plain reading of the format gives."""
    chance = random.Random(seed)
    vocabulary = ["aa", "bb", "CC", "dé", "e_e", "9", "ﬁ"]
    some = [" ".join(chance.choices(vocabulary, k=chance.randrange(40))) for _ in range(30)]
    names, ratios = ["one", "two", "three"], ([0.5, 0.3, 0.2], [0.1, 0.1, 0.8])[seed % 2]
    texts = {
        name: chance.choices(some, k=40) + [f"{name} {n} " * chance.randrange(9) for n in range(20)] for name in names
    }
    references = chance.sample(some, 3)
    for name in names:
        for number in range(3):
            part = texts[name][number::3]
            write_parquet(tmp_path / "cache" / name / f"{number}.parquet", {"text": part}, row_group_size=7)
    write_parquet(tmp_path / "cache" / "test" / "a.parquet", {"question": references})
    path = write_registry(
        tmp_path / "registry.json",
        sources={name: source() for name in (*names, "test")},
        mixes={
            "m": mix(components=list(map(list, zip(names, ratios, strict=True))), decontam_against=["test"], seq_len=6)
        },
    )
    wanted = naive.build(
        "m",
        [(name, ratio, texts[name]) for name, ratio in zip(names, ratios, strict=True)],
        references,
        seq_len=6,
        unit=3,
        per_shard=120,
        limit=limit,
    )
    options = BuildOptions(unit=3, samples_per_shard=120, limit_docs=limit, workers=1)
    if not wanted[0]:
        with pytest.raises(FormatError, match="fewer than one unit"):
            build_mix("m", out=tmp_path / "out", cache=tmp_path / "cache", registry=path, options=options)
        return
    report = build_mix("m", out=tmp_path / "out", cache=tmp_path / "cache", registry=path, options=options)
    shards = [data for name, data in sorted(files_of(tmp_path / "out").items()) if name.startswith("shard-")]
    assert (shards, list(report.record.removed_ids), report.manifest.extra["dropped_tail_samples"]) == wanted
    assert verify_shard_set(tmp_path / "out").ok


def test_one_document_may_be_larger_than_a_shard(tmp_path):
    """A document runs on through shards, and the rows of a set are its ids without a gap."""
    text = "".join(chr(65 + n % 26) for n in range(10_000))
    plain(tmp_path, [text], options=BuildOptions(unit=1, samples_per_shard=16, workers=1))
    shards = [data for name, data in sorted(files_of(tmp_path / "out").items()) if name.startswith("shard-")]
    ids = [byte + 3 for byte in text.encode()] + [260]
    assert b"".join(shards) == b"".join(one.to_bytes(2, "little") for one in ids[: len(ids) // 9 * 9])
    assert len(shards) == -(-(len(ids) // 9) // 16)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"text": ["a", None]}, "source prose, file 'prose/b.parquet', row 1: 'text' is null, missing or not a string"),
        ({"text": [1]}, "row 0: 'text' is null, missing or not a string"),
        ({"other": ["a"], "more": [1]}, "row 0: 'text' is null, .*; the file's columns are 'other', 'more'$"),
        ({"text": pa.array([b"a", b"\xff"]).view(pa.string())}, "row 1: a text is not UTF-8"),
    ],
)
def test_rows_without_a_text_are_named(tmp_path, rows, said):
    """Null, another type, a missing column and bytes that are no text are errors with source, file and row."""
    write_parquet(tmp_path / "cache" / "prose" / "b.parquet", rows)
    with pytest.raises(FormatError, match=said):
        plain(tmp_path, ["plenty of text to fill a row with"] * 9)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"text": ["a"], "kind": ["odd"]}, "row 0: 'kind' is 'odd', which the filter neither allows nor denies"),
        ({"text": ["a"], "kind": pa.array([None], pa.string())}, "row 0: 'kind' is None"),
        ({"text": ["a"], "kind": [7]}, "row 0: 'kind' is 7"),
        ({"text": ["a"]}, "row 0: 'kind' is None"),
        ({"text": ["a"], "kind": pa.array([b"\xff"]).view(pa.string())}, "column 'kind' holds text that is not UTF-8"),
        ({"text": pa.array([None], pa.string()), "kind": ["yes"]}, "row 0: 'text' is null"),
    ],
)
def test_values_that_a_filter_does_not_know(tmp_path, rows, said):
    """A value that is neither allowed nor denied is an error that names it; so is an allowed row without a text."""
    rule = {"column": "kind", "allow": {"yes": "CC0-1.0"}, "deny": ["no"]}
    write_parquet(tmp_path / "cache" / "prose" / "b.parquet", rows)
    write_parquet(tmp_path / "cache" / "prose" / "a.parquet", {"text": ["x" * 99], "kind": ["yes"]})
    path = write_registry(tmp_path / "registry.json", sources={"prose": source(filter=rule)})
    with pytest.raises(FormatError, match=said):
        build_mix("m", out=tmp_path / "out", cache=tmp_path / "cache", registry=path, options=BuildOptions(unit=1))


def test_denied_rows_are_gone_before_their_text_is_looked_at(tmp_path):
    """A denied row may have no text, in a file without the column too, and is not among the removed."""
    rule = {"column": "kind", "allow": {"yes": "CC0-1.0"}, "deny": ["no"]}
    write_parquet(tmp_path / "cache" / "prose" / "a.parquet", {"text": ["x" * 99, None], "kind": ["yes", "no"]})
    write_parquet(tmp_path / "cache" / "prose" / "b.parquet", {"kind": ["no", "no"]})
    path = write_registry(tmp_path / "registry.json", sources={"prose": source(filter=rule)})
    report = build_mix("m", out=tmp_path / "out", cache=tmp_path / "cache", registry=path, options=BuildOptions(unit=1))
    (one,) = report.sources
    assert (one.rows_read, one.rows_denied, one.documents_left) == (4, 3, 1)
    assert report.record.removed_ids == ()


def test_sources_must_be_there(tmp_path):
    """A component or a reference without files is an error that says what to fetch; an unread holdout needs none."""
    sources = {"prose": source(), "test": source(files=["t/*.parquet"], repo="example/test")}
    with pytest.raises(
        ConfigError, match=r"source test has no parquet file below .*test; fetch t/\*.parquet of example/test"
    ):
        plain(tmp_path, ["x" * 99], changes={"decontam_against": ["test"]}, sources=sources)
    assert plain(tmp_path, ["x" * 99], changes={"holdout": "test"}, sources=sources).manifest.n_samples == 11


def test_too_few_rows_are_an_error(tmp_path):
    """Fewer rows than one unit, also because everything was dropped, is an error that puts nothing into place."""
    with pytest.raises(FormatError, match="gives 1 rows of 9 ids, fewer than one unit of 512"):
        plain(tmp_path, ["x" * 10], options=BuildOptions(workers=1))
    write_parquet(tmp_path / "cache" / "test" / "a.parquet", {"q": ["w " * 13]})
    with pytest.raises(FormatError, match="gives 0 rows"):
        plain(
            tmp_path, ["w " * 20], changes={"decontam_against": ["test"]}, sources={"prose": source(), "test": source()}
        )
    assert not (tmp_path / "out").exists()


def test_a_source_without_documents_leaves_no_rows(tmp_path):
    """A component whose files have no row gives nothing, and then no other may give anything either."""
    write_parquet(tmp_path / "cache" / "none" / "a.parquet", {"text": pa.array([], pa.string())})
    sources = {"prose": source(), "none": source()}
    with pytest.raises(FormatError, match="gives 0 rows"):
        plain(tmp_path, ["x" * 99], changes={"components": [["prose", 0.5], ["none", 0.5]]}, sources=sources)


def test_a_recorded_root_must_be_met(tmp_path):
    """A registry that records the root of a mix refuses another one and puts nothing into place."""
    tree = json.loads((GOLDEN / "registry.json").read_bytes())
    right = json.loads((GOLDEN / "expected" / "bpe" / "manifest.json").read_bytes())["merkle_root"]
    tree["build_records"] = {"golden-a-bpe": {"merkle_root": right}}
    (tmp_path / "r.json").write_text(json.dumps(tree))
    assert build_golden("bpe", tmp_path / "out", registry_file=tmp_path / "r.json").manifest.merkle_root == right
    with pytest.raises(IntegrityError, match=f"the registry records {right}; nothing was put into place"):
        build_golden("bpe", tmp_path / "other", registry_file=tmp_path / "r.json", limit_docs=50)
    assert not (tmp_path / "other").exists()


def test_an_id_above_65535_names_its_row(tmp_path):
    """A document with an id that does not fit is named by source, file and row."""
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "stop": 1, "over": 65533}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "cache").mkdir()
    tokenizer.save(str(tmp_path / "cache" / "tokenizer.json"))
    pin = {
        "repo": "a/b",
        "revision": "0" * 40,
        "filename": "tokenizer.json",
        "sha256": sha((tmp_path / "cache" / "tokenizer.json").read_bytes()),
        "license": "x",
        "end_token": "stop",
    }
    with pytest.raises(FormatError, match=r"file 'prose/a.parquet', row 2: token id 65536 \(after the shift by 3\)"):
        plain(tmp_path, ["a", "a a", "a over", "over"], changes={"tokenizer": "t"}, tokenizers={"t": pin})


def test_a_smaller_set_takes_the_place_of_a_larger_one(tmp_path):
    """Shards that the new set does not have are removed, other files stay, and the result verifies."""
    texts = [f"text number {n} of many" for n in range(50)]
    plain(tmp_path, texts, options=BuildOptions(unit=1, samples_per_shard=4, workers=1))
    before = len(files_of(tmp_path / "out"))
    (tmp_path / "out" / "holdout.parquet").write_bytes(b"mine")
    (tmp_path / "out" / "labels").mkdir()
    plain(tmp_path, texts[:20], options=BuildOptions(unit=1, samples_per_shard=4, workers=1))
    assert len(list((tmp_path / "out").iterdir())) < before
    assert (tmp_path / "out" / "holdout.parquet").read_bytes() == b"mine"
    report = verify_shard_set(tmp_path / "out")
    assert report.ok, report.lines()
    assert report.unlisted == ("holdout.parquet", "labels")


def test_a_failed_build_leaves_the_old_set_alone(tmp_path):
    """An error anywhere before the end leaves what is in place as it was."""
    plain(tmp_path, ["x" * 99])
    before = files_of(tmp_path / "out")
    with pytest.raises(FormatError):
        plain(tmp_path, ["x" * 99, None])
    assert files_of(tmp_path / "out") == before


def test_two_builds_of_one_output(tmp_path):
    """A second build of the same output is refused while the first one runs."""
    (tmp_path / "out.building").mkdir()
    with (tmp_path / "out.building" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockHeld, match="another build is working in"):
            plain(tmp_path, ["x" * 99])
    assert plain(tmp_path, ["x" * 99]).manifest.n_samples == 11


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (BuildOptions(limit_docs=0), "limit_docs is 0"),
        (BuildOptions(memory=2**20), "memory is 1048576 bytes; a build needs 512 MiB or more"),
        (BuildOptions(workers=0), "workers is 0"),
        (BuildOptions(unit=3, samples_per_shard=4), "4, not a multiple of the unit 3"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, said):
    """Options are checked before anything is read or written."""
    with pytest.raises(ConfigError, match=said):
        plain(tmp_path, ["x" * 99], options=options)
    assert not (tmp_path / "out.building").exists()


def test_record_mixes_are_refused(tmp_path):
    """A record mix, and a mix that does not exist, are refused in clear words."""
    found = parse_registry(json.dumps(registry(mixes={"r": mix(seq_len=None, record={"x": 1})})).encode())
    with pytest.raises(ConfigError, match="mix r is a record mix"):
        build_mix("r", out=tmp_path / "out", cache=tmp_path, registry=found)
    with pytest.raises(ConfigError, match="no mix 'od-b-v1'; it has od-a-proxy-v1, od-a-v1"):
        build_mix("od-b-v1", out=tmp_path / "out", cache=tmp_path)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(DocumentError, match="bad.json: version is missing"):
        build_mix("m", out=tmp_path / "out", cache=tmp_path, registry=tmp_path / "bad.json")


def test_odd_names_of_folders_do_not_matter(tmp_path):
    """An output and a cache whose paths hold quotes, brackets and stars are used as they are."""
    odd = tmp_path / "it's [v1] *?"
    shutil.copytree(GOLDEN / "cache", odd / "cache")
    build_mix(
        "golden-a-bpe",
        out=odd / "o'ut*",
        cache=odd / "cache",
        registry=GOLDEN / "registry.json",
        options=GOLDEN_OPTIONS,
    )
    assert files_of(odd / "o'ut*") == files_of(GOLDEN / "expected" / "bpe")


def test_progress_is_told_stage_by_stage(tmp_path):
    """Every stage tells its progress, from nothing to all of it, in the order of the work."""
    steps = []
    build_mix(
        "golden-a-bpe",
        out=tmp_path / "out",
        cache=GOLDEN / "cache",
        registry=GOLDEN / "registry.json",
        options=GOLDEN_OPTIONS,
        on_progress=steps.append,
    )
    stages = list(dict.fromkeys(step.stage for step in steps))
    assert stages == ["references", "scan", "tokenize", "order", "shards"]
    for stage in stages:
        done = [step.done for step in steps if step.stage == stage]
        assert done == sorted(done)
        assert (done[0], done[-1]) == (0, steps[[s.stage for s in steps].index(stage)].total)


async def test_the_async_form_builds_and_stops_alike(tmp_path):
    """The coroutine gives the same set; cancelled, it stops at its next step and what is finished is kept."""
    scope = anyio.CancelScope()
    seen = []

    def cancel(progress):
        seen.append(progress.stage)
        if progress.stage == "tokenize":
            anyio.from_thread.run_sync(scope.cancel)

    told = {"cache": GOLDEN / "cache", "registry": GOLDEN / "registry.json", "options": GOLDEN_OPTIONS}
    with scope:
        await build_mix_async("golden-a-bpe", out=tmp_path / "out", on_progress=cancel, **told)
    assert scope.cancelled_caught
    assert seen.count("tokenize") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.building"]
    await build_mix_async("golden-a-bpe", out=tmp_path / "out", **told)
    assert files_of(tmp_path / "out") == files_of(GOLDEN / "expected" / "bpe")


def test_what_the_disk_refuses_is_told(tmp_path):
    """A disk that takes no more is an error that names the file and says that the build can go on."""
    code = f"""
import resource
from r2d1.datasets import BuildOptions, build_mix
from r2d1.errors import R2D1Error
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    build_mix("golden-a-bytes", out={str(tmp_path / "out")!r}, cache={str(GOLDEN / "cache")!r},
              registry={str(GOLDEN / "registry.json")!r}, options=BuildOptions(unit=4))
except R2D1Error as exc:
    print(exc)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert f"the build beside {tmp_path / 'out'} was stopped by the disk: " in said
    assert "File too large; started again it goes on" in said
    report = build_golden("bytes", tmp_path / "out")
    assert files_of(tmp_path / "out") == files_of(GOLDEN / "expected" / "bytes")
    assert report.directory == str(tmp_path / "out")
