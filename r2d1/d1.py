"""The D1 client: statements over Cloudflare's REST API, paced below the account's limit, retried when that is safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

import anyio

from r2d1.d1_wire import Allowance, Param, Reply, Statement, allowance_of, encode, printable, rows_of
from r2d1.errors import CatalogError, Closed, ConfigError, NotSent, RemoteError, RemoteUnavailable
from r2d1.events import Teller
from r2d1.retry import Brake, RetryPolicy, is_transient, retried
from r2d1.secret import Secret
from r2d1.setting_rules import id_text, plain, web_url
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    import ssl

    import httpx

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: D1 ends a call, whole batch included, after 30 s; its own answer to that should still arrive.
TIMEOUT_S = 35.0
CONNECT_TIMEOUT_S = 10.0
#: Cloudflare allows 1,200 calls in 5 minutes for a token, which is 4 a second, shared with other programs.
RATE_PER_S = 3.0
#: D1's own limit for a result is 50 MB.
MAX_ANSWER_BYTES = 64 * 2**20
#: JSON larger than this is made and read in a worker thread.
_INLINE_BYTES = 64 * 2**10
_LONGEST_PAUSE_S = 300.0


@dataclass(slots=True)
class Pace:
    """A token bucket: ``rate_per_s`` in the long run, ``burst`` calls at once after a rest (pure: time is given)."""

    rate_per_s: float = RATE_PER_S
    burst: int = 4
    _full_at: float = 0.0
    _slow_until: float = 0.0
    _slow_gap: float = 0.0

    def reserve(self, now: float) -> float:
        """Take the next place; the seconds to wait for it."""
        is_slow = now < self._slow_until
        gap = max(self._slow_gap, 1 / self.rate_per_s) if is_slow else 1 / self.rate_per_s
        slack = 0.0 if is_slow else (self.burst - 1) * gap
        delay = max(0.0, self._full_at - slack - now)
        self._full_at = max(self._full_at, now) + gap
        return delay

    def heed(self, allowance: Allowance, now: float) -> None:
        """Spread what the server still allows over its window, and stop before nothing is left."""
        seconds = min(allowance.seconds, _LONGEST_PAUSE_S)
        if allowance.remaining <= 1:
            self._full_at = max(self._full_at, now + seconds)
        elif allowance.remaining / max(seconds, 1e-9) >= self.rate_per_s:
            return
        self._slow_until = now + seconds
        self._slow_gap = seconds / max(allowance.remaining - 1, 1)


class D1Client:
    """One D1 database behind Cloudflare's REST API.

    ``where`` names the database in messages. ``ssl_context`` is a context or a function that builds one
    (it is called in a worker thread); without it the system's defaults apply. ``proxy`` is a URL; neither
    it nor the token ever shows. Nothing of the environment is read. Redirects are not followed.

    ``ConfigError`` for ids, token, base URL or proxy that cannot be right.
    """

    def __init__(
        self,
        *,
        base_url: str,
        account_id: str,
        database_id: str,
        api_token: Secret,
        policy: RetryPolicy,
        tell: Teller,
        brake: Brake | None = None,
        ssl_context: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None,
        proxy: str | None = None,
        timeout_s: float = TIMEOUT_S,
        rate_per_s: float = RATE_PER_S,
    ) -> None:
        _check_settings(base_url, account_id, database_id, api_token)
        self.where = f"D1 {database_id}"
        self._url = f"{base_url.rstrip('/')}/accounts/{account_id}/d1/database/{database_id}"
        self._token = api_token
        self._policy = policy
        self._tell = tell
        self._brake = brake or Brake()
        self._ssl_context = ssl_context
        self._proxy = Secret(proxy) if proxy else None
        self._timeout_s = timeout_s
        self._pace = Pace(rate_per_s)
        self._opening = anyio.Lock()
        self._http: httpx.AsyncClient | None = None
        self._is_closed = False

    async def query(self, sql: str, params: Sequence[Param] = (), *, safe: bool = False) -> list[dict[str, Any]]:
        """Run one statement and return its rows.

        ``safe`` says that running it twice does no harm: then a lost answer is tried again too, else only
        what certainly had no effect. ``CatalogError`` for SQL and limits, ``AccessRefused``, ``Throttled``,
        ``RemoteUnavailable``, ``NotSent``.
        """
        results = await self._run("query", [Statement(sql, tuple(params))], safe=safe)
        return results[0]

    async def batch(self, statements: Sequence[Statement], *, safe: bool = False) -> list[list[dict[str, Any]]]:
        """Run statements as one transaction and return the rows of each; the first failure undoes all."""
        return await self._run("batch", statements, safe=safe) if statements else []

    async def aclose(self) -> None:
        """Close the connections. Safe to call twice."""
        self._is_closed = True
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _run(self, verb: str, statements: Sequence[Statement], *, safe: bool) -> list[list[dict[str, Any]]]:
        operation = f"D1 {verb}"
        size = sum(len(value) for each in statements for value in each.params if isinstance(value, str))
        try:
            body = await _off_loop(size, encode, statements)
        except ValueError as exc:
            raise CatalogError(operation, self.where, reason=str(exc)) from exc

        async def once() -> list[list[dict[str, Any]]]:
            return await self._once(operation, body)

        again = is_transient if safe else _had_no_effect
        results = await retried(once, policy=self._policy, brake=self._brake, tell=self._tell, again=again)
        return results + [[] for _ in range(len(statements) - len(results))]

    async def _once(self, operation: str, body: bytes) -> list[list[dict[str, Any]]]:
        await anyio.sleep(self._pace.reserve(anyio.current_time()))
        reply = await self._exchange(operation, await self._opened(), body)
        if allowance := allowance_of(reply.headers):
            self._pace.heed(allowance, anyio.current_time())
        return await _off_loop(len(reply.body), self._understand, operation, reply)

    def _understand(self, operation: str, reply: Reply) -> list[list[dict[str, Any]]]:
        try:
            return rows_of(reply, operation=operation, where=self.where, now=time.time())
        except RemoteError as exc:
            failure = exc
        failure.reason = self._scrubbed(failure.reason)  # a server may echo what it was sent
        raise failure.with_traceback(None)

    async def _exchange(self, operation: str, http: httpx.AsyncClient, body: bytes) -> Reply:
        """One attempt, with the library's errors turned into ours.

        They are raised outside of the handler, without the library's error as context: its frames hold the
        Authorization header, and some error reporters print locals. Its kind and text are in the reason.
        """
        import httpx

        try:
            return await self._post(http, body)
        except (TimeoutError, _AnswerTooLong, httpx.HTTPError, httpx.InvalidURL) as exc:
            failure = self._failure(operation, exc)
        raise failure

    async def _post(self, http: httpx.AsyncClient, body: bytes) -> Reply:
        """Send and receive. The time-out is for all of it: an idle time-out alone would let a trickle last for ever."""
        with anyio.fail_after(self._timeout_s):
            async with http.stream("POST", f"{self._url}/query", content=body) as response:
                data = bytearray()
                async for block in response.aiter_bytes():
                    data += block
                    if len(data) > MAX_ANSWER_BYTES:
                        raise _AnswerTooLong
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Reply(response.status_code, headers, bytes(data))

    async def _opened(self) -> httpx.AsyncClient:
        """The client, made at the first call: importing the library and reading certificates take a while."""
        async with self._opening:
            if self._is_closed:
                raise Closed(f"{self.where}: the client is closed")
            if self._http is None:
                self._http = await in_thread(self._open)
            return self._http

    def _open(self) -> httpx.AsyncClient:
        import httpx

        context = self._tls_context()
        try:
            return httpx.AsyncClient(
                headers={"Authorization": f"Bearer {self._token.reveal()}", "Content-Type": "application/json"},
                verify=context,
                proxy=self._proxy_through(context),
                timeout=httpx.Timeout(self._timeout_s, connect=min(CONNECT_TIMEOUT_S, self._timeout_s)),
                limits=httpx.Limits(max_connections=8, max_keepalive_connections=4, keepalive_expiry=30.0),
                trust_env=False,
                follow_redirects=False,
                http2=False,
            )
        except (ValueError, ImportError, httpx.InvalidURL):
            failure = ConfigError("HTTPS_PROXY: not the URL of a proxy that can be used (http://host:port)")
        raise failure  # without their context, which shows the proxy's password

    def _proxy_through(self, context: ssl.SSLContext) -> httpx.Proxy | None:
        import httpx

        if self._proxy is None:
            return None
        url = self._proxy.reveal()
        return httpx.Proxy(url, ssl_context=context if url.startswith("https:") else None)

    def _tls_context(self) -> ssl.SSLContext:
        import ssl

        if not self._url.startswith("https:"):
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # never used, quickly made, and trusts nobody
        if self._ssl_context is None:
            return ssl.create_default_context()
        return self._ssl_context() if callable(self._ssl_context) else self._ssl_context

    def _failure(self, operation: str, exc: Exception) -> RemoteError:
        import httpx

        if isinstance(exc, TimeoutError):
            return RemoteUnavailable(operation, self.where, reason=f"no whole answer within {self._timeout_s:g} s")
        if isinstance(exc, _AnswerTooLong):
            reason = f"the answer is longer than {MAX_ANSWER_BYTES:,} bytes; ask for less"
            return CatalogError(operation, self.where, reason=reason)
        if isinstance(exc, (httpx.LocalProtocolError, httpx.InvalidURL)):  # its text would quote the header
            return CatalogError(operation, self.where, reason="the request could not be formed")
        reason = self._scrubbed(f"{type(exc).__name__}: {exc}".removesuffix(": "))
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            hint = "The server's certificate is not trusted: set R2D1_CA_BUNDLE if a private authority signed it"
            return RemoteError(operation, self.where, reason=reason, hint=hint)
        not_sent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
        if isinstance(exc, (*not_sent, httpx.UnsupportedProtocol)):
            hint = "Check the network, HTTPS_PROXY and R2D1_D1_BASE_URL"
            return NotSent(operation, self.where, reason=reason, hint=hint)
        return RemoteUnavailable(operation, self.where, reason=reason)

    def _scrubbed(self, text: str) -> str:
        for secret in (self._token, self._proxy):
            text = text.replace(secret.reveal(), "****") if secret else text
        return printable(text)


class _AnswerTooLong(Exception):
    """The body passed ``MAX_ANSWER_BYTES``."""


def _had_no_effect(error: RemoteError) -> bool:
    return error.transient and not error.ambiguous


async def _off_loop(size: int, func: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a function that works through ``size`` bytes: in line if they are few, else in a worker thread."""
    return func(*args) if size <= _INLINE_BYTES else await in_thread(func, *args)


def _check_settings(base_url: str, account_id: str, database_id: str, api_token: Secret) -> None:
    """Name everything that is malformed before anything is sent; never the values."""
    checks = (
        ("R2D1_D1_BASE_URL", web_url, base_url),
        ("R2D1_ACCOUNT_ID", id_text, account_id),
        ("R2D1_D1_DATABASE_ID", id_text, database_id),
        ("R2D1_API_TOKEN", plain, api_token.reveal()),
    )
    problems = [(name, rule(value) if value else "it is empty") for name, rule, value in checks]
    if found := [f"{name}: {problem}" for name, problem in problems if problem]:
        raise ConfigError("; ".join(found))
