"""Which documents a mix takes: each source gives in key order until its share is reached (formats.md §9, step 5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from r2d1.datasets.gathering import PLAN_COLUMNS
from r2d1.datasets.parquet import read_columns
from r2d1.datasets.workspace import Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

Block = dict[str, "NDArray[Any]"]


@dataclass(frozen=True, slots=True)
class Given:
    """What one source has within the limit, its share in ids, and what it gives (the last document may cross)."""

    documents: int
    available: int
    quota: float
    documents_given: int
    ids_given: int


def quotas_of(available: Sequence[int], ratios: Sequence[float]) -> list[float]:
    """The share of each source in ids: its ratio of the largest total that none is too small for."""
    total = min(ids / ratio for ids, ratio in zip(available, ratios, strict=True))
    return [ratio * total for ratio in ratios]


def select_documents(space: Space, ratios: Sequence[float], limit: int | None) -> list[Given]:
    """Read the ordered documents twice, first to count, then to write the plan of those that are taken."""
    documents, available = [0] * len(ratios), [0] * len(ratios)
    for block in _blocks(space):
        for source in range(len(ratios)):
            counts = _within(block["n"][block["source"] == source], documents[source], limit)
            documents[source] += len(counts)
            available[source] += int(counts.sum())
    quotas = quotas_of(available, ratios)
    taken = _Taken(quotas, limit)
    with ExitStack() as stack:
        files = [stack.enter_context((space.plan() / f"{name}.u64").open("wb")) for name in PLAN_COLUMNS]
        for block in _blocks(space):
            for file, column in zip(files, taken.rows(block), strict=True):
                file.write(column.astype("<u8").tobytes())
    return [Given(*numbers) for numbers in zip(documents, available, quotas, taken.documents, taken.ids, strict=True)]


def _blocks(space: Space) -> Iterator[Block]:
    if space.ordered().exists():
        yield from read_columns(space.ordered())


def _within(values: NDArray[Any], seen: int, limit: int | None) -> NDArray[Any]:
    return values if limit is None else values[: max(0, limit - seen)]


class _Taken:
    """What has been taken so far, while the documents go by in their order."""

    def __init__(self, quotas: Sequence[float], limit: int | None) -> None:
        self.documents = [0] * len(quotas)
        self.ids = [0] * len(quotas)
        self._quotas = quotas
        self._limit = limit
        self._seen = [0] * len(quotas)
        self._end = 0

    def rows(self, block: Block) -> tuple[NDArray[Any], ...]:
        """The plan's columns of those documents of a block that are taken."""
        keep = np.zeros(len(block["n"]), dtype=bool)
        for source in range(len(self._quotas)):
            keep[self._take(block, source)] = True
        counts = block["n"][keep].astype(np.int64)
        begins = self._end + np.cumsum(counts) - counts
        self._end += int(counts.sum())
        return begins, block["chunk"][keep], block["start"][keep], counts

    def _take(self, block: Block, source: int) -> NDArray[Any]:
        """The places in a block that a source gives: while what it gave before is less than its quota."""
        places = _within(np.flatnonzero(block["source"] == source), self._seen[source], self._limit)
        counts = block["n"][places].astype(np.int64)
        before = self.ids[source] + np.cumsum(counts) - counts
        given = before < self._quotas[source]
        self._seen[source] += len(places)
        self.documents[source] += int(given.sum())
        self.ids[source] += int(counts[given].sum())
        taken: NDArray[Any] = places[given]
        return taken
