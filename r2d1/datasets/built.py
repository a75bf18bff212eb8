"""What a build is asked for, and what a finished one tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from r2d1.datasets.layout import DEFAULT_UNIT
from r2d1.datasets.manifest import BuildRecord, ShardManifest
from r2d1.datasets.selection import Given
from r2d1.datasets.stages import ScanCounts

DEFAULT_MEMORY = 2 * 2**30
#: Less than this, and the libraries alone do not fit.
MIN_MEMORY = 512 * 2**20


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How a mix is built. Only the first three can change a byte of it.

    ``unit`` and ``samples_per_shard`` in rows (default: the largest shard within 64 MiB); ``limit_docs`` documents
    a source; ``workers`` processes (default: all cores); ``memory`` in bytes for all processes together, which
    also bounds the number of workers. A single document of more than some ten MiB may go beyond it.
    """

    unit: int = DEFAULT_UNIT
    samples_per_shard: int | None = None
    limit_docs: int | None = None
    workers: int | None = None
    memory: int = DEFAULT_MEMORY


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What a component gave: rows of the input, then documents, then ids (end tokens included)."""

    source: str
    ratio: float
    rows_read: int
    rows_denied: int
    rows_removed: int
    documents_left: int
    documents_after_limit: int
    available: int
    quota: float
    documents_given: int
    ids_given: int


@dataclass(frozen=True, slots=True)
class BuildReport:
    """A finished build. The same inputs give the same bytes wherever both versions named here are the same."""

    directory: str
    manifest: ShardManifest
    record: BuildRecord
    sources: tuple[SourceReport, ...]
    reference_texts: int
    reference_shingles: int
    ids_left_over: int
    unicode_version: str
    tokenizers_version: str


def source_report(source: str, ratio: float, parts: Sequence[ScanCounts], given: Given) -> SourceReport:
    """Sum up what became of a component's slices."""
    rows, denied = sum(part.rows for part in parts), sum(part.denied for part in parts)
    removed = sum(len(part.removed) for part in parts)
    return SourceReport(
        source=source,
        ratio=ratio,
        rows_read=rows,
        rows_denied=denied,
        rows_removed=removed,
        documents_left=rows - denied - removed,
        documents_after_limit=given.documents,
        available=given.available,
        quota=given.quota,
        documents_given=given.documents_given,
        ids_given=given.ids_given,
    )
