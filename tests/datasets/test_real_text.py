"""Real text, a real tokenizer: the same bytes in any order and on any number of cores."""

from __future__ import annotations

import ast
import gzip
import json
import os
import random
import shutil
import sysconfig
import threading
from pathlib import Path

import pytest

from r2d1.datasets import BuildOptions, ShardSet, build, build_mix, verify_shard_set
from r2d1.datasets.mixes import TokenizerEntry
from r2d1.datasets.tokens import FileTokenizer
from tests.datasets.making import files_of, mix, sha, source, write_parquet, write_registry

PACKAGES = Path(sysconfig.get_path("purelib"))
#: What [SEP] is in the vocabulary of the model's tokenizer: the end of a piece of text, for a WordPiece file.
SEP = 102


def texts_of_packages(size):
    """Documentation and licences of the installed packages, paragraph by paragraph, up to ``size`` bytes."""
    found, total = [], 0
    for text in _documents():
        for part in text.split("\n\n"):
            found.append(part)
            total += len(part.encode())
        if total >= size:
            return found
    raise AssertionError(f"the installed packages have {total} bytes of documentation only")


def _documents():
    paths = sorted(path for path in PACKAGES.rglob("*") if path.is_file())
    for path in paths:
        if path.suffix in (".md", ".rst", ".txt") or path.name in ("METADATA", "LICENSE", "NOTICE"):
            yield path.read_text(errors="replace")
    for path in paths:
        if path.name.startswith("service-2.json"):
            data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            yield from _descriptions(json.loads(data))
    for path in paths:
        if path.suffix == ".py":
            yield "\n\n".join(_docstrings(path))


def _descriptions(value):
    if isinstance(value, dict):
        own = value.get("documentation")
        yield from [own] if isinstance(own, str) else []
        for item in value.values():
            yield from _descriptions(item)
    elif isinstance(value, list):
        for item in value:
            yield from _descriptions(item)


