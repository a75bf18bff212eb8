"""The D1 double: Cloudflare's D1 REST API on a real loopback socket, strict, and able to fail by script.

For the tests of r2d1 and of those who use it::

    with D1Double() as d1:
        d1.script(lost_reply())                       # the first call commits, its answer is lost
        settings = Settings.from_env(environ=d1.settings_env() | {...})
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from aiohttp import web

from r2d1.testing.d1_rules import ACCOUNT_ID, API_TOKEN, DATABASE_ID, Answer, CallLimit, D1Rules, refusal
from r2d1.testing.faults import Gate

if TYPE_CHECKING:
    import ssl

_LONGEST_BODY = 128 * 2**20
_LOG_LENGTH = 10_000
_STOP_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What befalls one request: a wait, then the statements run or not, then an answer, whole or not.

    ``delay_s`` and ``gate`` come before anything runs, ``reply_gate`` after. ``runs``: whether the statements do.
    ``answer`` is said in place of the rules' own. ``cut_after``: the connection is reset after so many bytes of the
    answer's body, with -1 before the status line. ``drip_s``: seconds between the body's single bytes. The functions
    below make the usual ones.
    """

    delay_s: float = 0.0
    gate: Gate | None = None
    reply_gate: Gate | None = None
    runs: bool = True
    answer: Answer | None = None
    cut_after: int | None = None
    drip_s: float | None = None


NO_FAULT = Fault()


def refused(status: int, code: int, message: str = "", *, headers: Mapping[str, str] | None = None) -> Fault:
    """Nothing runs; status and code as given (also a 200 that says ``"success": false``)."""
    answer = refusal(status, code, message)
    return Fault(runs=False, answer=Answer(status, answer.document, {**answer.headers, **(headers or {})}))


def throttled(retry_after: str | None = None) -> Fault:
    """Nothing runs: 429, code 971, with ``Retry-After`` as given (seconds or a date)."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return refused(429, 971, "Please wait and consider throttling your request speed", headers=headers)


def overloaded() -> Fault:
    """Nothing runs: D1's own queue is full."""
    return refused(429, 7500, "D1 DB is overloaded. Too many requests queued.")


def html(status: int = 502) -> Fault:
    """Nothing runs: a page of Cloudflare's edge in place of JSON."""
    page = b"<!DOCTYPE html><html><head><title>error</title></head></html>"
    return Fault(runs=False, answer=Answer(status, raw=page, headers={"Content-Type": "text/html; charset=UTF-8"}))


def empty(status: int = 200) -> Fault:
    """The statements run; the answer has no body."""
    return Fault(answer=Answer(status))


def statement_failed(message: str) -> Fault:
    """Nothing runs: 200 with ``"success": true`` at the top, and false for the statement."""
    item = {"success": False, "error": message, "results": []}
    document = {"success": True, "errors": [], "messages": [], "result": [item]}
    return Fault(runs=False, answer=Answer(200, document))


def lost_reply() -> Fault:
    """The statements run and are committed; the connection is reset without an answer."""
    return Fault(cut_after=-1)


def dropped() -> Fault:
    """The connection is reset and nothing runs."""
    return Fault(runs=False, cut_after=-1)


def cut(after: int) -> Fault:
    """The statements run; the answer ends after this many bytes of its body."""
    return Fault(cut_after=after)


def held(gate: Gate) -> Fault:
    """The request hangs until the gate opens and then goes on as if nothing had been."""
    return Fault(gate=gate)


def reply_held(gate: Gate) -> Fault:
    """The statements run and are committed; the answer waits for the gate."""
    return Fault(reply_gate=gate)


def delayed(seconds: float) -> Fault:
    return Fault(delay_s=seconds)


def trickled(seconds: float = 0.05) -> Fault:
    """The statements run; the answer comes byte by byte with this pause between."""
    return Fault(drip_s=seconds)


@dataclass(frozen=True, slots=True)
class Logged:
    """One request: ``path`` with its query, ``body`` as JSON (bytes if it is none), status sent (``None`` if cut)."""

    method: str
    path: str
    body: Any = field(repr=False)
    status: int | None


