"""The PyTorch dataset with the real library: rows, workers and ranks, each unit once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from r2d1.datasets import ShardSet
from r2d1.datasets.torchdata import UnitDataset
from r2d1.errors import ConfigError
from tests.datasets.published import UNIT, make_set
from tests.datasets.web import files, web


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set")


@pytest.fixture
def base(made):
    with web(files(made.objects)) as server:
        yield server


def rows_of(made):
    return sorted(np.asarray(row).tolist() for row in ShardSet(made.directory))


def rows_in(loader):
    return [row.tolist() for batch in loader for row in batch]


def test_rows_are_int64_tensors_in_order(made, base, tmp_path):
    """Without workers the rows come in the order of the set, ready for an embedding."""
    dataset = UnitDataset(made.manifest, tmp_path / "cache", [base.url])
    rows = list(dataset)
    assert rows[0].dtype == torch.int64
    assert rows[0].shape == (made.manifest.seq_len + 1,)
    assert len(rows) == made.manifest.n_samples
    assert rows[17].tolist() == ShardSet(made.directory)[17].tolist()


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_each_row_once(workers, made, base, tmp_path):
    """Several workers of a loader share the units out."""
    dataset = UnitDataset(made.manifest, tmp_path / "cache", [base.url])
    with_workers = DataLoader(dataset, batch_size=UNIT, num_workers=workers)
    assert sorted(rows_in(with_workers)) == rows_of(made)
    assert len(base.asked) == made.manifest.n_units


def test_ranks_and_workers_give_each_row_once(made, base, tmp_path):
    """Two ranks of two workers each: disjoint, and together everything."""
    found = []
    for rank in range(2):
        dataset = UnitDataset(made.manifest, tmp_path / f"cache{rank}", [base.url], rank=rank, world_size=2)
        found.append(rows_in(DataLoader(dataset, batch_size=UNIT, num_workers=2)))
    assert sorted(found[0] + found[1]) == rows_of(made)
    assert len(found[0]) == len(found[1])


def test_even_ranks_and_chosen_units(made, base, tmp_path):
    """Seven units over three ranks: two each when even, and exactly those that were named."""
    counts, units = [], [19, 3, 5, 7, 0, 1, 2]
    for rank in range(3):
        dataset = UnitDataset(
            made.manifest, tmp_path / "cache", [base.url], unit_ids=units, rank=rank, world_size=3, even=True
        )
        counts.append(len(list(dataset)))
    assert counts == [2 * UNIT] * 3
    assert len(base.asked) == 6


def test_half_a_rank_is_refused(made, base, tmp_path):
    """Rank and world size belong together."""
    with pytest.raises(ConfigError, match="both rank and world_size"):
        UnitDataset(made.manifest, tmp_path, [base.url], rank=0)
