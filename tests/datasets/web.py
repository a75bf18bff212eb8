"""Web servers on the loopback that serve a published set rightly, or wrongly in a scripted way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    """A request: its path below the root, and its headers with lower-case names."""

    path: str
    headers: Mapping[str, str]

    @property
    def span(self) -> tuple[int, int]:
        """First byte and end (excluded) of the range that was asked for."""
        first, last = self.headers["range"].removeprefix("bytes=").split("-")
        return int(first), int(last) + 1


@dataclass(frozen=True)
class Reply:
    """An answer; without ``Content-Length`` the body ends with the connection."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


#: What a server answers.
Answer = Callable[[Asked], Reply]


class Web(ThreadingHTTPServer):
    """A server whose every answer is a function's; what it was asked is kept."""

    daemon_threads = False

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[Asked] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        asked = Asked(self.path.removeprefix("/"), {name.lower(): value for name, value in self.headers.items()})
        self.server.asked.append(asked)
        reply = self.server.answer(asked)
        try:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)
        except ConnectionError:
            return  # the client has heard enough

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def web(answer: Answer) -> Iterator[Web]:
    """A running server."""
    with Web(answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def files(objects: Mapping[str, bytes]) -> Answer:
    """Serve objects as a good base does: 206 with the range that was asked for."""

    def answer(asked: Asked) -> Reply:
        data = objects.get(asked.path)
        if data is None:
            return Reply(404, b"no such object")
        if "range" not in asked.headers:
            return Reply(200, data, {"Content-Length": str(len(data))})
        start, stop = asked.span
        return partial(data, start, stop)

    return answer


def partial(data: bytes, start: int, stop: int, *, body: bytes | None = None) -> Reply:
    """A 206 that says ``start`` to ``stop`` of ``data``; ``body`` stands in for what these bytes are."""
    sent = data[start:stop] if body is None else body
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}", "Content-Length": str(len(sent))}
    return Reply(206, sent, headers)


def dead_url() -> str:
    """An address on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"
