"""A server on the loopback that says exactly what a test wants it to say, byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from r2d1.events import Teller
from r2d1.objects.r2 import R2Store
from r2d1.settings import Secret, Settings

#: Called for each request with its head, and the stream's both ends.
Handler = Callable[[str, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(handler: Handler, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server that hands every request to ``handler`` and closes the connection after it."""
    tasks: set[asyncio.Task[object]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await handler(head.decode(), reader, writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def answering(*answers: bytes) -> Handler:
    """A handler that gives these answers in turn, the last one for ever, whatever is asked."""
    left = list(answers)

    async def handle(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])

    return handle


def http(status: str, body: bytes = b"", **headers: str) -> bytes:
    """An HTTP answer; header names have ``_`` for ``-``, and Content-Length is added unless given."""
    fields = {
        "Connection": "close",
        "Content-Length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def store_at(url: str, *, idle_s: float = 10.0, tell: Teller | None = None) -> AsyncIterator[R2Store]:
    """An R2 store at any address."""
    settings = Settings(endpoint_url=url, bucket="checkpoints", access_key="key-id", secret_key=Secret("very-secret"))
    store = R2Store(settings, tell=tell or Teller(None), idle_s=idle_s)
    try:
        yield store
    finally:
        await store.aclose()
