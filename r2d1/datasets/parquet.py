"""Parquet files: what a cache holds, cut into slices of row groups, read in small batches.

Nothing here knows of mixes. Errors name the file, and the row where there is one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from r2d1.datasets.fields import shown
from r2d1.datasets.shards import write_whole
from r2d1.errors import FormatError

SUFFIX = ".parquet"
#: About how many bytes of text one slice holds: enough work for a process, little to lose with it.
_SLICE_SIZE = 64 * 2**20
#: About how many bytes of text are in memory at once while a slice is read.
_BATCH_SIZE = 2 * 2**20


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of a source, by its path relative to the cache, and what tells whether it changed."""

    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive row groups of one file. ``size`` is the uncompressed size in bytes of the columns wanted."""

    file: InputFile
    groups: tuple[int, int]
    first_row: int
    rows: int
    size: int


def list_files(cache: Path, source_id: str) -> list[InputFile]:
    """Every file below ``<cache>/<source_id>`` whose name ends in ``.parquet``; links to folders are not followed."""
    found: list[InputFile] = []
    for folder, folders, names in os.walk(cache / source_id, onerror=_raise_walk):
        for name in folders:
            if name.endswith(SUFFIX):
                raise FormatError(f"{Path(folder, name)} is a folder; only files may end in {SUFFIX}: rename it")
        found += [_input_file(cache, Path(folder, name)) for name in names if name.endswith(SUFFIX)]
    return sorted(found, key=lambda file: os.fsencode(file.name))


def _raise_walk(exc: OSError) -> None:
    if not isinstance(exc, FileNotFoundError):
        raise FormatError(f"{exc.filename} cannot be read: {exc.strerror}") from exc


def _input_file(cache: Path, path: Path) -> InputFile:
    try:
        stat = path.stat()
    except OSError as exc:
        raise FormatError(f"{path} cannot be read: {exc.strerror}") from exc
    return InputFile(str(path.relative_to(cache)), stat.st_size, stat.st_mtime_ns)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as exc:
        raise FormatError(f"{shown(name)} cannot be read as parquet: {exc}") from exc


@contextmanager
def _opened(cache: Path, file: InputFile) -> Iterator[Any]:
    with _translated(file.name):
        if _input_file(cache, cache / file.name) != file:
            raise FormatError(f"{shown(file.name)} changed while it was being used; start again")
        with pq.ParquetFile(cache / file.name, buffer_size=2**20, pre_buffer=False) as opened:
            yield opened


def plan_slices(cache: Path, file: InputFile, columns: Sequence[str] | None) -> list[Slice]:
    """Cut a file into slices of whole row groups; ``columns`` are those that will be read (``None``: all)."""
    slices: list[Slice] = []
    with _opened(cache, file) as opened:
        names = opened.schema_arrow.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise FormatError(f"{shown(file.name)} has two columns of the name {shown(twice[0])}")
        meta = opened.metadata
        wanted = _column_numbers(meta, columns)
        begin, row, rows, size = 0, 0, 0, 0
        for group in range(meta.num_row_groups):
            part = meta.row_group(group)
            rows += part.num_rows
            size += sum(part.column(at).total_uncompressed_size for at in wanted)
            if size >= _SLICE_SIZE or group == meta.num_row_groups - 1:
                slices.append(Slice(file, (begin, group + 1), row, rows, size))
                begin, row, rows, size = group + 1, row + rows, 0, 0
    return [part for part in slices if part.rows]


def column_names(cache: Path, file: InputFile) -> list[str]:
    """The top-level columns of a file."""
    with _opened(cache, file) as opened:
        names: list[str] = opened.schema_arrow.names
        return names


def _column_numbers(meta: Any, columns: Sequence[str] | None) -> list[int]:
    if not meta.num_row_groups:
        return []
    paths = [meta.row_group(0).column(at).path_in_schema for at in range(meta.num_columns)]
    if columns is None:
        return list(range(len(paths)))
    return [at for at, path in enumerate(paths) if any(path == c or path.startswith(f"{c}.") for c in columns)]


def read_batches(cache: Path, part: Slice, columns: Sequence[str] | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a slice, a few MiB at a time, each batch with the number of its first row in the file.

    Columns that the file does not have are left out; where it has none of them, some other one gives the rows.
    """
    rows = max(1, min(1024, _BATCH_SIZE * part.rows // max(1, part.size)))
    with _opened(cache, part.file) as opened:
        there = [name for name in opened.schema_arrow.names if columns is None or name in columns]
        there = there or opened.schema_arrow.names[:1]
        at = part.first_row
        for batch in opened.iter_batches(rows, row_groups=range(*part.groups), columns=there, use_threads=False):
            yield at, batch
            at += batch.num_rows


def texts_of(batch: pa.RecordBatch, name: str) -> list[bytes | None]:
    """The UTF-8 bytes of a column's values; ``None`` for null, and for every row of a column of another type."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    return _texts(batch.column(name)) or [None] * batch.num_rows


def string_columns(batch: pa.RecordBatch) -> list[list[bytes | None]]:
    """The values of every top-level string column, in schema order."""
    found = [_texts(batch.column(at)) for at in range(batch.num_columns)]
    return [texts for texts in found if texts is not None]


def values_of(batch: pa.RecordBatch, name: str, file: str) -> list[object]:
    """The values of a column as Python objects; ``None`` for null and where there is no such column."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    try:
        values: list[object] = batch.column(name).to_pylist()
    except UnicodeDecodeError as exc:
        raise FormatError(f"{shown(file)}: column {shown(name)} holds text that is not UTF-8") from exc
    return values


def _texts(column: pa.Array) -> list[bytes | None] | None:
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind, column = kind.value_type, column.dictionary_decode()
    if not _is_text(kind):
        return None
    texts: list[bytes | None] = column.cast(pa.large_string()).cast(pa.large_binary()).to_pylist()
    return texts


def _is_text(kind: pa.DataType) -> bool:
    view = getattr(pa.types, "is_string_view", lambda _: False)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or view(kind))


def write_columns(path: Path, columns: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write equally long number columns as one parquet file, whole or not at all."""
    sink = pa.BufferOutputStream()
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_statistics=False)
    write_whole(path, memoryview(sink.getvalue()))


def read_columns(path: Path) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """The columns of a file that ``write_columns`` or the ordering wrote, one row group at a time."""
    with _translated(str(path)), pq.ParquetFile(path) as opened:
        for group in range(opened.metadata.num_row_groups):
            table = opened.read_row_group(group)
            yield {name: table.column(name).to_numpy() for name in table.column_names}
