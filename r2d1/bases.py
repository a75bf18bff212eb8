"""Reading what is published from an HTTP base: one ranged GET an attempt, every answer checked, nothing believed.

A base may redirect to another host; the range goes along, a token does not. What a base says is compared with what
was asked for, so that one that lies about ranges fails like one that is dead.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import anyio

from r2d1 import __version__, network
from r2d1.errors import (
    AccessRefused,
    ConfigError,
    NotSent,
    ObjectNotFound,
    RangeRefused,
    RemoteError,
    RemoteUnavailable,
    Throttled,
)
from r2d1.events import Teller
from r2d1.objects import ByteRange
from r2d1.objects.r2_refusals import retry_after_of
from r2d1.retry import Brake, RetryPolicy, retried
from r2d1.secret import Secret
from r2d1.setting_rules import plain, web_url
from r2d1.settings import Settings
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    import httpx

#: A base that sends nothing for so long has failed.
IDLE_S = 30.0
CONNECT_S = 10.0
#: A base slower than this, in bytes per second, has failed as well: a trickle never ends.
SLOWEST = 32 << 10
#: Hashing more than this is left to a worker thread.
_INLINE = 64 << 10

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(?:\d{1,19}|\*)", re.ASCII)
_BY_STATUS: dict[int, type[RemoteError]] = {
    401: AccessRefused,
    403: AccessRefused,
    404: ObjectNotFound,
    410: ObjectNotFound,
    416: RangeRefused,
    429: Throttled,
}


class WrongBytes(RemoteError):
    """A base answered with other bytes than the hash says."""


@dataclass(frozen=True, slots=True)
class Base:
    """An HTTP URL under which published objects can be read: ``<url>/<key>``.

    ``token`` is sent as ``Authorization: Bearer`` to the host of ``url`` alone. ``ConfigError`` for a URL that
    is none, or that holds a user, a password, a query or a fragment.
    """

    url: str
    token: Secret | None = None

    def __post_init__(self) -> None:
        problem = web_url(self.url) if self.url else "it is empty"
        if not problem and self.token is not None and (complaint := plain(self.token.reveal())):
            problem = f"its token: {complaint}"
        if problem:
            raise ConfigError(f"a base cannot be used: {problem}")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @classmethod
    def of(cls, base: str | Base) -> Base:
        """A base given as one or as its URL."""
        return base if isinstance(base, Base) else cls(base)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a base answered. ``headers`` have lower-case names; ``data`` are the bytes asked for."""

    status: int
    headers: Mapping[str, str]
    data: bytes