class D1Double:
    """A D1 database behind the REST API, on a thread of its own; a context manager.

    ``url`` is the base URL (``…/client/v4``), ``requests`` the last requests, ``rules`` what answers; ``sql`` plants
    and looks at rows without a request. ``stop`` keeps rows and port, so that a later ``start`` is "D1 is back".
    ``connections`` counts those that carried a request. ``calls`` is Cloudflare's limit, 1,200 in 300 s: r2d1 paces
    itself by it, so give a larger one to tests that are about something else.
    """

    def __init__(
        self,
        *,
        account_id: str = ACCOUNT_ID,
        database_id: str = DATABASE_ID,
        api_token: str = API_TOKEN,
        calls: CallLimit | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.account_id = account_id
        self.database_id = database_id
        self.api_token = api_token
        self.rules = D1Rules(account_id=account_id, database_id=database_id, api_token=api_token)
        self.requests: deque[Logged] = deque(maxlen=_LOG_LENGTH)
        self.connections = 0
        self._calls = calls or CallLimit()
        self._ssl_context = ssl_context
        self._script: deque[Fault] = deque()
        self._always: Fault = NO_FAULT
        self._arrived = threading.Condition()
        self._gates: set[Gate] = set()
        self._seen: weakref.WeakSet[object] = weakref.WeakSet()
        self._rays = itertools.count(1)
        self._port = 0
        self._thread: threading.Thread | None = None
        self._stop_soon: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        scheme = "https" if self._ssl_context else "http"
        return f"{scheme}://127.0.0.1:{self._port}/client/v4"

    def settings_env(self) -> dict[str, str]:
        """The ``R2D1_*`` variables that make r2d1 use this double."""
        return {
            "R2D1_ACCOUNT_ID": self.account_id,
            "R2D1_API_TOKEN": self.api_token,
            "R2D1_D1_DATABASE_ID": self.database_id,
            "R2D1_D1_BASE_URL": self.url,
        }

    def script(self, *faults: Fault | None) -> None:
        """Add what befalls the next requests, one each and in order; ``None`` for one that goes well."""
        self._script.extend(fault or NO_FAULT for fault in faults)

    def always(self, fault: Fault | None) -> None:
        """What befalls every request for which the script has nothing; ``None`` ends it."""
        self._always = fault or NO_FAULT

    def sql(self, text: str, params: Sequence[object] = ()) -> list[dict[str, object]]:
        """Run one statement on the database itself and return its rows."""
        return self.rules.sql(text, params)

    def wait_for_requests(self, count: int, *, timeout_s: float = 10.0) -> None:
        """Block until so many requests are in the log (call it in a thread); ``TimeoutError`` when they do not come."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self.requests)} of {count} requests within {timeout_s:g} s")

    def start(self) -> None:
        """Listen on a free port of 127.0.0.1, or again on the one it had."""
        if self._thread is not None:
            raise RuntimeError("the double runs already")
        started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="d1-double", daemon=True)
        self._thread.start()
        try:
            started.result(timeout=_STOP_WITHIN_S)
        except BaseException:
            self._thread.join(_STOP_WITHIN_S)
            self._thread = None
            raise

    def stop(self) -> None:
        """Cut every connection and stop listening; held requests are let go first. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop_soon()
        thread.join(_STOP_WITHIN_S)
        if thread.is_alive():
            raise RuntimeError(f"the double did not stop within {_STOP_WITHIN_S:g} s")

    def close(self) -> None:
        """Stop, and throw the database away."""
        self.stop()
        self.rules.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _serve(self, started: Future[None]) -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        self._stop_soon = lambda: loop.call_soon_threadsafe(stopping.set)
        app = web.Application(client_max_size=_LONGEST_BODY)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        try:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", self._port, ssl_context=self._ssl_context, reuse_address=True)
            await site.start()
            self._port = runner.addresses[0][1]
            started.set_result(None)
            await stopping.wait()
        except OSError as exc:
            started.set_exception(exc)
        finally:
            for gate in self._gates:
                gate.release()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None and request.transport not in self._seen:
            self._seen.add(request.transport)
            self.connections += 1
        body = await request.read()
        fault = self._script.popleft() if self._script else self._always
        await asyncio.sleep(fault.delay_s)
        await self._hold(fault.gate)
        answer = self._answer(request, body, fault)
        await self._hold(fault.reply_gate)
        status = None if fault.cut_after is not None else answer.status
        with self._arrived:
            self.requests.append(Logged(request.method, request.path_qs, _as_json(body), status))
            self._arrived.notify_all()
        return await _send(request, answer, fault)

    async def _hold(self, gate: Gate | None) -> None:
        if gate is not None:
            self._gates.add(gate)
            await gate.hold()

    def _answer(self, request: web.Request, body: bytes, fault: Fault) -> Answer:
        is_allowed, headers = self._calls.take(time.monotonic())
        headers["cf-ray"] = f"{next(self._rays):016x}-LOC"
        if not is_allowed:
            answer = refusal(429, 971, "Please wait and consider throttling your request speed")
        elif fault.runs:
            answer = self.rules.answer(
                request.method,
                request.path,
                authorization=request.headers.get("Authorization"),
                body=body,
                name=request.query.get("name"),
            )
            answer = fault.answer or answer
        else:
            answer = fault.answer or Answer(500)
        return Answer(answer.status, answer.document, {**headers, **answer.headers}, answer.raw)


async def _send(request: web.Request, answer: Answer, fault: Fault) -> web.StreamResponse:
    """Send an answer whole, slowly, or in part."""
    body = answer.body
    headers = {"Content-Type": "application/json", **answer.headers}
    if fault.cut_after is None and fault.drip_s is None:
        return web.Response(status=answer.status, body=body, headers=headers)
    response = web.StreamResponse(status=answer.status, headers=headers)
    response.content_length = len(body)
    if fault.cut_after is None or fault.cut_after >= 0:
        await response.prepare(request)
        await _write(response, body[: fault.cut_after], fault.drip_s)
    if fault.cut_after is not None and request.transport is not None:
        request.transport.abort()
    return response


async def _write(response: web.StreamResponse, body: bytes, drip_s: float | None) -> None:
    if drip_s is None:
        await response.write(body)
        return
    for at in range(len(body)):
        await response.write(body[at : at + 1])
        await asyncio.sleep(drip_s)


def _as_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body