def _docstrings(path):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def write_cache(cache, texts, model_dir, *, files, shuffle):
    """A source of these texts in ``files`` files, and one of references; ``shuffle`` puts them in another order."""
    order = list(range(len(texts)))
    if shuffle:
        random.Random(7).shuffle(order)
    for number in range(files):
        part = [texts[at] for at in order[number::files]]
        path = cache / "docs" / f"{'z' if shuffle else 'a'}{number}.parquet"
        write_parquet(path, {"text": part}, row_group_size=100 + 900 * shuffle)
    long = [text for text in texts if len(text.split()) > 40]
    write_parquet(cache / "test" / "a.parquet", {"text": long[:: len(long) // 20]})
    shutil.copy(model_dir / "tokenizer.json", cache)
    pin = {
        "repo": "sentence-transformers/all-MiniLM-L6-v2",
        "revision": "0" * 40,
        "filename": "tokenizer.json",
        "sha256": sha((model_dir / "tokenizer.json").read_bytes()),
        "license": "Apache-2.0",
        "end_token": "[SEP]",
    }
    common = {"components": [["docs", 1.0]], "decontam_against": ["test"], "seq_len": 255}
    return write_registry(
        cache / "registry.json",
        sources={"docs": source(), "test": source(role="eval")},
        mixes={"real": mix(**common, tokenizer="mini"), "raw": mix(**common)},
        tokenizers={"mini": pin},
    )


def build_twice(tmp_path, texts, model_dir, mix_id):
    """Build a mix in one process and in two, from two orders of the rows; returns the one set that both are."""
    reports = []
    for number, workers in enumerate((1, 2)):
        cache = tmp_path / f"cache{number}"
        path = write_cache(cache, texts, model_dir, files=(5, 3)[number], shuffle=bool(number))
        options = BuildOptions(unit=16, workers=workers)
        reports.append(build_mix(mix_id, out=tmp_path / f"out{number}", cache=cache, registry=path, options=options))
    assert files_of(tmp_path / "out0") == files_of(tmp_path / "out1")
    assert reports[0].sources == reports[1].sources
    assert reports[0].sources[0].rows_removed > 0
    report = verify_shard_set(tmp_path / "out1")
    assert report.ok, report.lines()
    return ShardSet(tmp_path / "out0")


def pin_of(path):
    return TokenizerEntry("mini", "a/b", "0" * 40, path.name, sha(path.read_bytes()), "Apache-2.0", "[SEP]")


def test_a_long_document_stays_whole(tmp_path, real_model_dir):
    """The tokenizer's file cuts and pads at 128 tokens; a document of 10,000 tokens is built whole all the same."""
    path = real_model_dir / "tokenizer.json"
    told = json.loads(path.read_bytes())
    assert told["truncation"]["max_length"] == 128
    assert told["padding"] is not None
    text = " ".join(["Whole", "documents", "are", "kept", "."] * 2000)
    (ids,) = FileTokenizer(path, pin_of(path)).encode([text.encode()])
    assert len(ids) == 10_001
    assert ids[-1] == SEP + 3
    vocabulary = told["model"]["vocab"]
    once = [vocabulary[word] + 3 for word in ("whole", "documents", "are", "kept", ".")]
    assert ids[:-1].tolist() == once * 2000
    cache = tmp_path / "cache"
    write_parquet(cache / "docs" / "a.parquet", {"text": [text]})
    shutil.copy(path, cache)
    pin = {"repo": "a/b", "revision": "0" * 40, "filename": path.name, "sha256": sha(path.read_bytes()), "license": "x"}
    registry = write_registry(
        cache / "registry.json",
        sources={"docs": source()},
        mixes={"m": mix(components=[["docs", 1.0]], seq_len=72, tokenizer="mini")},
        tokenizers={"mini": {**pin, "end_token": "[SEP]"}},
    )
    build_mix("m", out=tmp_path / "out", cache=cache, registry=registry, options=BuildOptions(unit=1))
    rows = ShardSet(tmp_path / "out")
    assert [one for row in rows for one in row.tolist()] == [*once * 2000, SEP + 3]


@pytest.mark.parametrize("mix_id", ["real", "raw"])
def test_the_same_bytes_in_any_order_on_any_number_of_cores(tmp_path, real_model_dir, mix_id, monkeypatch):
    """Some real text, tokenized by the real tokenizer and as bytes, gives one set however it is read."""
    monkeypatch.setattr(build, "_WORTH_A_WORKER", 2**20)  # so that so little is done by two processes
    texts = texts_of_packages(2_000_000)
    rows = build_twice(tmp_path, texts, real_model_dir, mix_id)
    ends = sum(int((row == (SEP + 3 if mix_id == "real" else 260)).sum()) for row in rows)
    assert ends > 1000
    if mix_id == "real":
        assert max(int(row.max()) for row in rows) < 30522 + 3


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mix_id", ["real", "raw"])
def test_tens_of_megabytes(tmp_path, real_model_dir, mix_id):
    """Thirty megabytes of documentation, the same way."""
    build_twice(tmp_path, texts_of_packages(30_000_000), real_model_dir, mix_id)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_memory_stays_within_its_setting(tmp_path, real_model_dir):
    """A build of more than its memory setting keeps all its processes together below it."""
    texts = texts_of_packages(30_000_000)
    cache = tmp_path / "cache"
    path = write_cache(cache, texts, real_model_dir, files=3, shuffle=False)
    for copy in range(11):
        part = [f"{text} {copy}" for text in texts]
        write_parquet(cache / "docs" / f"copy{copy}.parquet", {"text": part}, row_group_size=1000)
    peaks = []
    memory = 512 * 2**20
    done = threading.Event()

    def watch():
        while not done.wait(0.05):
            peaks.append(anonymous_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        options = BuildOptions(workers=2, memory=memory)
        build_mix("raw", out=tmp_path / "out", cache=cache, registry=path, options=options)
    finally:
        done.set()
        watcher.join()
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) > memory
    assert max(peaks) < memory
    assert verify_shard_set(tmp_path / "out").ok


def anonymous_memory():
    """Bytes of private memory of this process and its children (files that are mapped can be dropped at any time)."""
    total = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = (path / "stat").read_text().rsplit(")", 1)[1].split()[1]
            if str(os.getpid()) in (path.name, parent):
                lines = (path / "status").read_text().splitlines()
                total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
        except OSError:
            continue  # it ended meanwhile
    return total
