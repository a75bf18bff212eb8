"""One request on one connection: the head, the body up or down, and what the server said. All of it blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import h11

from r2d1.objects import Sink, Source
from r2d1.objects.buffers import buffer
from r2d1.objects.r2_bodies import exact_blocks
from r2d1.objects.wire_connect import read_head
from r2d1.objects.wire_link import CHUNK, Link, LinkBroken, LinkSilent

#: Heads and bodies up to this size leave together, in one packet if they fit.
_TOGETHER = 64 << 10

#: Most bytes of an answer that is not streamed (errors and confirmations).
_MAX_ANSWER = 1 << 20

_HEAD_LIMIT = 64 << 10
_SMALL = 16 << 10
_ENDED_EARLY = "the answer ended early"

#: Looks at the head of a good answer and says ``(bytes to pass over, bytes wanted)`` of its body.
Placing = Callable[["Heard"], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Job:
    """A request that is ready to go. With a ``sink`` the body of a good answer goes there as ``placing`` says.

    ``seen`` looks at every head; if it raises, the body is left unread.
    """

    head: h11.Request
    source: Source | None = None
    sink: Sink | None = None
    placing: Placing | None = None
    seen: Callable[[Heard], None] | None = None


@dataclass(slots=True)
class Heard:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    came: int = 0
    is_complete: bool = False  # the connection is where a new request may begin


def converse(link: Link, job: Job) -> Heard:
    protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
    try:
        is_sent = _send(link, protocol.send(job.head) or b"", job.source)
        response = read_head(link, protocol)
        heard = Heard(response.status_code, _names_lowered(response))
        if job.seen is not None:
            job.seen(heard)
        if heard.status < 300 and not is_sent:
            raise LinkBroken("the server says it has a body that was not sent whole")
        if heard.status < 300 and job.sink is not None:
            assert job.placing is not None
            skip, size = job.placing(heard)
            is_read = _land(link, protocol, heard, job.sink, skip, size)
        else:
            heard.body = _held(_pieces(link, protocol, until=time.monotonic() + link.base.idle_s))
            is_read = not protocol.trailing_data[0]
    except h11.RemoteProtocolError as exc:
        raise LinkBroken(f"the answer is not HTTP: {exc}") from exc
    stays = response.http_version == b"1.1" and "close" not in heard.headers.get("connection", "").lower()
    if heard.status >= 300 and job.source is not None:
        stays = False  # many servers hang up after they have refused a body, and do not say so
    heard.is_complete = is_sent and is_read and stays
    return heard


def _send(link: Link, head: bytes, source: Source | None) -> bool:
    """False when the other side answers before it has everything."""
    if source is None or not source.size:
        return link.send_all(head)
    with exact_blocks(source, CHUNK) as blocks:
        for block in blocks:
            if head and len(head) + len(block) <= _TOGETHER:
                block = head + bytes(block)  # noqa: PLW2901
            elif head and not link.send_all(head):
                return False
            head = b""
            try:
                if not link.send_all(block):
                    return False
            except LinkBroken:
                return False  # it may have refused before it hung up: what it said is read next
    return True


def _land(link: Link, protocol: h11.Connection, heard: Heard, sink: Sink, skip: int, size: int) -> bool:
    """Bring ``size`` bytes of the body to the sink, after ``skip`` bytes; False when more of the body may follow."""
    length = heard.headers.get("content-length", "")
    if "transfer-encoding" in heard.headers or not length.isdigit():
        for piece in _pieces(link, protocol):
            wanted = piece[skip : skip + size - heard.came]
            skip = max(0, skip - len(piece))
            sink.write(wanted)
            heard.came += len(wanted)
            if heard.came == size:
                return False  # whatever else it sends, this is all that was wanted
        return not protocol.trailing_data[0]
    total = min(int(length), skip + size)
    rest, done = memoryview(protocol.trailing_data[0]), 0
    space = buffer(min(CHUNK, total))
    while done < total:
        held, room = 0, min(len(space), total - done)
        try:
            while held < room:
                got = _take(rest, space[held:room]) if rest else _receive(link, space[held:room])
                rest = rest[got:]
                held += got
        finally:  # what came before the connection broke counts too
            begin = min(held, max(0, skip - done))
            sink.write(space[begin:held])
            heard.came += held - begin
            done += held
    return total == int(length) and not rest


def _take(ready: memoryview, view: memoryview) -> int:
    size = min(len(ready), len(view))
    view[:size] = ready[:size]
    return size


def _receive(link: Link, view: memoryview) -> int:
    got = link.pipe.receive_into(view)
    if not got:
        raise LinkBroken(_ENDED_EARLY)
    return got


def _pieces(link: Link, protocol: h11.Connection, *, until: float = math.inf) -> Iterator[bytes]:
    """A body of unknown framing, or a small one, which must have come by ``until``."""
    space = buffer(_SMALL)
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            if time.monotonic() >= until:
                raise LinkSilent
            protocol.receive_data(bytes(space[: link.pipe.receive_into(space)]))
        elif isinstance(event, h11.Data):
            yield bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return
        else:
            raise LinkBroken(_ENDED_EARLY)


def _held(pieces: Iterator[bytes]) -> bytes:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > _MAX_ANSWER:
            raise LinkBroken(f"the answer is longer than {_MAX_ANSWER} bytes")
    return bytes(content)


def _names_lowered(response: h11.Response) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value  # RFC 9110, 5.3
    return headers
