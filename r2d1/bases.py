"""Reading what is published from an HTTP base: one ranged GET an attempt, every answer checked, nothing believed.

A base may redirect to another host; the range goes along, a token does not. What a base says is compared with what
was asked for, so that one that lies about ranges fails like one that is dead.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

import anyio

from r2d1 import network
from r2d1.errors import (
    AccessRefused,
    ConfigError,
    NameRefused,
    NotSent,
    ObjectNotFound,
    RangeRefused,
    RemoteError,
    RemoteUnavailable,
    Throttled,
)
from r2d1.events import Teller
from r2d1.keys import shown
from r2d1.objects import ByteRange
from r2d1.objects.r2_refusals import retry_after_of
from r2d1.objects.wire_connect import NotConnected
from r2d1.objects.wire_link import LinkBroken, LinkSilent
from r2d1.objects.wire_web import Misdirected, Web, is_address
from r2d1.retry import Brake, RetryPolicy, retried
from r2d1.secret import Secret
from r2d1.setting_rules import plain, web_url
from r2d1.settings import Settings

if TYPE_CHECKING:
    from r2d1.objects.wire_exchange import Heard

T = TypeVar("T")
#: Bytes that came.
Data = bytes | bytearray

#: A base that sends nothing for so long has failed.
IDLE_S = 30.0
#: A base slower than this, in bytes per second, has failed as well: a trickle never ends.
SLOWEST = 32 << 10

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
        if not problem and not is_address(self.url):
            problem = "the name of its host is none that can be looked up"
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
    data: Data


@dataclass(slots=True)
class BaseReader:
    """Connections to one base; made by ``open_reader``."""

    base: Base
    web: Web = field(repr=False)
    idle_s: float = IDLE_S
    rng: random.Random = field(default_factory=random.Random, repr=False)  # making one takes a millisecond

    def url_of(self, key: str) -> str:
        """Where a key can be read. ``NameRefused`` for one that is no Unicode text."""
        try:
            return f"{self.base.url}/{quote(key)}"
        except UnicodeEncodeError:
            raise NameRefused(f"the key {shown(key)} is no Unicode text, and cannot be read from a base") from None

    async def read_range(self, key: str, span: ByteRange, *, origin: str | None = None) -> Answer:
        """The bytes of ``span``, in one attempt. A 200 with the whole object is sliced.

        ``RemoteError`` for any other status, another range than the one asked for, or too few or too many bytes.
        """
        headers = {"Range": f"bytes={span.start}-{span.stop - 1}", **({"Origin": origin} if origin else {})}
        body = _Body(self.url_of(key), span.size, span)
        heard = await self._get(headers, body, within=span.stop)
        return Answer(heard.status, heard.headers, body.data)

    async def read_checked(self, key: str, span: ByteRange, sha256: str, keep: Callable[[Data], T]) -> T:
        """``read_range`` of bytes that have this SHA-256 (hex): ``keep`` gets them, in the thread that read them.

        Returns what that returns. ``WrongBytes`` for others.
        """
        kept: list[T] = []

        def check(body: _Body) -> None:
            if (found := body.hash.hexdigest()) != sha256:
                reason = f"bytes {span.start}-{span.stop - 1} have the sha256 {found}, not {sha256}"
                raise WrongBytes("GET", body.url, reason=reason)
            kept.append(keep(body.data))

        body = _Body(self.url_of(key), span.size, span, check)
        await self._get({"Range": f"bytes={span.start}-{span.stop - 1}"}, body, within=span.stop)
        return kept[0]

    async def read_whole(self, key: str, *, limit: int) -> bytes:
        """A whole object of at most ``limit`` bytes, in one attempt."""
        body = _Body(self.url_of(key), limit)
        await self._get({}, body, within=limit)
        return bytes(body.data)

    async def preflight(self, key: str, *, origin: str) -> Answer:
        """What a browser asks before a page of ``origin`` may read a range; it follows no redirect then."""
        asked = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "range"}
        url = self.url_of(key)
        ask = partial(self.web.ask, "OPTIONS", url, {"Origin": origin, **asked}, token=self.base.token)
        heard = await self._heard("OPTIONS", url, ask, within=0)
        return Answer(heard.status, heard.headers, b"")

    async def _get(self, headers: Mapping[str, str], body: _Body, *, within: int) -> Heard:
        """One attempt at an object of which at most ``within`` bytes have to come."""
        get = partial(self.web.get, body.url, headers, body, token=self.base.token)
        return await self._heard("GET", body.url, get, within=within)

    async def _heard(self, method: str, url: str, ask: Callable[[], Awaitable[Heard]], *, within: int) -> Heard:
        """What ``ask`` returns; ends what is too slow, and raises our errors for those of the connection.

        They are raised outside of the handlers, without where they come from: the frames there hold the request,
        and with it the token.
        """
        try:
            with anyio.fail_after(2 * self.idle_s + within / SLOWEST):
                return await ask()
        except RemoteError as exc:
            failure = exc
        except (TimeoutError, LinkSilent):
            failure = RemoteUnavailable(method, url, reason="it is too slow, or has stopped in the middle")
        except LinkBroken as exc:
            failure = RemoteUnavailable(method, url, reason=str(exc))
        except Misdirected as exc:
            failure = RemoteError(method, url, reason=str(exc))
        except NotConnected as exc:
            failure = NotSent(method, url, reason=exc.reason, hint=exc.hint, status=exc.status)
            failure.transient = exc.may_pass
        raise failure.with_traceback(None)


@dataclass(slots=True)
class _Body:
    """The body of a GET: a ``span`` of an object, or without one the whole; judged, kept and hashed as it comes.

    ``then`` is called when the right number of bytes has come. All of it is the worker thread's work.
    """

    url: str
    size: int  # of the span, or the most that a whole object may have
    span: ByteRange | None = None
    then: Callable[[_Body], None] | None = None
    data: bytearray = field(default_factory=bytearray, repr=False)
    hash: hashlib._Hash = field(default_factory=hashlib.sha256, repr=False)

    def see(self, heard: Heard) -> None:
        if heard.status != 200 and (self.span is None or heard.status != 206):
            raise _refusal("GET", self.url, heard)
        if heard.headers.get("content-encoding", "identity") != "identity":
            raise RemoteError("GET", self.url, reason="the body came compressed, so no byte of it can be told")

    def place(self, heard: Heard) -> tuple[int, int]:
        if self.span is None:
            return 0, self.size + 1  # one more than may come, so that it shows
        skip = _skipped(heard, self.url, self.span)
        return skip, self.size if _is_whole(heard) else self.size + 1

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self.data += block
        self.hash.update(block)

    def done(self, heard: Heard) -> None:
        came, is_more = len(self.data), len(self.data) > self.size
        if self.span is None and is_more:
            raise RemoteError("GET", self.url, reason=f"more than {self.size} bytes came")
        if self.span is not None and came != self.size:
            said = "more" if is_more else str(came)
            raise RemoteUnavailable("GET", self.url, reason=f"{said} of {self.size} bytes came")
        if self.then is not None:
            self.then(self)


def _is_whole(heard: Heard) -> bool:
    return heard.status == 200 and "content-range" not in heard.headers


def _skipped(heard: Heard, url: str, span: ByteRange) -> int:
    """How many bytes of the body come before the span; ``RemoteError`` for an answer that cannot hold it."""
    if _is_whole(heard):
        return span.start
    match = _CONTENT_RANGE.fullmatch(heard.headers.get("content-range", ""))
    if match is None:
        raise RemoteError("GET", url, reason="the answer's Content-Range is missing or cannot be read")
    if (int(match[1]), int(match[2]) + 1) != (span.start, span.stop):
        asked = f"bytes {span.start}-{span.stop - 1} were asked for"
        raise RemoteError("GET", url, reason=f"{asked}, {match[1]}-{match[2]} came")
    return 0


def _refusal(operation: str, url: str, heard: Heard) -> RemoteError:
    status = heard.status
    kind = _BY_STATUS.get(status, RemoteUnavailable if status >= 500 else RemoteError)
    return kind(
        operation,
        url,
        status=status,
        request_id=heard.headers.get("cf-ray"),
        retry_after=retry_after_of(heard.headers.get("retry-after")),
        hint="Check that this is the base of the set, prefix included" if kind is ObjectNotFound else "",
    )


@asynccontextmanager
async def open_reader(
    base: str | Base, *, settings: Settings | None = None, connections: int = 8, idle_s: float = IDLE_S
) -> AsyncIterator[BaseReader]:
    """Open a base. Proxy and CA are those of ``settings``; without them the way is direct, the CAs the system's."""
    opened = Base.of(base)
    make_tls = settings.ssl_context if settings else partial(network.ssl_context, None, label="")
    web = Web(make_tls=make_tls, proxy_for=_proxies(settings), at_once=connections, idle_s=idle_s)
    try:
        await web.reach(opened.url)
        yield BaseReader(opened, web, idle_s)
    finally:
        web.close()


