"""This r2d1 with settings that no variable gives: ``up|down|down-many FOLDER PREFIX [SETTING=VALUE ...]``."""

import asyncio
import sys

from r2d1 import AsyncCourier, AsyncFetcher, Settings


async def main() -> None:
    direction, folder, prefix, *pairs = sys.argv[1:]
    settings = {name: int(value) if value.isdigit() else value for name, value in (each.split("=") for each in pairs)}
    if direction == "up":
        async with AsyncCourier(Settings.from_env(**settings)) as courier:
            await courier.ship(folder, prefix)
    elif direction == "down":
        async with AsyncFetcher(Settings.from_env(**settings)) as fetcher:
            info = await fetcher.pull(f"r2://jobs/{prefix}/latest", dest=folder)
            assert info.found
    else:
        async with AsyncFetcher(Settings.from_env(**settings)) as fetcher:
            epoch = 0
            while (await fetcher.pull(f"r2://jobs/{prefix}/chk_{epoch + 1:04}", dest=folder)).found:
                epoch += 1
            assert epoch


asyncio.run(main())
