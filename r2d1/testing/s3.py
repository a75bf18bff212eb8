"""An S3 server for tests that behaves as R2 does: a real socket, a bucket model, a script of faults, a log."""

from __future__ import annotations

import asyncio
import itertools
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web
from anyio.from_thread import BlockingPortal, start_blocking_portal

from r2d1.testing.answers import Request, Service
from r2d1.testing.blob import Blob, BlobWriter
from r2d1.testing.bodies import Announced, BodyReader
from r2d1.testing.bucket import Bucket
from r2d1.testing.exchange import Exchange
from r2d1.testing.faults import Call, Fault, Script
from r2d1.testing.public import PUBLIC, Policy, PublicService
from r2d1.testing.requestlog import Count, RequestLog, RequestRecord
from r2d1.testing.rules import Rules
from r2d1.testing.sigv4 import Credentials, Head
from r2d1.testing.stored import Kept

ACCESS_KEY = "0123456789abcdef0123456789abcdef"
SECRET_KEY = "fedcba9876543210" * 4


#: Turns of the loop after which a connection that was just accepted is the server's: asyncio loses those that a
#: listener has taken and not yet handed over when it is closed.
_ACCEPT_STEPS = 4


class _Connection(web.RequestHandler):
    """A connection that knows its number; bodies are left as they come, heads may be as long as R2 allows."""

    __slots__ = ("number",)

    def __init__(self, server: web.Server, number: int) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # None switches it off
            lingering_time=0.0,
            auto_decompress=False,
            read_bufsize=1 << 20,
            max_line_size=32 << 10,
            max_field_size=32 << 10,
            max_headers=512,
        )
        self.number = number