@dataclass(slots=True)
class BaseReader:
    """Connections to one base; made by ``open_reader``."""

    base: Base
    http: httpx.AsyncClient = field(repr=False)
    idle_s: float = IDLE_S

    def url_of(self, key: str) -> str:
        """Where a key can be read."""
        return f"{self.base.url}/{quote(key)}"

    async def read_range(self, key: str, span: ByteRange, *, origin: str | None = None) -> Answer:
        """The bytes of ``span``, in one attempt. A 200 with the whole object is sliced.

        ``RemoteError`` for any other status, another range than the one asked for, or too few or too many bytes.
        """
        headers = {"Range": f"bytes={span.start}-{span.stop - 1}", **({"Origin": origin} if origin else {})}
        async with self._answering("GET", key, headers, span.stop) as response:
            skip = _skipped(response, self.url_of(key), span)
            data = await self._take(response, key, skip, span.size, is_partial=response.status_code == 206)
            return Answer(response.status_code, _lowered(response), data)

    async def read_whole(self, key: str, *, limit: int) -> bytes:
        """A whole object of at most ``limit`` bytes, in one attempt."""
        async with self._answering("GET", key, {}, limit) as response:
            if response.status_code != 200:
                raise _refusal("GET", self.url_of(key), response)
            data = bytearray()
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > limit:
                    raise RemoteError("GET", self.url_of(key), reason=f"more than {limit} bytes came")
            return bytes(data)

    async def preflight(self, key: str, *, origin: str) -> Answer:
        """What a browser asks before a page of ``origin`` may read a range."""
        asked = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "range"}
        async with self._answering("OPTIONS", key, {"Origin": origin, **asked}, 0) as response:
            return Answer(response.status_code, _lowered(response), b"")

    @asynccontextmanager
    async def _answering(
        self, method: str, key: str, headers: Mapping[str, str], size: int
    ) -> AsyncIterator[httpx.Response]:
        """An answer whose body is still to be read; the library's errors become ours.

        They are raised outside of the handler: the library's hold the request, and with it the token.
        """
        import httpx

        url = self.url_of(key)
        try:
            with anyio.fail_after(2 * self.idle_s + size / SLOWEST):
                async with self.http.stream(method, url, headers=headers) as response:
                    yield response
                    return
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as exc:
            failure = self._failure(method, url, exc)
        raise failure

    async def _take(self, response: httpx.Response, key: str, skip: int, size: int, *, is_partial: bool) -> bytes:
        """``size`` bytes of a body after ``skip``. The rest of a whole object is left unread."""
        data = bytearray()
        async with aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                data += memoryview(chunk)[skip:]
                skip = max(0, skip - len(chunk))
                if len(data) > size or (len(data) == size and not is_partial):
                    break
        if len(data) < size or (is_partial and len(data) > size):
            said = "more" if len(data) > size else str(len(data))
            raise RemoteUnavailable("GET", self.url_of(key), reason=f"{said} of {size} bytes came")
        return bytes(data[:size])

    def _failure(self, method: str, url: str, exc: Exception) -> RemoteError:
        import httpx

        text = f"{type(exc).__name__}: {exc}".removesuffix(": ")
        if isinstance(exc, TimeoutError | httpx.ReadTimeout):
            return RemoteUnavailable(method, url, reason="it is too slow, or has stopped in the middle")
        if isinstance(exc, httpx.TooManyRedirects | httpx.InvalidURL | httpx.UnsupportedProtocol):
            return RemoteError(method, url, reason="it redirects in circles, or to what is no HTTP URL")
        if "CERTIFICATE_VERIFY_FAILED" in text:
            hint = "The server's certificate is not trusted: set R2D1_CA_BUNDLE if a private authority signed it"
            return RemoteError(method, url, reason="TLS failed", hint=hint)
        if isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
            return NotSent(method, url, reason=_without_proxy(text), hint="Check the address and the network")
        return RemoteUnavailable(method, url, reason=_without_proxy(text))


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_raw():
        yield chunk


def _without_proxy(text: str) -> str:
    """An error's text without user and password of a URL in it."""
    return re.sub(r"://[^/@\s]*@", "://****@", text)


def _skipped(response: httpx.Response, url: str, span: ByteRange) -> int:
    """How many bytes of the body come before the span; ``RemoteError`` for an answer that cannot hold it."""
    if response.status_code not in (200, 206):
        raise _refusal("GET", url, response)
    if response.headers.get("content-encoding", "identity") != "identity":
        raise RemoteError("GET", url, reason="the body came compressed, so no range of it can be told")
    said = response.headers.get("content-range")
    match = _CONTENT_RANGE.fullmatch(said or "")
    if match is None and (response.status_code == 206 or said):
        raise RemoteError("GET", url, reason="the answer's Content-Range is missing or cannot be read")
    if match is None:
        return span.start
    if (int(match[1]), int(match[2]) + 1) != (span.start, span.stop):
        asked = f"bytes {span.start}-{span.stop - 1} were asked for"
        raise RemoteError("GET", url, reason=f"{asked}, {match[1]}-{match[2]} came")
    return 0


def _refusal(operation: str, url: str, response: httpx.Response) -> RemoteError:
    status = response.status_code
    kind = _BY_STATUS.get(status, RemoteUnavailable if status >= 500 else RemoteError)
    return kind(
        operation,
        url,
        status=status,
        request_id=response.headers.get("cf-ray"),
        retry_after=retry_after_of(response.headers.get("retry-after")),
        hint="Is this the base of the set, prefix included?" if kind is ObjectNotFound else "",
    )


