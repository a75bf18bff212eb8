"""How a signed S3 request travels: aiobotocore's HTTP session, on aiohttp, one attempt a request.

aiobotocore's own session falls short here in four points: aiohttp sends an idempotent request a second time when
a kept-alive connection breaks (a conditional PUT would then meet its own first try), follows redirects, keeps
Cloudflare's cookies, and verifies no certificate behind a proxy.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from aiobotocore.awsrequest import AioAWSResponse
from yarl import URL

from r2d1.objects.r2_bodies import UploadBody
from r2d1.objects.wire_connect import CONNECT_S

if TYPE_CHECKING:
    import ssl

    from aiohttp.connector import AddrInfoType
    from botocore.awsrequest import AWSPreparedRequest

#: Seconds an idle connection is kept: short of what servers and middle boxes usually allow.
_KEEPALIVE_S = 15.0

#: Most bytes of an answer that is held whole (documents and errors); a full page of a listing has at most 4 MB.
_MAX_ANSWER = 16 << 20

#: Most bytes the kernel takes before it has sent them: the rest waits here, where its progress is seen.
_UNSENT = 256 << 10
_TCP_NOTSENT_LOWAT = {"linux": 25, "darwin": 0x201}.get(sys.platform)

#: aiohttp reads ahead up to twice this before it stops reading the socket.
_READ_AHEAD = 256 << 10


class ConnectionBroken(aiohttp.ClientError):
    """The connection broke after it was made: the request may have been carried out."""


class Transport:
    """An HTTP session as aiobotocore wants it; nothing of the environment takes part.

    ``limit`` bounds the connections, ``tls`` verifies, ``proxy`` may hold a password. The other arguments that
    aiobotocore gives to its sessions are settled here and ignored.
    """

    def __init__(self, *, limit: int, tls: ssl.SSLContext | None, proxy: str | None, **_settled: object) -> None:
        self._limit = limit
        self._tls = tls
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit=self._limit,
            keepalive_timeout=_KEEPALIVE_S,
            ssl=self._tls if self._tls is not None else True,
            socket_factory=_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Content-Type",),
            auto_decompress=False,
            read_bufsize=_READ_AHEAD,
            middlewares=(_one_attempt,),
        )
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, request: AWSPreparedRequest) -> AioAWSResponse:
        """Send once. A good answer that is to be streamed is returned unread, any other is held whole."""
        assert self._session is not None
        response = await self._session.request(
            request.method,
            URL(request.url, encoded=True),
            headers=_headers_of(request),
            data=request.body,
            proxy=self._proxy,
            allow_redirects=False,
        )
        try:
            raw: Any = response
            if not request.stream_output or response.status >= 300:
                raw = await _held(response)
            if response.status >= 300 and isinstance(request.body, UploadBody) and not request.body.finished:
                response.close()  # refused before the body was sent: nobody will read the rest
        except BaseException:
            response.close()
            raise
        return AioAWSResponse(str(response.url), response.status, _names_lowered(response), raw)


def _socket(address: AddrInfoType) -> socket.socket:
    """A socket whose buffer does not swallow megabytes: on a slow link they would take longer than silence may."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    if _TCP_NOTSENT_LOWAT is not None:
        made.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT)
    return made


async def _one_attempt(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise ConnectionBroken(str(exc) or type(exc).__name__) from exc


class _Held:
    """An answer's body in memory, as ``AioAWSResponse`` asks for it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    async def read(self) -> bytes:
        return self._content


async def _held(response: aiohttp.ClientResponse) -> _Held:
    content = bytearray()
    # Not response.read(): that waits until the request's body is sent, which a refusing server never takes.
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > _MAX_ANSWER:
            raise aiohttp.ClientPayloadError(f"the answer is longer than {_MAX_ANSWER} bytes")
    return _Held(bytes(content))


def _headers_of(request: AWSPreparedRequest) -> dict[str, str]:
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in request.headers.items()}
    return headers | {"Accept-Encoding": "identity"}


def _names_lowered(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.raw_headers}
