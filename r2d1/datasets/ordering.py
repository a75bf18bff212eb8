"""Sorting what may be larger than memory, with an embedded engine (DuckDB) that spills to disk.

Everything sorted has a fixed width (a 32-byte key is four integers): DuckDB keeps its memory limit then.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import duckdb

from r2d1.datasets.workspace import KEY_COLUMNS
from r2d1.errors import ConfigError, R2D1Error

_KEY = ", ".join(KEY_COLUMNS)
#: What DuckDB wants for each thread before it helps: below that, fewer threads.
_THREAD_MEMORY = 128 * 2**20
_PARQUET = "FORMAT parquet, COMPRESSION uncompressed, ROW_GROUP_SIZE 122880"


class Sorter:
    """One DuckDB, without a database file, that keeps within ``memory`` bytes and spills to ``scratch``."""

    def __init__(self, scratch: Path, *, memory: int, threads: int) -> None:
        self._memory = memory
        self._engine = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{memory // 2**20}MiB",
                "threads": max(1, min(threads, memory // _THREAD_MEMORY)),
                "temp_directory": str(scratch),
                # an engine that fetches extensions by itself would go online
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._engine.close()

    def unique_shingles(self, folder: Path, pattern: str, target: Path) -> None:
        """Write the distinct ``fast, high, low`` of the files, sorted, to the parquet file ``target``."""
        query = f"SELECT DISTINCT fast, high, low FROM {_files(folder, pattern)} ORDER BY fast, high, low"  # noqa: S608
        self._copy(query, target)

    def nth_key(self, folder: Path, pattern: str, number: int) -> bytes | None:
        """The ``number``-th smallest key of the files, counted from 1; ``None`` when there are fewer."""
        query = f"SELECT {_KEY} FROM {_files(folder, pattern)} ORDER BY {_KEY} LIMIT 1 OFFSET {number - 1}"  # noqa: S608
        with self._translated():
            row = self._engine.execute(query).fetchone()
        return None if row is None else b"".join(part.to_bytes(8, "big") for part in row)

    def order_documents(self, folder: Path, pattern: str, target: Path) -> None:
        """Write ``source, chunk, start, n`` of all documents in the order of their keys to ``target``.

        Two sources can have one key only if an id holds ``|``; then the earlier source comes first.
        """
        order = f"{_KEY}, source, chunk, start"
        query = f"SELECT source, chunk, start, n FROM {_files(folder, pattern)} ORDER BY {order}"  # noqa: S608
        self._copy(query, target)

    def _copy(self, query: str, target: Path) -> None:
        temporary = target.with_name(f"{target.name}.tmp")
        with self._translated():
            self._engine.execute(f"COPY ({query}) TO {_quoted(temporary)} ({_PARQUET})")
        temporary.replace(target)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except duckdb.OutOfMemoryException as exc:
            raise ConfigError(
                f"sorting does not fit into {self._memory // 2**20} MiB of memory and the disk beside the output:"
                " give the build more of either"
            ) from exc
        except duckdb.Error as exc:
            raise R2D1Error(f"the sorting engine failed: {exc}") from exc


# COPY takes no parameters: what a query above does not spell out itself is quoted here (hence its noqa).
def _files(folder: Path, pattern: str) -> str:
    return f"read_parquet({_quoted(Path(glob.escape(str(folder)), pattern))})"


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
