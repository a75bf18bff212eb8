"""What a build does to one slice of its input, in a worker process: read references, scan, tokenize.

A task leaves files in the build's workspace, the one that marks it as done last; a task whose mark is
there is never done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from r2d1.datasets.decontaminate import ReferenceTable, Shingles, shingles_of, strong_hash
from r2d1.datasets.fields import shown
from r2d1.datasets.mixes import RowFilter, Source, TokenizerEntry
from r2d1.datasets.parquet import (
    Slice,
    column_names,
    read_batches,
    read_columns,
    string_columns,
    texts_of,
    values_of,
    write_columns,
)
from r2d1.datasets.shards import write_whole
from r2d1.datasets.tokens import DocumentTokenizer, open_tokenizer
from r2d1.datasets.workspace import KEY_COLUMNS, Space
from r2d1.errors import FormatError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

#: Ids that a tokenizing task holds before it writes them as one run sorted by key.
_RUN_IDS = 16 * 2**20
#: Shingles of references that a task holds before it writes them.
_RUN_SHINGLES = 2 * 2**20
_SHUFFLE = "od-shuffle-v1"


@dataclass(frozen=True, slots=True)
class SourceTask:
    """One slice of one source. ``source_number`` is its place among the mix's components."""

    space: Space
    cache: Path
    mix_id: str
    source: Source
    source_number: int
    part: Slice
    number: int
    tokenizer: TokenizerEntry | None = None
    cutoff: bytes | None = None


@dataclass(frozen=True, slots=True)
class ScanCounts:
    """What became of a slice's rows. ``removed`` are the order keys of those that decontamination dropped."""

    rows: int
    denied: int
    removed: tuple[str, ...]


def order_key(mix_id: str, source_id: str, text: bytes) -> bytes:
    """The 32 bytes that place a document: SHA-256 of ``od-shuffle-v1|<mix>|<source>|<text>``."""
    return hashlib.sha256(f"{_SHUFFLE}|{mix_id}|{source_id}|".encode() + text).digest()


# References


def read_references(task: SourceTask) -> int:
    """Write the shingles of a slice of a reference source; returns how many reference texts it had."""
    mark = task.space.references(task.number)
    if mark.exists():
        return int(json.loads(mark.read_bytes()))
    texts, part = 0, 0
    held: list[tuple[NDArray[Any], bytes]] = []
    for first_row, batch in read_batches(task.cache, task.part, None):
        rows = [b" ".join(v for v in row if v is not None) for row in zip(*string_columns(batch), strict=True)]
        for at, text in enumerate(rows):
            _decoded(text, task, first_row + at)
        texts += batch.num_rows
        held += ((block.hashes, _strong_hashes(block)) for block in shingles_of(rows))
        if sum(len(hashes) for hashes, _ in held) > _RUN_SHINGLES:
            _write_shingles(mark.with_name(f"{task.number:06d}-{part}.parquet"), held)
            held, part = [], part + 1
    _write_shingles(mark.with_name(f"{task.number:06d}-{part}.parquet"), held)
    write_whole(mark, json.dumps(texts).encode())
    return texts


def _strong_hashes(block: Shingles) -> bytes:
    return b"".join(strong_hash(block.words(at)) for at in range(len(block.hashes)))


def _write_shingles(path: Path, held: Sequence[tuple[NDArray[Any], bytes]]) -> None:
    strong = np.frombuffer(b"".join(digests for _, digests in held), dtype=">u8").reshape(-1, 2).astype(np.uint64)
    fast = np.concatenate([np.empty(0, dtype=np.uint64), *(hashes for hashes, _ in held)])
    write_columns(path, {"fast": fast, "high": strong[:, 0], "low": strong[:, 1]})


# Scanning: filter, decontaminate, order keys


def scan(task: SourceTask) -> ScanCounts:
    """Decide which rows of a slice are documents, and write their keys."""
    mark = task.space.scanned(task.source_number, task.number)
    if mark.exists():
        rows, denied, removed = json.loads(mark.read_bytes())
        return ScanCounts(rows, denied, tuple(removed))
    table = ReferenceTable(task.space.table())
    kept_rows: list[int] = []
    kept_keys: list[bytes] = []
    dropped: list[str] = []
    allowed = 0
    for first_row, batch in read_batches(task.cache, task.part, _columns(task.source)):
        rows, texts = _documents(task, first_row, batch)
        allowed += len(rows)
        keys = [order_key(task.mix_id, task.source.id, text) for text in texts]
        for row, key, met in zip(rows, keys, table.meets(texts), strict=True):
            if met:
                dropped.append(key.hex())
            else:
                kept_rows.append(row)
                kept_keys.append(key)
    columns = {**_key_columns(kept_keys), "row": np.array(kept_rows, dtype=np.uint64)}
    write_columns(mark.with_suffix(".parquet"), columns)
    counts = ScanCounts(task.part.rows, task.part.rows - allowed, tuple(dropped))
    write_whole(mark, json.dumps([counts.rows, counts.denied, counts.removed]).encode())
    return counts


def _columns(source: Source) -> list[str]:
    return [source.text_field] + ([source.filter.column] if source.filter else [])


