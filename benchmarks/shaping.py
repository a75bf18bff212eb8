"""A link with latency, and a rate per connection, in a process of its own; for servers that cannot shape themselves.

``python -m benchmarks.shaping PORT TARGET_PORT LATENCY_MS MB_PER_S``. A Python proxy carries some hundreds of MB/s in
all: enough for the links of ``--quick``, not for more.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time

_PIECE = 64 * 1024


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float, bytes_per_s: float) -> None:
    """Carry bytes one way: each arrives ``delay_s`` later, and no faster than the rate."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=256)

    async def deliver() -> None:
        while True:
            due, piece = await waiting.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def take() -> None:
        free_at = time.monotonic()
        while piece := await reader.read(_PIECE):
            if bytes_per_s:
                free_at = max(free_at, time.monotonic()) + len(piece) / bytes_per_s
                await asyncio.sleep(max(0.0, free_at - time.monotonic()))
            await waiting.put((time.monotonic() + delay_s, piece))
        await waiting.put((time.monotonic() + delay_s, b""))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(deliver())
        tasks.create_task(take())


async def main() -> None:
    port, target = int(sys.argv[1]), int(sys.argv[2])
    delay_s, bytes_per_s = float(sys.argv[3]) / 2000, float(sys.argv[4]) * 1e6  # half of the latency each way

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        with contextlib.suppress(OSError, ExceptionGroup):  # whoever went away knows it
            await asyncio.gather(
                pump(reader, far_writer, delay_s, bytes_per_s), pump(far_reader, writer, delay_s, bytes_per_s)
            )
        for each in (writer, far_writer):
            each.close()

    async with await asyncio.start_server(connected, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
