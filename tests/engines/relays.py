"""TLS and a CONNECT proxy in front of the engines, on a loop in a thread of its own so that any door can be tested."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import anyio
import anyio.abc
from anyio.from_thread import start_blocking_portal
from anyio.streams.tls import TLSListener

from tests.engines.servers import Cloudflare
from tests.tls import Authority, ConnectProxy, connect_proxy

_BLOCK = 256 << 10


@contextmanager
def behind_tls(engine: Cloudflare, authority: Authority) -> Iterator[Cloudflare]:
    """The engine as ``https://`` with a certificate of this authority; R2 and D1 on a port each, as if two hosts."""
    port = urlsplit(engine.endpoint).port
    assert port is not None
    with (
        start_blocking_portal(name="tls-relay") as portal,
        portal.wrap_async_context_manager(_tls_relay(port, authority)) as for_r2,
        portal.wrap_async_context_manager(_tls_relay(port, authority)) as for_d1,
    ):
        yield replace(engine, endpoint=_moved(engine.endpoint, for_r2), d1_base_url=_moved(engine.d1_base_url, for_d1))


@contextmanager
def proxy(*, user: str, password: str) -> Iterator[ConnectProxy]:
    """A CONNECT proxy that asks for user and password and keeps what goes through it."""
    with (
        start_blocking_portal(name="connect-proxy") as portal,
        portal.wrap_async_context_manager(connect_proxy(user=user, password=password)) as running,
    ):
        yield running


def _moved(url: str, port: int) -> str:
    return f"https://127.0.0.1:{port}{urlsplit(url).path}"


@asynccontextmanager
async def _tls_relay(port: int, authority: Authority) -> AsyncIterator[int]:
    """Bytes in through TLS, out to a plain port; the Host header stays as the client wrote and signed it."""

    async def serve(client: anyio.abc.ByteStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(_pump, server, client, tasks.cancel_scope)
            await _pump(client, server, tasks.cancel_scope)

    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    outer = plain.extra(anyio.abc.SocketAttribute.local_port)
    async with TLSListener(plain, authority.server_context(), standard_compatible=False) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, serve)
            yield outer
            tasks.cancel_scope.cancel()


async def _pump(source: anyio.abc.ByteStream, target: anyio.abc.ByteStream, scope: anyio.CancelScope) -> None:
    try:
        while True:
            await target.send(await source.receive(_BLOCK))
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        scope.cancel()
