"""r2d1 ships training checkpoints to Cloudflare R2, tells of them in D1, and brings them back verified.

    from r2d1 import AsyncCourier, AsyncFetcher         # for programs with an event loop
    from r2d1 import Courier, Fetcher, FetchInfo        # the same, blocking

Names are loaded when first used, so importing r2d1 costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0.dev0"

if TYPE_CHECKING:
    from r2d1.courier import AsyncCourier
    from r2d1.courier.report import Shipped, ShipReport, Status
    from r2d1.errors import FlushError, R2D1Error
    from r2d1.fetcher import AsyncFetcher
    from r2d1.fetcher.info import FetchInfo
    from r2d1.settings import Settings
    from r2d1.sidecar import write_sidecar
    from r2d1.sync import Courier, Fetcher

_HOME = {
    "AsyncCourier": "r2d1.courier",
    "AsyncFetcher": "r2d1.fetcher",
    "Courier": "r2d1.sync",
    "FetchInfo": "r2d1.fetcher.info",
    "Fetcher": "r2d1.sync",
    "FlushError": "r2d1.errors",
    "R2D1Error": "r2d1.errors",
    "Settings": "r2d1.settings",
    "ShipReport": "r2d1.courier.report",
    "Shipped": "r2d1.courier.report",
    "Status": "r2d1.courier.report",
    "write_sidecar": "r2d1.sidecar",
}

__all__ = [
    "AsyncCourier", "AsyncFetcher", "Courier", "FetchInfo", "Fetcher", "FlushError", "R2D1Error", "Settings",
    "ShipReport", "Shipped", "Status", "write_sidecar",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'r2d1' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
