"""Shares of ranks and workers: disjoint, complete, and even when asked for."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1.datasets.shares import share_of
from r2d1.errors import ConfigError

SMALL = st.integers(1, 6)


def shares(units, world_size, workers, *, even):
    found = {}
    for rank in range(world_size):
        for worker in range(workers):
            share = share_of(units, rank=rank, world_size=world_size, worker=worker, workers=workers, even=even)
            found[rank, worker] = list(islice(range(units), share.first, share.stop, share.step))
    return found


@given(units=st.integers(0, 100), world_size=SMALL, workers=SMALL)
def test_together_they_are_the_whole(units, world_size, workers):
    """Every unit falls to exactly one worker of one rank."""
    found = shares(units, world_size, workers, even=False)
    assert sorted(unit for share in found.values() for unit in share) == list(range(units))


@given(units=st.integers(0, 100), world_size=SMALL, workers=SMALL)
def test_even_shares_leave_out_what_does_not_go_round(units, world_size, workers):
    """With ``even`` all ranks get equally many, and fewer units than ranks are left out, all at the end."""
    found = shares(units, world_size, workers, even=True)
    per_rank = {rank: sum(len(found[rank, worker]) for worker in range(workers)) for rank in range(world_size)}
    assert len(set(per_rank.values())) == 1
    given_out = sorted(unit for share in found.values() for unit in share)
    assert given_out == list(range(units - units % world_size))


@pytest.mark.parametrize(("rank", "world_size", "worker", "workers"), [(2, 2, 0, 1), (-1, 2, 0, 1), (0, 1, 1, 1)])
def test_numbers_that_make_no_sense(rank, world_size, worker, workers):
    """Ranks and workers count from 0."""
    with pytest.raises(ConfigError):
        share_of(5, rank=rank, world_size=world_size, worker=worker, workers=workers, even=False)
