"""The async classes under the names of the blocking ones, for those who prefer ``from r2d1.aio import Courier``."""

from r2d1.courier import AsyncCourier as Courier
from r2d1.fetcher import AsyncFetcher as Fetcher
from r2d1.fetcher.info import FetchInfo

__all__ = ["Courier", "FetchInfo", "Fetcher"]
