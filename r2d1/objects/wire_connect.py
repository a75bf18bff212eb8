"""Connections to one endpoint: addresses raced, through a proxy where there is one, TLS verified."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import anyio
import h11

from r2d1.objects.r2_refusals import CHECK_NETWORK
from r2d1.objects.wire_link import Link, LinkBroken, LinkSilent
from r2d1.tasks import Halt

#: Seconds that a connection may take to be made.
CONNECT_S = 10.0

#: Seconds until the next address is tried beside one that does not answer (RFC 8305 says 0.25).
_HEAD_START_S = 0.25

#: Seconds for which the addresses of a name are believed.
_ADDRESSES_S = 10.0

#: Most bytes the kernel takes before it has sent them: more would hide for long whether anything moves.
_UNSENT = 512 << 10
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)

_CHECK_PROXY = "Check HTTPS_PROXY, and NO_PROXY for addresses that need none"

#: Family and address, as ``socket.connect`` wants them.
Address = tuple[socket.AddressFamily, tuple[object, ...]]


class NotConnected(Exception):
    """There is no connection, so the request had no effect. ``may_pass``: trying again may help."""

    def __init__(
        self, reason: str, hint: str = CHECK_NETWORK, *, may_pass: bool = True, status: int | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.hint, self.may_pass, self.status = reason, hint, may_pass, status


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect. ``tls`` verifies the server, and a proxy that is itself reached by https.

    ``name_hint`` is what to do about a host that is not known.
    """

    url: SplitResult
    tls: ssl.SSLContext | None
    proxy: SplitResult | None
    idle_s: float
    name_hint: str

    @classmethod
    def of(
        cls,
        url: str,
        *,
        tls: ssl.SSLContext | None,
        proxy: str | None,
        idle_s: float,
        name_hint: str = "Check R2D1_ACCOUNT_ID, the endpoint and the network",
    ) -> Endpoint:
        return cls(urlsplit(url), tls, urlsplit(proxy) if proxy else None, idle_s, name_hint)

    @property
    def host(self) -> str:
        return self.url.hostname or ""

    @property
    def port(self) -> int:
        return self.url.port or (443 if self.url.scheme == "https" else 80)

    @property
    def first_hop(self) -> tuple[str, int]:
        """Host and port of the socket's other end."""
        if self.proxy is None:
            return self.host, self.port
        return self.proxy.hostname or "", self.proxy.port or (443 if self.proxy.scheme == "https" else 80)


class Addresses:
    """The addresses of the first hop, looked up by a thread that is not waited for when cancelled, and kept."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._host, self._port = endpoint.first_hop
        self._hint = endpoint.name_hint
        self._known: tuple[Address, ...] = ()
        self._until = 0.0
        self._one_at_a_time = anyio.Lock(fast_acquire=True)

    async def get(self) -> tuple[Address, ...]:
        """Raises ``NotConnected`` when the name does not resolve."""
        async with self._one_at_a_time:
            if anyio.current_time() >= self._until:
                self._known = await self._look_up()
                self._until = anyio.current_time() + _ADDRESSES_S
        return self._known

    async def _look_up(self) -> tuple[Address, ...]:
        try:
            with anyio.fail_after(CONNECT_S):
                found = await _looked_up(self._host, self._port)
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            reason = f"the host name cannot be resolved: {self._host}:{self._port}"
            raise NotConnected(reason, self._hint) from None
        return tuple((family, address) for family, _, _, _, address in found)

    def prefer(self, address: object) -> None:
        """One that answered comes first from now on."""
        self._known = tuple(sorted(self._known, key=lambda known: known[1] != address))


async def _looked_up(host: str, port: int) -> list[tuple[Any, ...]]:
    """The system's resolver in a thread that nobody waits for: it may take half a minute, and cannot be stopped.

    The loop's own way keeps a program from ending meanwhile, and takes no work while one drains at its end.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

    def settle(found: list[tuple[Any, ...]] | OSError | UnicodeError) -> None:
        if answer.done():
            return  # cancelled
        if isinstance(found, list):
            answer.set_result(found)
        else:
            answer.set_exception(found)

    def work() -> None:
        found: list[tuple[Any, ...]] | OSError | UnicodeError
        try:
            found = list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as exc:
            found = exc
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=work, name="r2d1 resolver", daemon=True).start()
    return await answer


def connect(endpoint: Endpoint, addresses: Sequence[Address], halt: Halt) -> tuple[Link, object]:
    """A new connection, ready for requests, and the address it has. Blocks; raises ``NotConnected``."""
    sock, address = _race(addresses, endpoint, halt)
    link = Link(sock, idle_s=CONNECT_S)
    try:
        with halt.calling(link.cut):
            _establish(link, endpoint)
    except LinkSilent:
        link.close()
        raise NotConnected("no connection within the time allowed") from None
    except BaseException:
        link.close()
        raise
    link.base.idle_s = endpoint.idle_s
    return link, address


