"""Shards cut from the tokens of a build: each gathers its documents in their final order, in a worker process."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from r2d1.datasets.layout import ShardLayout, shard_name
from r2d1.datasets.merkle import Node
from r2d1.datasets.shards import ShardDigest, write_shard, write_whole
from r2d1.datasets.workspace import Space

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard of the set in ``out``; ``rows`` are its first row and the row after its last."""

    space: Space
    out: Path
    layout: ShardLayout
    shard: int
    rows: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """The documents of a set in their final order, as columns that are mapped from files.

    ``at`` is where a document begins among all ids of the set; ``chunk``, ``start`` and ``n`` say where its ids are.
    """

    at: NDArray[np.uint64]
    chunk: NDArray[np.uint64]
    start: NDArray[np.uint64]
    n: NDArray[np.uint64]


PLAN_COLUMNS = ("at", "chunk", "start", "n")


def open_plan(directory: Path) -> Plan:
    """Map a plan that is not empty."""
    at, chunk, start, n = (
        np.asarray(np.memmap(directory / f"{name}.u64", dtype="<u8", mode="r")) for name in PLAN_COLUMNS
    )
    return Plan(at, chunk, start, n)


def write_set_shard(task: ShardTask) -> ShardDigest:
    """Gather the ids of one shard, write it, and return its hashes."""
    mark = task.space.shard_mark(task.shard)
    path = task.space.shards() / shard_name(task.shard)
    if mark.exists() and _is_there(path, task.out, found := _read_mark(mark)):
        return found
    width = task.layout.seq_len + 1
    ids = gather(open_plan(task.space.plan()), task.space, task.rows[0] * width, task.rows[1] * width)
    digest = write_shard(path, memoryview(ids.tobytes()), task.layout, first_row=task.rows[0])
    nodes = [(node.level, node.place, node.digest.hex()) for node in digest.nodes]
    write_whole(mark, json.dumps([digest.rows, digest.sha256, digest.unit_sha256s, nodes]).encode())
    return digest


def _is_there(path: Path, out: Path, digest: ShardDigest) -> bool:
    """Whether a marked shard waits in the workspace, or was moved into place before a crash."""
    if path.exists():
        return True
    try:
        with (out / path.name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest.sha256
    except FileNotFoundError:
        return False


def _read_mark(path: Path) -> ShardDigest:
    rows, sha256, units, nodes = json.loads(path.read_bytes())
    tree = tuple(Node(level, place, bytes.fromhex(digest)) for level, place, digest in nodes)
    return ShardDigest(rows=rows, sha256=sha256, unit_sha256s=tuple(units), nodes=tree)


def gather(plan: Plan, space: Space, begin: int, end: int) -> NDArray[np.uint16]:
    """The ids ``begin`` to ``end`` of the set. Documents that lie side by side in a chunk are read together."""
    first = int(np.searchsorted(plan.at, np.uint64(begin), side="right")) - 1
    last = int(np.searchsorted(plan.at, np.uint64(end), side="left"))
    at, chunk, start, n = (
        np.asarray(column[first:last]).astype(np.int64) for column in (plan.at, plan.chunk, plan.start, plan.n)
    )
    order = np.lexsort((start, chunk))
    breaks = (chunk[order][1:] != chunk[order][:-1]) | ((start + n)[order][:-1] != start[order][1:])
    ids = np.empty(end - begin, dtype="<u2")
    for run in np.split(order, np.flatnonzero(breaks) + 1):
        path = space.tokens(int(chunk[run[0]])).with_suffix(".u16")
        base = int(start[run[0]])
        data = np.fromfile(path, dtype="<u2", count=int(start[run[-1]] + n[run[-1]]) - base, offset=2 * base)
        for document in run.tolist():
            _place_ids(ids, data[start[document] - base :][: n[document]], int(at[document]) - begin)
    return ids


def _place_ids(ids: NDArray[np.uint16], document: NDArray[np.uint16], at: int) -> None:
    """Put a document at ``at``, without what lies before or behind the shard."""
    if at < 0:
        document, at = document[-at:], 0
    part = document[: len(ids) - at]
    ids[at : at + len(part)] = part
