"""The lane all transfers of one client share: whose turn it is, and who is told."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

import anyio

from r2d1.events import Teller
from r2d1.manifest import PART_SIZE
from r2d1.objects import ObjectStore
from r2d1.transfer.flow import Flow

#: How much of a file is read, hashed or written by one call in a worker thread.
BLOCK = 256 << 10

#: Threads that read, hash and write files beside those of the connections.
_DISK_THREADS = 8


def most_open_files() -> int:
    """A fair part of the descriptors that this process may have: the host program and the connections need theirs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if soft == resource.RLIM_INFINITY else max(4, soft // 8)


@dataclass(slots=True)
class Lane:
    """One budget over all files of all checkpoints of a client.

    ``flow`` hands out turns for pieces (parts, small objects, ranges); a piece holds a few blocks in memory, never
    itself as a whole. Learnt of the store: ``keeps_told_etags`` (the ETag that Complete tells is the object's) and
    ``verifies_checks`` (it compares what arrives with the checksum sent along, and says so).
    """

    store: ObjectStore
    tell: Teller
    flow: Flow = field(default_factory=Flow)
    part_size: int = PART_SIZE
    upload_check: str = "crc64nvme"
    disk: anyio.CapacityLimiter = field(init=False)
    keeps_told_etags: bool = field(init=False, default=False)
    verifies_checks: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.disk = anyio.CapacityLimiter(_DISK_THREADS)

    @property
    def files_at_once(self) -> int:
        """How many files may be open: as many as there may be turns, since each may be one piece."""
        return min(self.flow.most, most_open_files())