def _establish(link: Link, endpoint: Endpoint) -> None:
    try:
        if endpoint.proxy is not None:
            if endpoint.proxy.scheme == "https":
                assert endpoint.tls is not None
                link.wrap(endpoint.tls, endpoint.proxy.hostname or "")
            _open_tunnel(link, endpoint, endpoint.proxy)
        if endpoint.tls is not None:
            link.wrap(endpoint.tls, endpoint.host)
    except ssl.SSLCertVerificationError as exc:
        raise NotConnected(
            f"the server's certificate is not trusted: {exc.verify_message}",
            "If the endpoint or a proxy uses a private CA, name its file in R2D1_CA_BUNDLE",
            may_pass=False,
        ) from exc
    except (ssl.SSLError, LinkBroken) as exc:
        reason = (exc.reason or "TLS error") if isinstance(exc, ssl.SSLError) else str(exc)
        raise NotConnected(
            f"TLS with {endpoint.host}:{endpoint.port} failed: {reason}",
            "Check that the endpoint speaks https, and the proxy",
        ) from exc


def _open_tunnel(link: Link, endpoint: Endpoint, proxy: SplitResult) -> None:
    """Ask the proxy to connect us to the endpoint (RFC 9110, 9.3.6)."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    target = f"{host}:{endpoint.port}"
    headers = [("Host", target)]
    if proxy.username is not None:
        pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers.append(("Proxy-Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}"))
    protocol = h11.Connection(h11.CLIENT)
    try:
        link.send_all(protocol.send(h11.Request(method="CONNECT", target=target, headers=headers)) or b"")
        answer = read_head(link, protocol)
    except h11.RemoteProtocolError as exc:
        raise NotConnected("the proxy does not speak HTTP", _CHECK_PROXY) from exc
    except LinkBroken as exc:
        raise NotConnected(f"the proxy refused to connect: {exc}", _CHECK_PROXY) from exc
    if not 200 <= answer.status_code < 300:
        status, reason = answer.status_code, bytes(answer.reason).decode("latin-1")
        may_pass = status >= 500 or status == 429
        raise NotConnected(f"the proxy refused to connect: {reason}", _CHECK_PROXY, may_pass=may_pass, status=status)


def read_head(link: Link, protocol: h11.Connection) -> h11.Response:
    """The head of an answer; what came after it waits in ``protocol``. ``LinkBroken`` when none comes."""
    buffer = memoryview(bytearray(16 << 10))
    deadline = time.monotonic() + link.base.idle_s
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            if time.monotonic() >= deadline:
                raise LinkSilent  # a head in drops, or words of comfort (1xx) without end, are no answer
            got = link.pipe.receive_into(buffer)
            if not got:
                raise LinkBroken("the connection broke before the answer came")
            protocol.receive_data(bytes(buffer[:got]))
        elif isinstance(event, h11.Response):
            return event
        elif not isinstance(event, h11.InformationalResponse):
            raise LinkBroken("the connection broke before the answer came")


def _race(addresses: Sequence[Address], endpoint: Endpoint, halt: Halt) -> tuple[socket.socket, tuple[object, ...]]:
    """Connect to the first address that answers; each has a head start over the next one (RFC 8305)."""
    waiting: dict[int, tuple[socket.socket, tuple[object, ...]]] = {}
    left = list(addresses)
    poller = select.poll()
    deadline = time.monotonic() + CONNECT_S
    last: OSError | None = None
    try:
        while (left or waiting) and not halt.called and time.monotonic() < deadline:
            if left:
                family, address = left.pop(0)
                try:
                    sock = _begin(family, address)
                except OSError as exc:
                    last = exc
                    continue
                waiting[sock.fileno()] = sock, address
                poller.register(sock, select.POLLOUT)
            for fd, _ in poller.poll(_HEAD_START_S * 1000):
                poller.unregister(fd)
                sock, address = waiting.pop(fd)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if not code:
                    return sock, address
                sock.close()
                last = OSError(code, os.strerror(code))
    finally:
        for other, _ in waiting.values():
            other.close()
    raise _unreachable(endpoint, last)


def _begin(family: socket.AddressFamily, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | getattr(socket, "SOCK_CLOEXEC", 0))
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except OSError:
        sock.close()
        raise
    return sock


def _unreachable(endpoint: Endpoint, last: OSError | None) -> NotConnected:
    host, port = endpoint.first_hop
    if last is None:
        return NotConnected("no connection within the time allowed")
    reason = last.strerror or type(last).__name__
    if endpoint.proxy is not None:
        return NotConnected(f"the proxy {host}:{port} cannot be reached: {reason}", "Check HTTPS_PROXY and NO_PROXY")
    return NotConnected(f"{host}:{port} cannot be reached: {reason}")