def _documents(task: SourceTask, first_row: int, batch: pa.RecordBatch) -> tuple[list[int], list[bytes]]:
    """The rows of a batch that the filter lets pass, and their texts; every error names source, file and row."""
    rows: list[int] = []
    texts: list[bytes] = []
    rule = task.source.filter
    values = None if rule is None else values_of(batch, rule.column, task.part.file.name)
    for at, text in enumerate(texts_of(batch, task.source.text_field)):
        row = first_row + at
        if rule is not None and values is not None and not _passes(rule, values[at], task, row):
            continue
        if text is None:
            raise FormatError(_no_text(task, row, batch))
        rows.append(row)
        texts.append(_decoded(text, task, row))
    return rows, texts


def _no_text(task: SourceTask, row: int, batch: pa.RecordBatch) -> str:
    name = task.source.text_field
    text = f"{_place(task, row)}: {shown(name)} is null, missing or not a string"
    if name in batch.schema.names:
        return text
    return f"{text}; the file's columns are {', '.join(map(shown, column_names(task.cache, task.part.file)))}"


def _passes(rule: RowFilter, value: object, task: SourceTask, row: int) -> bool:
    if isinstance(value, str):
        if value in rule.allow:
            return True
        if value in rule.deny:
            return False
    raise FormatError(
        f"{_place(task, row)}: {shown(rule.column)} is {shown(value)}, which the filter neither allows nor denies"
    )


def _decoded(text: bytes, task: SourceTask, row: int) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as exc:
        raise FormatError(f"{_place(task, row)}: a text is not UTF-8 ({exc.reason})") from exc
    return text


def _place(task: SourceTask, row: int) -> str:
    return f"source {task.source.id}, file {shown(task.part.file.name)}, row {row}"


def _key_columns(keys: Sequence[bytes]) -> dict[str, NDArray[np.uint64]]:
    table = np.frombuffer(b"".join(keys), dtype=">u8").reshape(-1, 4).astype(np.uint64)
    return {name: table[:, at] for at, name in enumerate(KEY_COLUMNS)}


# Tokenizing


def tokenize(task: SourceTask) -> int:
    """Write the ids of a slice's documents, in runs sorted by key, and their index; returns how many documents.

    With a ``cutoff`` only the documents whose key is not above it.
    """
    mark = task.space.tokens(task.number)
    if mark.exists():
        return sum(len(block["n"]) for block in read_columns(mark))
    keys = _wanted(task)
    tokenizer = open_tokenizer(task.cache, task.tokenizer)
    index: list[tuple[bytes, int, int]] = []
    at = 0
    with mark.with_suffix(f".{os.getpid()}.tmp").open("wb") as file:
        for run in _runs(task, keys, tokenizer):
            run.sort(key=lambda document: document[0])
            for key, ids in run:
                file.write(ids.tobytes())
                index.append((key, at, len(ids)))
                at += len(ids)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, mark.with_suffix(".u16"))
    _write_index(task, mark, index)
    return len(index)


def _wanted(task: SourceTask) -> dict[int, bytes]:
    """The keys of the documents to be tokenized, by row."""
    wanted: dict[int, bytes] = {}
    for block in read_columns(task.space.scanned(task.source_number, task.number).with_suffix(".parquet")):
        table = np.stack([block[name] for name in KEY_COLUMNS], axis=1).astype(">u8").tobytes()
        for at, row in enumerate(block["row"].tolist()):
            key = table[32 * at : 32 * at + 32]
            if task.cutoff is None or key <= task.cutoff:
                wanted[row] = key
    return wanted


def _runs(
    task: SourceTask, keys: dict[int, bytes], tokenizer: DocumentTokenizer
) -> Iterator[list[tuple[bytes, NDArray[np.uint16]]]]:
    run: list[tuple[bytes, NDArray[np.uint16]]] = []
    held = 0
    for first_row, batch in read_batches(task.cache, task.part, [task.source.text_field]):
        texts = texts_of(batch, task.source.text_field)
        found = [(first_row + at, text) for at, text in enumerate(texts) if first_row + at in keys and text is not None]
        encoded = _encode(task, tokenizer, found)
        run += [(keys[row], ids) for (row, _), ids in zip(found, encoded, strict=True)]
        held += sum(map(len, encoded))
        if held >= _RUN_IDS:
            yield run
            run, held = [], 0
    yield run


def _encode(
    task: SourceTask, tokenizer: DocumentTokenizer, found: Sequence[tuple[int, bytes]]
) -> list[NDArray[np.uint16]]:
    try:
        return tokenizer.encode([text for _, text in found])
    except OverflowError:
        for row, text in found:  # the batch does not tell whose id it was
            try:
                tokenizer.encode([text])
            except OverflowError as exc:
                raise FormatError(f"{_place(task, row)}: {exc}") from exc
        raise


def _write_index(task: SourceTask, path: Path, index: Sequence[tuple[bytes, int, int]]) -> None:
    columns: dict[str, NDArray[Any]] = dict(_key_columns([key for key, _, _ in index]))
    columns["source"] = np.full(len(index), task.source_number, dtype=np.uint16)
    columns["chunk"] = np.full(len(index), task.number, dtype=np.uint32)
    columns["start"] = np.array([start for _, start, _ in index], dtype=np.uint64)
    columns["n"] = np.array([count for _, _, count in index], dtype=np.uint64)
    write_columns(path, columns)
