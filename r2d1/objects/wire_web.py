"""Requests to any web address over the data plane's connections, on worker threads; redirects are followed."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Protocol
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import anyio
import h11

from r2d1 import __version__
from r2d1.objects.wire_connect import Endpoint
from r2d1.objects.wire_exchange import Heard, Job
from r2d1.objects.wire_pool import Pool
from r2d1.secret import Secret
from r2d1.tasks import Halt, in_stoppable_thread, in_thread

#: Most redirects that one request follows.
REDIRECTS = 5
#: Statuses that send a reader elsewhere.
MOVED = frozenset({301, 302, 303, 307, 308})
#: Most hosts whose connections are kept: where a base redirects to is its own choice.
_HOSTS = 8
_CHECK_ADDRESS = "Check the address and the network"
#: What a target may hold beside letters and digits; "%" as it is quoted already.
_SAFE = "%!$&'()*+,-./:;=?@[]_~"


class Misdirected(Exception):
    """There is no answer: redirects in circles, or to what is no HTTP URL."""


class Body(Protocol):
    """Who judges an answer and takes its body; called in a worker thread. What it raises ends the request."""

    def see(self, heard: Heard) -> None:
        """Look at a head that is no redirect. If it raises, the body is left unread."""

    def place(self, heard: Heard) -> tuple[int, int]:
        """``(bytes to pass over, most bytes wanted)`` of a good answer's body."""

    def write(self, block: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""

    def done(self, heard: Heard) -> None:
        """All that was wanted of a good answer has come."""


class Web:
    """Connections to web addresses, at most ``at_once`` requests under way; ``close`` it at the end.

    ``make_tls`` and ``proxy_for`` are called in a worker thread, for the first ``https`` address and for each host.
    ``idle_s`` is the longest silence in seconds.
    """

    def __init__(
        self,
        *,
        make_tls: Callable[[], ssl.SSLContext],
        proxy_for: Callable[[str], str | None],
        at_once: int,
        idle_s: float,
    ) -> None:
        self._make_tls = make_tls
        self._proxy_for = proxy_for
        self._idle_s = idle_s
        self._tls: ssl.SSLContext | None = None
        self._threads = anyio.CapacityLimiter(at_once)
        self._pools: dict[str, Pool] = {}
        self._opening = anyio.Lock(fast_acquire=True)

    async def get(self, url: str, headers: Mapping[str, str], body: Body, *, token: Secret | None) -> Heard:
        """Read what is at ``url`` or where it redirects to. The token stays behind as soon as that is elsewhere.

        Raises ``NotConnected``, ``LinkBroken``, ``LinkSilent``, ``Misdirected``, and what ``body`` raises.
        """
        at = _parsed(url)
        for _ in range(REDIRECTS + 1):
            heard = await self._hop("GET", at, headers, token, body)
            if heard.status not in MOVED:
                return heard
            before, at = at, _next(at, heard)
            if not _is_home(before, at):
                token = None  # for good: who was asked last may send us anywhere
        raise Misdirected("it redirects in circles")

    async def ask(self, method: str, url: str, headers: Mapping[str, str], *, token: Secret | None) -> Heard:
        """One request whose answer is small. Nothing is followed; what it raises is that of ``get``."""
        return await self._hop(method, _parsed(url), headers, token, None)

    async def reach(self, url: str) -> None:
        """Make ready for requests to ``url``, without one; ``ConfigError`` for certificates that cannot be read."""
        await self._pool(_parsed(url))

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    async def _hop(
        self, method: str, at: SplitResult, headers: Mapping[str, str], token: Secret | None, body: Body | None
    ) -> Heard:
        pool = await self._pool(at)
        addresses = await pool.addresses()

        def work(halt: Halt) -> Heard:
            head = _head(method, at, headers, token)
            if body is None:
                return pool.exchange(halt, Job(head), addresses)
            job = Job(head, sink=body, placing=body.place, seen=_unless_moved(body))
            heard = pool.exchange(halt, job, addresses)
            if heard.status not in MOVED and not halt.called:
                body.done(heard)
            return heard

        return await in_stoppable_thread(work, limiter=self._threads)

    async def _pool(self, at: SplitResult) -> Pool:
        origin = _origin(at)
        async with self._opening:
            known: Pool | None = self._pools.pop(origin, None)
            pool = known if known is not None else await in_thread(self._open, origin)
            self._pools[origin] = pool
            while len(self._pools) > _HOSTS:
                self._pools.pop(next(iter(self._pools))).close()  # the one that was not asked for longest
        return pool

    def _open(self, origin: str) -> Pool:
        is_tls = origin.startswith("https:")
        if is_tls and self._tls is None:
            self._tls = self._make_tls()
        tls = self._tls if is_tls else None
        proxy, idle_s = self._proxy_for(origin), self._idle_s
        return Pool(Endpoint.of(origin, tls=tls, proxy=proxy, idle_s=idle_s, name_hint=_CHECK_ADDRESS))


def _unless_moved(body: Body) -> Callable[[Heard], None]:
    def see(heard: Heard) -> None:
        if heard.status not in MOVED:
            body.see(heard)

    return see


def _head(method: str, at: SplitResult, headers: Mapping[str, str], token: Secret | None) -> h11.Request:
    own = {"Host": at.netloc, "User-Agent": f"r2d1/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
    if token is not None:
        own["Authorization"] = f"Bearer {token.reveal()}"
    target = (at.path or "/") + (f"?{at.query}" if at.query else "")
    try:
        return h11.Request(method=method, target=target, headers=[*own.items(), *headers.items()])
    except h11.LocalProtocolError:
        pass
    raise Misdirected("it is no HTTP URL that can be asked for")


def _next(at: SplitResult, heard: Heard) -> SplitResult:
    """Where a redirect leads: its ``Location`` is UTF-8 where it is not ASCII."""
    location = heard.headers.get("location", "").encode("latin-1").decode("utf-8", "surrogateescape")
    try:
        return _parsed(urljoin(at.geturl(), location))
    except ValueError:
        pass
    raise Misdirected("it redirects to what is no HTTP URL")


def is_address(text: str) -> bool:
    """Whether requests can be made to a URL: its scheme is known, and its host one that a name server can be asked."""
    try:
        _parsed(text)
    except Misdirected:
        return False
    return True


def _parsed(text: str) -> SplitResult:
    """A URL as it goes over the wire: ASCII, without user and fragment, the port only where it is an unusual one."""
    try:
        url = urlsplit(text)
        host, port = (url.hostname or "").encode("idna").decode(), url.port
    except ValueError:
        host, port = "", None
    if not host or url.scheme not in ("http", "https"):
        raise Misdirected("it redirects to what is no HTTP URL")
    netloc = f"[{host}]" if ":" in host else host
    if port is not None and port != (443 if url.scheme == "https" else 80):
        netloc += f":{port}"
    path, query = (quote(part, safe=_SAFE, errors="surrogateescape") for part in (url.path, url.query))
    return SplitResult(url.scheme, netloc, path, query, "")


def _is_home(before: SplitResult, at: SplitResult) -> bool:
    """Whether a token for the one address may be sent to the other: the same host and port, and no less safe a way."""
    return at.netloc == before.netloc and at.scheme in (before.scheme, "https")


def _origin(at: SplitResult) -> str:
    return f"{at.scheme}://{at.netloc}"
