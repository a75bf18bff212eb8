"""The lane all transfers of one client share: how many pieces are in flight, and who is told."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio

from r2d1.events import Teller
from r2d1.manifest import PART_SIZE
from r2d1.objects import ObjectStore

#: How much of a file is read, hashed or written by one call in a worker thread.
BLOCK = 1 << 20


@dataclass(slots=True)
class Lane:
    """One budget over all files of all checkpoints of a client.

    ``concurrency`` pieces (parts, small objects, ranges) are in flight at most; a piece holds a few blocks
    in memory, never itself as a whole. ``keeps_told_etags`` is learnt: the ETag that Complete tells is the object's.
    """

    store: ObjectStore
    tell: Teller
    concurrency: int = 8
    part_size: int = PART_SIZE
    upload_check: str = "crc64nvme"
    slots: anyio.Semaphore = field(init=False)
    disk: anyio.CapacityLimiter = field(init=False)
    keeps_told_etags: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.slots = anyio.Semaphore(self.concurrency)
        self.disk = anyio.CapacityLimiter(max(4, self.concurrency))