def _lowered(response: httpx.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


@asynccontextmanager
async def open_reader(
    base: str | Base, *, settings: Settings | None = None, connections: int = 8, idle_s: float = IDLE_S
) -> AsyncIterator[BaseReader]:
    """Open a base. Proxy and CA are those of ``settings``; without them the way is direct, the CAs the system's."""
    opened = Base.of(base)
    http = await in_thread(_open, opened, settings, connections, idle_s)
    try:
        yield BaseReader(opened, http, idle_s)
    finally:
        with anyio.CancelScope(shield=True):
            await http.aclose()


def _open(base: Base, settings: Settings | None, connections: int, idle_s: float) -> httpx.AsyncClient:
    """The client. Blocks: imports the library and reads certificates."""
    from http.cookiejar import DefaultCookiePolicy

    import httpx

    _quieten()
    context = settings.ssl_context() if settings else network.ssl_context(None, label="")
    proxy = settings.proxy_for(base.url) if settings else None
    headers = {"Accept-Encoding": "identity", "User-Agent": f"r2d1/{__version__}"}
    if base.token is not None:
        headers["Authorization"] = f"Bearer {base.token.reveal()}"
    try:
        http = httpx.AsyncClient(
            headers=headers,
            verify=context,
            proxy=proxy,
            timeout=httpx.Timeout(idle_s, connect=min(CONNECT_S, idle_s), pool=None),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=False,
            follow_redirects=True,
            max_redirects=5,
            http2=False,
        )
        http.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # a base is asked anew each time
        return http
    except (ValueError, ImportError, httpx.InvalidURL):
        failure = ConfigError("HTTPS_PROXY: not the URL of a proxy that can be used (http://host:port)")
    raise failure  # without their context, which shows the proxy's password


class _WithoutQueries(logging.Filter):
    """Takes the query out of the URLs that httpx logs: that of a redirect is often a signature."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_bare(each) if type(each).__name__ == "URL" else each for each in record.args)
        return True


def _bare(url: object) -> str:
    return urlsplit(str(url))._replace(query="", fragment="").geturl()


class _NoHeaders(logging.Filter):
    """Keeps httpcore's debug lines, which hold headers, out of everybody's log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO


_WITHOUT_QUERIES, _NO_HEADERS = _WithoutQueries(), _NoHeaders()


def _quieten() -> None:
    logging.getLogger("httpx").addFilter(_WITHOUT_QUERIES)
    for name in ("http11", "http2", "proxy", "connection"):
        logging.getLogger(f"httpcore.{name}").addFilter(_NO_HEADERS)


#: How often one base is asked for one thing before the next base is.
TRIES = RetryPolicy(attempts=3, budget_s=120.0, base_s=0.1, cap_s=1.0, longest_wait_s=30.0)


async def read_verified(
    reader: BaseReader, key: str, span: ByteRange, sha256: str, *, tell: Teller, policy: RetryPolicy = TRIES
) -> bytes:
    """The bytes of ``span`` with this SHA-256 (hex); any wrong answer is tried again. ``RemoteError`` at the end."""

    async def once() -> bytes:
        answer = await reader.read_range(key, span)
        found = await _hashed(answer.data)
        if found != sha256:
            reason = f"bytes {span.start}-{span.stop - 1} have the sha256 {found}, not {sha256}"
            raise WrongBytes("GET", reader.url_of(key), reason=reason)
        return answer.data

    # A brake of its own: units do not wait for each other, as there may be another base.
    return await retried(once, policy=policy, brake=Brake(), tell=tell, again=_always)


async def _hashed(data: bytes) -> str:
    return sha256_of(data) if len(data) <= _INLINE else await in_thread(sha256_of, data)


def sha256_of(data: bytes) -> str:
    """The SHA-256 of a buffer, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _always(error: RemoteError) -> bool:
    return True
