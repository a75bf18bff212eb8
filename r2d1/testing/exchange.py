"""One HTTP exchange of the S3 double: body in, operation, reply out, with the scripted mishap in its place."""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
from collections.abc import Iterator
from typing import Protocol

from aiohttp import web

from r2d1.testing import faults
from r2d1.testing.answers import Reply, Request
from r2d1.testing.blob import Blob
from r2d1.testing.bodies import Announced, Body, BodyReader
from r2d1.testing.faults import Action, Call
from r2d1.testing.refusals import Refused
from r2d1.testing.requestlog import RequestRecord, shown_headers

BLOCK = 256 << 10


class Gone(ConnectionResetError):
    """The connection was cut, by the script or by the client."""


class Service(Protocol):
    """What answers requests: admits one by its head, then does what it asks for; both may raise ``Refused``."""

    def admit(self, request: Request) -> Announced: ...

    def answer(self, request: Request, body: Body) -> Reply: ...


class Host(Protocol):
    """What an exchange needs of the double it belongs to."""

    def new_reader(self, announced: Announced) -> BodyReader: ...

    def finished(self, record: RequestRecord) -> None: ...

    def common_headers(self) -> dict[str, str]: ...

    async def throttled(self, count: int) -> None: ...


class Exchange:
    """Serves one request. ``run`` returns what aiohttp wants, or raises ``Gone`` when no reply is left to give."""

    def __init__(
        self,
        host: Host,
        service: Service,
        http: web.BaseRequest,
        *,
        request: Request,
        call: Call,
        action: Action | None,
    ) -> None:
        self._host = host
        self._service = service
        self._http = http
        self._request = request
        self._call = call
        self._action = action
        self._received = 0
        self._sent = 0
        self._told = False

    async def run(self) -> web.StreamResponse:
        try:
            await self._before()
            reply = await self._reply()
            await self._after(reply)
            return await self._send(reply)
        except (ConnectionError, asyncio.CancelledError):
            self._tell(None)
            raise

    # -- the stages ------------------------------------------------------------------------------------------

    async def _before(self) -> None:
        match self._action:
            case faults.Reset():
                raise self._cut()
            case faults.CutRequest(after=after):
                while self._received < after and (chunk := await self._chunk()):
                    self._received += len(chunk)
                raise self._cut()
            case faults.Delay(seconds=seconds):
                await asyncio.sleep(seconds)
            case faults.Hold(gate=gate):
                await gate.hold()
            case faults.Hook(before=hook) if hook is not None:
                await _awaited(hook(self._call))

    async def _reply(self) -> Reply:
        if isinstance(self._action, faults.Answer):
            await self._drain()
            return _scripted(self._action)
        try:
            announced = self._service.admit(self._request)
            return self._service.answer(self._request, await self._body(announced))
        except Refused as error:
            await self._drain()
            return Reply.of_error(error)

    async def _after(self, reply: Reply) -> None:
        """Tell of the request before its reply leaves, so that an observer sees the bucket exactly as it left it.

        Replies of data, and those that are cut or slowed, are told of before their last byte leaves.
        """
        if isinstance(self._action, faults.Swallow):
            self._tell(None, reply)
            raise self._cut(politely=True)
        is_slow = isinstance(self._action, faults.CutReply | faults.Stall | faults.Trickle)
        if self._request.method != "GET" and not is_slow:
            self._sent = self._body_size(reply)
            self._tell(reply.status, reply)
        match self._action:
            case faults.HoldReply(gate=gate):
                await gate.hold()
            case faults.Hook(after=hook) if hook is not None:
                await _awaited(hook(self._record(reply.status, reply)))

    def _body_size(self, reply: Reply) -> int:
        return 0 if self._request.method == "HEAD" else reply.size

    async def _send(self, reply: Reply) -> web.StreamResponse:
        response = web.StreamResponse(status=reply.status, headers=self._reply_headers(reply))
        if self._must_close:
            response.force_close()
        size = self._body_size(reply)
        if not size:
            self._tell(reply.status, reply)
        await response.prepare(self._http)
        if size:
            await self._send_body(response, reply)
        await response.write_eof()
        return response

    async def _send_body(self, response: web.StreamResponse, reply: Reply) -> None:
        stop_at = self._action.after if isinstance(self._action, faults.CutReply | faults.Stall) else None
        for block in self._blocks(reply):
            if stop_at is not None and self._sent + len(block) > stop_at:
                head = stop_at - self._sent
                await self._write(response, reply, block[:head])
                await self._interrupt(reply)
                block, stop_at = block[head:], None  # noqa: PLW2901  # what is left of it
            await self._write(response, reply, block)
            if isinstance(self._action, faults.Trickle):
                await asyncio.sleep(1 / self._action.bytes_per_s)

    async def _write(self, response: web.StreamResponse, reply: Reply, block: bytes | memoryview) -> None:
        await self._host.throttled(len(block))
        if not self._told:
            self._sent += len(block)
            if self._sent == reply.size:
                self._tell(reply.status, reply)
        await response.write(block)

    async def _interrupt(self, reply: Reply) -> None:
        if isinstance(self._action, faults.Stall):
            await self._action.gate.hold()
        else:
            self._tell(reply.status, reply)
            raise self._cut(politely=True)

    def _blocks(self, reply: Reply) -> Iterator[bytes | memoryview]:
        size = 1 if isinstance(self._action, faults.Trickle) else BLOCK
        blocks = reply.blocks(size)
        if isinstance(self._action, faults.FlipReply):
            return _flipped(blocks, self._action.at, reply.size)
        return blocks

    # -- the request's body ----------------------------------------------------------------------------------

    async def _body(self, announced: Announced) -> Body:
        reader = self._host.new_reader(announced)
        size = self._request.content_length or 0
        damage = self._action if isinstance(self._action, faults.FlipRequest) else None
        on_wire = damage is not None and not damage.after_check
        while chunk := await self._chunk():
            if damage is not None and on_wire:
                chunk = _flip(chunk, damage.at % max(size, 1) - self._received)
            self._received += len(chunk)
            await self._host.throttled(len(chunk))
            reader.write(chunk)
        body = reader.finish()
        if damage is not None and damage.after_check and size:
            return Body(_damaged(body.blob, damage.at % size), body.md5, body.checksums)
        return body

    async def _chunk(self) -> bytes:
        """The next bytes of the body; empty at its end."""
        try:
            while True:
                chunk, _ = await self._http.content.readchunk()
                if chunk or self._http.content.at_eof():
                    return chunk
        except web.RequestPayloadError as exc:
            raise Gone("the client went away in its request") from exc

    async def _drain(self) -> None:
        """Read what is left of the body, so that the client reads our answer; not if it waits for a 100."""
        if self._must_close:
            return
        while chunk := await self._chunk():
            self._received += len(chunk)

    @property
    def _must_close(self) -> bool:
        """R2 never answers ``Expect: 100-continue``; a body that was not sent makes the connection useless."""
        return "expect" in self._request.headers and not self._http.content.at_eof()

    # -- the end ---------------------------------------------------------------------------------------------

    def _reply_headers(self, reply: Reply) -> dict[str, str]:
        headers = {"Content-Length": str(reply.size), **reply.headers, **self._host.common_headers()}
        if reply.status in (204, 304):
            del headers["Content-Length"]
        if self._request.method == "HEAD" and reply.code:
            headers = {name: value for name, value in headers.items() if name not in ("Content-Length", "Content-Type")}
        if isinstance(self._action, faults.Rewrite):
            change = self._action.headers
            for name, value in (change(self._call) if callable(change) else change).items():
                headers = {old: kept for old, kept in headers.items() if old.lower() != name.lower()}
                headers |= {} if value is None else {name: value}
        return headers

    def _cut(self, *, politely: bool = False) -> Gone:
        """Close the connection: after what was sent has left, or at once with a reset."""
        transport = self._http.transport
        if transport is not None and politely:
            transport.close()
        elif transport is not None:
            raw = transport.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        return Gone("cut by the script")

    def _tell(self, status: int | None, reply: Reply | None = None) -> None:
        if not self._told:
            self._told = True
            self._host.finished(self._record(status, reply))

    def _record(self, status: int | None, reply: Reply | None) -> RequestRecord:
        return RequestRecord(
            number=self._call.number,
            at=self._call.at,
            method=self._request.method,
            operation=self._request.operation,
            key=self._call.key,
            query=self._request.query,
            headers=shown_headers(self._request.headers),
            part_number=self._request.part_number,
            received=self._received,
            sent=self._sent,
            status=status,
            code=reply.code if reply else "",
            connection=self._call.connection,
            fault="" if self._action is None else type(self._action).__name__,
        )


async def _awaited(result: object) -> None:
    if inspect.isawaitable(result):
        await result


def _scripted(answer: faults.Answer) -> Reply:
    reply = Reply.of_error(Refused(answer.status, answer.code, answer.message))
    headers = {**reply.headers, **answer.headers}
    if answer.retry_after is not None:
        headers["Retry-After"] = str(answer.retry_after)
    blob = reply.blob if answer.body is None else Blob([answer.body])
    return Reply(answer.status, headers, blob, code=answer.code)


def _flip(chunk: bytes, at: int) -> bytes:
    """The chunk with one byte inverted; untouched when the offset lies elsewhere."""
    if not 0 <= at < len(chunk):
        return chunk
    return b"".join((chunk[:at], bytes([chunk[at] ^ 0xFF]), chunk[at + 1 :]))


def _flipped(blocks: Iterator[bytes | memoryview], at: int, size: int) -> Iterator[bytes | memoryview]:
    position, at = 0, at % max(size, 1)
    for block in blocks:
        yield _flip(bytes(block), at - position) if position <= at < position + len(block) else block
        position += len(block)


def _damaged(blob: Blob, at: int) -> Blob:
    return Blob([_flip(blob.read(), at)])
