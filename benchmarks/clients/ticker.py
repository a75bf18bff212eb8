"""A 5 ms ticker on the loop that ships or pulls: ``up|down FOLDER PREFIX``; prints how late it was at worst."""

import asyncio
import json
import sys
import time

from r2d1 import AsyncCourier, AsyncFetcher

TICK_S = 0.005


async def tick(gaps: list[float]) -> None:
    last = time.perf_counter()
    while True:
        await asyncio.sleep(TICK_S)
        now = time.perf_counter()
        gaps.append(now - last - TICK_S)
        last = now


def quiet(event: object) -> None:
    """No event is told of: printing is not what is measured."""


async def main() -> None:
    direction, folder, prefix = sys.argv[1:]
    gaps: list[float] = []
    if direction == "up":
        async with AsyncCourier.from_env(observer=quiet) as courier:
            ticker = asyncio.create_task(tick(gaps))
            await courier.ship(folder, prefix)
    else:
        async with AsyncFetcher.from_env(observer=quiet) as fetcher:
            ticker = asyncio.create_task(tick(gaps))
            assert (await fetcher.pull(f"r2://jobs/{prefix}/latest", dest=folder)).found
    ticker.cancel()
    gaps.sort()
    late = {"worst gap, ms": gaps[-1], "99 % of gaps below, ms": gaps[int(len(gaps) * 0.99)]}
    print(json.dumps({name: gap * 1e3 for name, gap in late.items()}))


asyncio.run(main())
