"""The data plane: bodies up and ranges down on worker threads, each with a kept-alive connection of its own.

Why beside aioboto3: asyncio copies a large write several times and decrypts on the loop's thread. A thread that
blocks in the kernel, in OpenSSL or in BLAKE3 holds no lock, so several move bytes at once while the training loop
runs. Requests are signed by botocore and heads parsed by h11; everything but bodies stays with aioboto3.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import h11
from botocore.parsers import ResponseParserError

from r2d1.errors import ConfigError, NotSent, RemoteError, RemoteUnavailable
from r2d1.objects import Sink, Source
from r2d1.objects import r2_shapes as shapes
from r2d1.objects.r2_errors import NOT_S3, Redact, refusal
from r2d1.objects.r2_refusals import CHECK_NETWORK, error_for
from r2d1.objects.wire_connect import Address, Endpoint, NotConnected
from r2d1.objects.wire_exchange import Heard, Job
from r2d1.objects.wire_link import LinkBroken, LinkSilent
from r2d1.objects.wire_pool import Pool
from r2d1.objects.wire_words import Answer, Signer, answer_of, error_of
from r2d1.tasks import Halt, in_stoppable_thread

if TYPE_CHECKING:
    from r2d1.settings import Settings


@dataclass(frozen=True, slots=True)
class Request:
    """A body up, or with a ``sink`` a range down. ``params`` are botocore's.

    ``placing`` looks at a good answer and says ``(bytes to pass over, bytes wanted)`` of its body.
    """

    operation: str
    params: Mapping[str, Any]
    source: Source | None = None
    sha256: str | None = None
    sink: Sink | None = None
    placing: Callable[[Answer], tuple[int, int]] | None = None

    @property
    def key(self) -> str:
        return str(self.params["Key"])

    @property
    def method(self) -> str:
        return "GET" if self.operation == "GetObject" else "PUT"

    @property
    def size(self) -> int | None:
        return self.source.size if self.source is not None else None

    def place(self, heard: Heard) -> tuple[int, int]:
        assert self.placing is not None
        return self.placing(answer_of(heard))

    def read(self, heard: Heard) -> Answer:
        """What was heard in botocore's words, if an S3 server said it."""
        answer = answer_of(heard)
        shapes.require_s3(self.operation, self.key, answer)
        return answer


#: Makes one request in the worker thread it is called in; raises what ``ObjectStore`` says.
Ask = Callable[[Request], Heard]


class Wire:
    """One bucket's data plane. Making it reads certificates: do so in a worker thread.

    At most as many connections are open as calls are under way; the caller bounds those.
    """

    def __init__(self, settings: Settings, *, idle_s: float, redact: Redact) -> None:
        assert settings.r2_endpoint is not None
        is_tls = settings.r2_endpoint.startswith("https:")
        self._base = f"{settings.r2_endpoint}/{settings.bucket}"
        endpoint = Endpoint.of(
            settings.r2_endpoint,
            tls=settings.ssl_context() if is_tls else None,
            proxy=settings.proxy_for(settings.r2_endpoint),
            idle_s=idle_s,
        )
        self._pool = Pool(endpoint)
        self._signer = Signer(settings)
        self._redact = redact
        # Rows of small requests are Python's work more than anybody's: threads that queue for it here cost less than
        # threads that hand each other the interpreter's lock at every system call.
        self._turn = threading.Lock()

    async def send(
        self,
        operation: str,
        params: Mapping[str, Any],
        source: Source,
        sha256: str | None,
        limiter: anyio.CapacityLimiter,
    ) -> Answer:
        """Send a body; ``params`` are botocore's. Returns the answer, raises what ``ObjectStore`` says."""
        request = Request(operation, params, source, sha256)
        return request.read(await self._run(request, limiter))

    async def fetch(
        self,
        params: Mapping[str, Any],
        sink: Sink,
        placing: Callable[[Answer], tuple[int, int]],
        limiter: anyio.CapacityLimiter,
    ) -> int:
        """Fetch (a part of) an object into ``sink``; returns the bytes that came."""
        request = Request("GetObject", params, sink=sink, placing=placing)
        return (await self._run(request, limiter)).came

    async def together(self, work: Callable[[Ask], None], limiter: anyio.CapacityLimiter) -> None:
        """Run ``work`` in one worker thread, where it makes one request after another."""
        with self._translated("connect", self._base):
            addresses = await self._pool.addresses()

        def run(halt: Halt) -> None:
            def ask(request: Request) -> Heard:
                with self._translated(request.operation, request.key):
                    return self._ask(request, halt, addresses, self._turn)

            work(ask)

        await in_stoppable_thread(run, limiter=limiter)

    def close(self) -> None:
        self._pool.close()

    async def _run(self, request: Request, limiter: anyio.CapacityLimiter) -> Heard:
        with self._translated(request.operation, request.key):
            addresses = await self._pool.addresses()
            return await in_stoppable_thread(lambda halt: self._ask(request, halt, addresses), limiter=limiter)

    def _ask(
        self, request: Request, halt: Halt, addresses: tuple[Address, ...], turn: threading.Lock | None = None
    ) -> Heard:
        with turn or nullcontext():
            head = self._signer.sign(
                request.method, self._base, request.params, size=request.size, sha256=request.sha256
            )
        heard = self._pool.exchange(halt, Job(head, request.source, request.sink, request.place), addresses, turn)
        if heard.status >= 300:
            raise error_for(request.operation, request.key, refusal(error_of(heard), self._redact))
        return heard

    def _translated(self, operation: str, key: str) -> AbstractContextManager[None]:
        return _translated(operation, key, idle_s=self._pool.endpoint.idle_s, redact=self._redact)


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
