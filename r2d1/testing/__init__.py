"""Doubles of R2 and D1 for tests: strict ones over real sockets, and a bucket in memory. Imported lazily.

``S3Double`` and ``D1Double`` are servers on a free port of this host. ``MemoryStore`` is an object store of r2d1's
own seam without any socket. ``Bucket`` is the model of R2 behind both of them, ``Rules`` what it enforces.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from r2d1.testing.blob import Blob
    from r2d1.testing.bucket import Bucket
    from r2d1.testing.d1 import D1Double
    from r2d1.testing.faults import (
        Answer,
        Call,
        CutReply,
        CutRequest,
        Delay,
        Fault,
        FlipReply,
        FlipRequest,
        Gate,
        Hold,
        HoldReply,
        Hook,
        Reset,
        Rewrite,
        Stall,
        Swallow,
        Trickle,
        When,
    )
    from r2d1.testing.memory import MemoryStore, logical_clock
    from r2d1.testing.refusals import Refused
    from r2d1.testing.requestlog import Count, RequestRecord
    from r2d1.testing.rules import Conditional, Rules
    from r2d1.testing.s3 import S3Double

_ROOMS = {
    "blob": ("Blob",),
    "bucket": ("Bucket",),
    "d1": ("D1Double",),
    "faults": (
        "Answer",
        "Call",
        "CutReply",
        "CutRequest",
        "Delay",
        "Fault",
        "FlipReply",
        "FlipRequest",
        "Gate",
        "Hold",
        "HoldReply",
        "Hook",
        "Reset",
        "Rewrite",
        "Stall",
        "Swallow",
        "Trickle",
        "When",
    ),
    "memory": ("MemoryStore", "logical_clock"),
    "refusals": ("Refused",),
    "requestlog": ("Count", "RequestRecord"),
    "rules": ("Conditional", "Rules"),
    "s3": ("S3Double",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Answer",
    "Blob",
    "Bucket",
    "Call",
    "Conditional",
    "Count",
    "CutReply",
    "CutRequest",
    "D1Double",
    "Delay",
    "Fault",
    "FlipReply",
    "FlipRequest",
    "Gate",
    "Hold",
    "HoldReply",
    "Hook",
    "MemoryStore",
    "Refused",
    "RequestRecord",
    "Reset",
    "Rewrite",
    "Rules",
    "S3Double",
    "Stall",
    "Swallow",
    "Trickle",
    "When",
    "logical_clock",
]


def __getattr__(name: str) -> object:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
