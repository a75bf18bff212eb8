"""The data plane: bodies up and ranges down on worker threads, each with a kept-alive connection of its own.

Why beside aioboto3: asyncio copies a large write several times and decrypts on the loop's thread. A thread that
blocks in the kernel, in OpenSSL or in BLAKE3 holds no lock, so several move bytes at once while the training loop
runs. Requests are signed by botocore and heads parsed by h11; everything but bodies stays with aioboto3.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import h11
from botocore.parsers import ResponseParserError

from r2d1.errors import ConfigError, NotSent, RemoteError, RemoteUnavailable
from r2d1.objects import Sink, Source
from r2d1.objects import r2_shapes as shapes
from r2d1.objects.r2_errors import CHECK_NETWORK, NOT_S3, Redact, refusal
from r2d1.objects.r2_refusals import error_for
from r2d1.objects.wire_connect import Address, Addresses, Endpoint, NotConnected, connect
from r2d1.objects.wire_exchange import Heard, Job, Placing, converse
from r2d1.objects.wire_link import Link, LinkBroken, LinkSilent
from r2d1.objects.wire_words import Answer, Signer, answer_of, error_of
from r2d1.tasks import Halt, in_stoppable_thread

if TYPE_CHECKING:
    from r2d1.settings import Settings

#: Seconds an idle connection is kept: short of what servers and middle boxes usually allow.
_KEEPALIVE_S = 15.0


class Wire:
    """One bucket's data plane. Making it reads certificates: do so in a worker thread.

    At most as many connections are open as calls are under way; the caller bounds those.
    """

    def __init__(self, settings: Settings, *, idle_s: float, redact: Redact) -> None:
        assert settings.r2_endpoint is not None
        is_tls = settings.r2_endpoint.startswith("https:")
        self._base = f"{settings.r2_endpoint}/{settings.bucket}"
        self._endpoint = Endpoint.of(
            settings.r2_endpoint,
            tls=settings.ssl_context() if is_tls else None,
            proxy=settings.proxy_for(settings.r2_endpoint),
            idle_s=idle_s,
        )
        self._addresses = Addresses(self._endpoint)
        self._signer = Signer(settings)
        self._redact = redact
        self._kept = _Kept()

    async def send(
        self,
        operation: str,
        params: Mapping[str, Any],
        source: Source,
        sha256: str | None,
        limiter: anyio.CapacityLimiter,
    ) -> Answer:
        """Send a body; ``params`` are botocore's. Returns the answer, raises what ``ObjectStore`` says."""
        heard = await self._run(operation, params, limiter, method="PUT", source=source, sha256=sha256)
        answer = answer_of(heard)
        shapes.require_s3(operation, params["Key"], answer)
        return answer

    async def fetch(
        self,
        params: Mapping[str, Any],
        sink: Sink,
        placing: Callable[[Answer], tuple[int, int]],
        limiter: anyio.CapacityLimiter,
    ) -> int:
        """Fetch (a part of) an object into ``sink``; returns the bytes that came."""

        def place(heard: Heard) -> tuple[int, int]:
            return placing(answer_of(heard))

        heard = await self._run("GetObject", params, limiter, method="GET", sink=sink, placing=place)
        return heard.came

    def close(self) -> None:
        self._kept.close()

    async def _run(
        self,
        operation: str,
        params: Mapping[str, Any],
        limiter: anyio.CapacityLimiter,
        *,
        method: str,
        source: Source | None = None,
        sha256: str | None = None,
        sink: Sink | None = None,
        placing: Placing | None = None,
    ) -> Heard:
        key = params["Key"]
        with _translated(operation, key, idle_s=self._endpoint.idle_s, redact=self._redact):
            addresses = await self._addresses.get()

            def work(halt: Halt) -> Heard:
                size = source.size if source is not None else None
                head = self._signer.sign(method, self._base, params, size=size, sha256=sha256)
                return self._exchange(halt, Job(head, source, sink, placing), addresses)

            heard = await in_stoppable_thread(work, limiter=limiter)
            if heard.status >= 300:
                raise error_for(operation, key, refusal(error_of(heard), self._redact))
        return heard

    def _exchange(self, halt: Halt, job: Job, addresses: tuple[Address, ...]) -> Heard:
        link = self._kept.take()
        if link is None:
            link, address = connect(self._endpoint, addresses, halt)
            self._addresses.prefer(address)
        try:
            with halt.calling(link.cut):
                link.base.begin()
                heard = converse(link, job)
        except BaseException:
            link.close()
            raise
        if heard.is_complete and not halt.called:
            self._kept.give(link)
        else:
            link.close()
        return heard


class _Kept:
    """Connections that wait for the next request, the latest used first."""

    def __init__(self) -> None:
        self._links: deque[Link] = deque()
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> Link | None:
        while True:
            with self._lock:
                if not self._links:
                    return None
                link = self._links.pop()
            if time.monotonic() - link.kept_at < _KEEPALIVE_S and link.is_fresh():
                return link
            link.close()

    def give(self, link: Link) -> None:
        link.kept_at = time.monotonic()
        old: list[Link] = []
        with self._lock:
            if self._closed:
                old.append(link)
            else:
                self._links.append(link)
            while self._links and link.kept_at - self._links[0].kept_at > _KEEPALIVE_S:
                old.append(self._links.popleft())
        for each in old:
            each.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links, self._links = self._links, deque()
        for link in links:
            link.close()


@contextmanager
def _translated(operation: str, key: str, *, idle_s: float, redact: Redact) -> Iterator[None]:
    """Raise r2d1's errors for what the connection did; those of sources and sinks pass through."""
    try:
        yield
    except NotConnected as exc:
        error = NotSent(operation, key, reason=redact(exc.reason), hint=exc.hint, status=exc.status)
        error.transient = exc.may_pass
        raise error from exc.__cause__
    except LinkBroken as exc:
        raise RemoteUnavailable(operation, key, reason=redact(str(exc)), hint=CHECK_NETWORK) from exc
    except LinkSilent as exc:
        raise RemoteUnavailable(
            operation, key, reason=f"nothing moved for {idle_s:g} seconds", hint=CHECK_NETWORK
        ) from exc
    except ResponseParserError as exc:
        raise RemoteError(operation, key, reason=redact(f"the answer cannot be read: {exc}"), hint=NOT_S3) from exc
    except h11.LocalProtocolError as exc:
        raise ConfigError(f"{operation} {key}: {redact(str(exc))}") from exc