def _proxies(settings: Settings | None) -> Callable[[str], str | None]:
    return settings.proxy_for if settings else lambda _url: None


#: How often one base is asked for one thing before the next base is.
TRIES = RetryPolicy(attempts=3, budget_s=120.0, base_s=0.1, cap_s=1.0, longest_wait_s=30.0)


async def read_kept(
    reader: BaseReader,
    key: str,
    span: ByteRange,
    sha256: str,
    keep: Callable[[Data], T],
    *,
    tell: Teller,
    policy: RetryPolicy = TRIES,
) -> T:
    """``read_checked``; any wrong answer is tried again. ``RemoteError`` at the end."""
    # A brake of its own: units do not wait for each other, as there may be another base.
    brake = Brake(reader.rng)
    read = partial(reader.read_checked, key, span, sha256, keep)
    return await retried(read, policy=policy, brake=brake, tell=tell, again=_always)


async def read_verified(
    reader: BaseReader, key: str, span: ByteRange, sha256: str, *, tell: Teller, policy: RetryPolicy = TRIES
) -> Data:
    """``read_kept`` that returns the bytes."""
    return await read_kept(reader, key, span, sha256, _themselves, tell=tell, policy=policy)


def _themselves(data: Data) -> Data:
    return data


def sha256_of(data: Data) -> str:
    """The SHA-256 of a buffer, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _always(error: RemoteError) -> bool:
    return True
