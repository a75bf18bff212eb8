"""Which units fall to which rank and worker: disjoint shares that together are the whole. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from r2d1.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Share:
    """Every ``step``-th of a list of units, from place ``first`` to ``stop`` (excluded)."""

    first: int
    stop: int
    step: int


def share_of(units: int, *, rank: int, world_size: int, worker: int, workers: int, even: bool) -> Share:
    """The share of one worker of one rank. With ``even`` the units that do not go round are left out.

    Units go round the ranks first, then round the workers of a rank, so that whoever reads a rank's workers in
    turn reads its units in order. ``ConfigError`` for numbers that make no sense.
    """
    if not (0 <= rank < world_size and 0 <= worker < workers):
        raise ConfigError(f"rank {rank} of {world_size} and worker {worker} of {workers}: both count from 0")
    stop = units - units % world_size if even else units
    return Share(first=rank + worker * world_size, stop=stop, step=world_size * workers)
