"""Units of a published set as a PyTorch dataset. Importing this module imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from r2d1.bases import Base
from r2d1.datasets.manifest import ShardManifest
from r2d1.datasets.prefetching import DEPTH, STREAMS, prefetch
from r2d1.datasets.shares import Share, share_of
from r2d1.errors import ConfigError
from r2d1.settings import Settings

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info
except ModuleNotFoundError as exc:
    if (exc.name or "").partition(".")[0] != "torch":
        raise
    raise ConfigError("UnitDataset needs PyTorch: pip install torch") from exc


class UnitDataset(IterableDataset):  # type: ignore[type-arg, misc, unused-ignore]
    """Rows of a published set as int64 tensors of shape ``(seq_len + 1,)``, units prefetched and verified.

        dataset = UnitDataset(manifest, "cache", bases=["https://data.example/sets/od-a-v1"])
        loader = DataLoader(dataset, batch_size=8, num_workers=2)

    Every rank and every worker of a loader gets units of its own; together they give each unit of ``unit_ids``
    (default: all, in order) once. Rank and world size are those of ``torch.distributed`` when it is initialised,
    unless given. With ``even`` every rank gets equally many units, and up to ``world_size - 1`` units at the end of
    ``unit_ids`` are left out: training that synchronises after each step needs that.
    To go on after an interruption, give the units that are left as ``unit_ids``.

    A worker starts its own connections; ``bases`` with tokens cannot be sent to workers that are spawned.
    """

    def __init__(
        self,
        manifest: ShardManifest,
        cache: str | os.PathLike[str],
        bases: Sequence[str | Base],
        *,
        unit_ids: Sequence[int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        even: bool = False,
        streams: int = STREAMS,
        depth: int = DEPTH,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        if (rank is None) is not (world_size is None):
            raise ConfigError("give both rank and world_size, or neither")
        self._manifest = manifest
        self._cache = os.fspath(cache)
        self._bases = tuple(bases)
        self._unit_ids = unit_ids
        self._rank, self._world_size = rank, world_size
        self._even = even
        self._streams, self._depth = streams, depth
        self._settings = settings

    def __iter__(self) -> Iterator[Any]:
        units: Sequence[int] = range(self._manifest.n_units) if self._unit_ids is None else self._unit_ids
        share = self._share(len(units))
        mine = islice(units, share.first, share.stop, share.step)
        with prefetch(
            self._manifest, mine, self._cache, self._bases, self._streams, self._depth, settings=self._settings
        ) as given:
            for unit in given:
                yield from torch.from_numpy(given.rows(unit).astype(np.int64))

    def _share(self, units: int) -> Share:
        rank, world_size = self._rank, self._world_size
        if rank is None or world_size is None:
            rank, world_size = _ranks()
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        return share_of(units, rank=rank, world_size=world_size, worker=worker, workers=workers, even=self._even)


def _ranks() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
