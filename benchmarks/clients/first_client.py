"""What r2d1 costs before its first byte: the settings, and a courier that is opened and closed."""

import asyncio

from r2d1 import AsyncCourier


async def main() -> None:
    async with AsyncCourier.from_env():
        pass


asyncio.run(main())