class S3Double:
    """An R2 bucket on a free port of this host, served by a thread of its own until it is closed.

    ``rules`` say how strict it is (R2's own by default), ``faults`` what goes wrong, ``throttle`` how many bytes a
    second go through it in all (``None``: as fast as it can). ``certfile`` and ``keyfile`` switch TLS on. Bodies
    above ``spool_above`` bytes are kept in ``spool_dir`` instead of memory. ``after_request`` is called on the
    double's thread with the record of each request, before the reply of one that may have changed something leaves;
    what it raises is raised again by ``close``.
    """

    def __init__(
        self,
        *,
        rules: Rules | None = None,
        bucket: str = "checkpoints",
        access_key: str = ACCESS_KEY,
        secret_key: str = SECRET_KEY,
        session_token: str | None = None,
        faults: Iterable[Fault] = (),
        after_request: Callable[[RequestRecord], object] | None = None,
        throttle: float | None = None,
        certfile: str | Path | None = None,
        keyfile: str | Path | None = None,
        spool_dir: str | Path | None = None,
        spool_above: int = 16 << 20,
        clock: Callable[[], float] = time.time,
        keep_requests: int = 20_000,
    ) -> None:
        if bucket == PUBLIC:
            raise ValueError(f"{PUBLIC!r} is the path of the public endpoint, not a name for the bucket")
        self.model = Bucket(rules, clock=clock)
        self.faults = Script(faults)
        self.log = RequestLog(keep_requests)
        self.after_request = after_request
        self.throttle = throttle
        self.connections = 0
        self._service = Service(self.model, bucket, Credentials(access_key, secret_key, session_token))
        self._public = PublicService(self.model)
        self._tls = _tls_context(certfile, keyfile)
        self._certfile = certfile
        self._spool_dir, self._spool_above = spool_dir, spool_above
        self._failure: BaseException | None = None
        self._rays = itertools.count(1)
        self._throttled_until = 0.0
        self._port = 0
        self._running = ExitStack()
        self._portal: BlockingPortal | None = None
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[object]] = set()

    def __repr__(self) -> str:
        return f"<S3Double {self.url}/{self.bucket}>"

    # -- life ------------------------------------------------------------------------------------------------

    def start(self) -> S3Double:
        """Listen; ``url`` is known from here on."""
        self._portal = self._running.enter_context(start_blocking_portal(name="s3-double"))
        self._portal.call(self._open)
        return self

    def close(self) -> None:
        """Stop at once, cutting what is under way; raises what a hook raised, or a fault of the double itself.

        The bucket stays; ``start`` serves it again on the same port.
        """
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.call(self._shut)
            self._running.close()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except BaseException as failure:
            if error is None:
                raise
            error.add_note(f"the S3 double failed as well: {failure!r}")

    @contextmanager
    def refusing_connections(self) -> Iterator[None]:
        """Nobody listens on the port meanwhile, and connections that are open are cut."""
        self._call(self._stop_listening)
        try:
            yield
        finally:
            self._call(self._listen)

    def drop_connections(self) -> None:
        """Cut every connection that is open."""
        self._call(self._drop)

    # -- what tests ask for ------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port}"

    @property
    def public_url(self) -> str:
        """Where anyone may read the bucket's objects: ``<public_url>/<key>``."""
        return f"{self.url}/{PUBLIC}"

    @property
    def cors(self) -> Policy:
        """The public endpoint's CORS policy, a list of rules as R2's dashboard takes it; open unless it is set."""
        return self._public.cors

    @cors.setter
    def cors(self, policy: Policy) -> None:
        self._public.cors = policy

    @property
    def bucket(self) -> str:
        return self._service.name

    @property
    def access_key(self) -> str:
        return self._service.credentials.access_key

    @property
    def secret_key(self) -> str:
        return self._service.credentials.secret_key

    def rotate(self, access_key: str, secret_key: str, session_token: str | None = None) -> None:
        """Only this key pair is valid from now on."""
        self._service.credentials = Credentials(access_key, secret_key, session_token)

    def env(self) -> dict[str, str]:
        """The environment that points r2d1 at this bucket."""
        credentials = self._service.credentials
        env = {
            "R2D1_R2_ENDPOINT_URL": self.url,
            "R2D1_R2_BUCKET": self.bucket,
            "R2D1_R2_ACCESS_KEY": credentials.access_key,
            "R2D1_R2_SECRET_KEY": credentials.secret_key,
            "R2D1_R2_PUBLIC_BASE": self.public_url,
        }
        if credentials.session_token is not None:
            env["R2D1_SESSION_TOKEN"] = credentials.session_token
        if self._certfile is not None:
            env["R2D1_CA_BUNDLE"] = str(self._certfile)
        return env

    def put(self, key: str, data: bytes | Blob, **metadata: str) -> str:
        """Place an object whatever the rules say, without a request; returns its ETag."""
        return self.model.place(key, data, kept=Kept({}, metadata)).etag

    def get(self, key: str) -> bytes:
        """An object's bytes, without a request; ``KeyError`` when it is not there."""
        stored = self.model.stored(key)
        if stored is None:
            raise KeyError(key)
        return stored.blob.read()

    def delete(self, key: str) -> None:
        """Take an object away, without a request."""
        self.model.remove(key)

    def keys(self, prefix: str = "") -> list[str]:
        """The keys there are, in the order of a listing."""
        return self.model.keys(prefix)

    @property
    def requests(self) -> list[RequestRecord]:
        """The newest requests, in the order in which they were answered (a copy)."""
        return self.log.records()

    @property
    def counts(self) -> dict[str, Count]:
        """Requests and bytes by operation, from the beginning."""
        return self.log.counts()

    @property
    def open_uploads(self) -> int:
        """Multipart uploads that were begun and neither completed nor aborted."""
        return len(self.model.open_uploads())

    # -- for exchanges -----------------------------------------------------------------------------------------

    def new_reader(self, announced: Announced) -> BodyReader:
        writer = BlobWriter(spool_dir=self._spool_dir, spool_above=self._spool_above)
        return BodyReader(announced, writer, verify=self.model.rules.verify_bodies)

    def common_headers(self) -> dict[str, str]:
        """What every reply carries; the date is the bucket's, as its objects' times are."""
        date = formatdate(self.model.clock(), usegmt=True)
        return {"Date": date, "Server": "cloudflare", "cf-ray": f"{next(self._rays):016x}-TST"}

    def finished(self, record: RequestRecord) -> None:
        self.log.add(record)
        if self.after_request is not None:
            self.after_request(record)

    async def throttled(self, count: int) -> None:
        """Wait until ``count`` more bytes may pass."""
        if self.throttle is None:
            return
        now = asyncio.get_running_loop().time()
        self._throttled_until = max(now, self._throttled_until) + count / self.throttle
        await asyncio.sleep(self._throttled_until - now)

    # -- on the double's own loop ------------------------------------------------------------------------------

    def _call(self, func: Callable[[], object]) -> None:
        if self._portal is None:
            raise RuntimeError("the S3 double is not running; use it as a context manager")
        self._portal.call(func)

    async def _open(self) -> None:
        self._server = web.Server(self._handle)
        await self._listen()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._connected, "127.0.0.1", self._port, ssl=self._tls, family=socket.AF_INET, backlog=512
        )
        self._port = self._listener.sockets[0].getsockname()[1]

    def _connected(self) -> asyncio.Protocol:
        assert self._server is not None
        self.connections += 1
        return _Connection(self._server, self.connections)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            for _ in range(_ACCEPT_STEPS):
                await asyncio.sleep(0)
            self._listener.close()
            self._listener = None
        await self._drop()

    async def _drop(self) -> None:
        for protocol in self._server.connections if self._server else ():
            if protocol.transport is not None:
                protocol.transport.abort()
        await asyncio.sleep(0)

    async def _shut(self) -> None:
        await self._stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.shutdown(0.1)
        await asyncio.sleep(0)

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._exchange(http).run()
        except ConnectionError:
            return _nothing(http)
        except Exception as failure:
            self._failure = self._failure or failure
            return _nothing(http)
        finally:
            self._tasks.discard(task)

    def _exchange(self, http: web.BaseRequest) -> Exchange:
        request = Request(_head(http))
        is_public = request.target.bucket == PUBLIC
        if is_public:
            request.operation = f"Public{request.method.title()}Object"
        call = Call(
            number=self.log.next_number(),
            at=self.model.clock(),
            method=request.method,
            operation=request.operation,
            key=request.subject,
            query=request.query,
            headers=request.headers,
            part_number=request.part_number,
            size=request.content_length or 0,
            connection=http.protocol.number if isinstance(http.protocol, _Connection) else 0,
            access_key=request.access_key,
        )
        service = self._public if is_public else self._service
        return Exchange(self, service, http, request=request, call=call, action=self.faults.take(call))


def _nothing(http: web.BaseRequest) -> web.StreamResponse:
    """A reply that cannot be sent, as aiohttp wants one: the connection is over."""
    if http.transport is not None and not http.transport.is_closing():
        http.transport.abort()
    return web.Response()


def _head(http: web.BaseRequest) -> Head:
    path, _, query = http.raw_path.partition("?")
    headers = [(name.decode("latin-1").lower(), _text(value)) for name, value in http.raw_headers]
    return Head(http.method, path, query, headers)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _tls_context(certfile: str | Path | None, keyfile: str | Path | None) -> ssl.SSLContext | None:
    if certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certfile, keyfile)
    return context
