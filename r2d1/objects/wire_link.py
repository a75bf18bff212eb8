"""One connection for a worker thread: a socket that is never waited on without a limit, and TLS above it.

TLS goes through memory, not through ``ssl.SSLSocket``, which makes two system calls for each record of 16 KiB on
the way down and one on the way up; here the kernel is asked once for many records.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from typing import Any, Protocol

from r2d1.objects.buffers import buffer

#: Bytes taken from the kernel, and given to it, at once.
CHUNK = 256 << 10

_TICKET = 16 << 10

#: Bytes a second, on average over the idle time, that are as good as silence: a server that trickles them out would
#: hold a piece for days.
LEAST_RATE = 256


class LinkBroken(Exception):
    """The connection broke, or what came over it makes no sense; the request may have been carried out."""


class LinkSilent(Exception):
    """Nothing, or next to nothing, moved for as long as silence is borne."""


class Pipe(Protocol):
    """Bytes both ways. Everything blocks, and raises ``LinkSilent`` after the idle time, ``LinkBroken`` at breaks."""

    def receive_into(self, view: memoryview) -> int:
        """At least one byte, as many as are there; 0 when the other side has ended."""

    def send(self, view: memoryview) -> tuple[int, bool]:
        """``(bytes taken, whether the other side has said something instead of taking more)``."""

    def is_silent(self) -> bool:
        """Whether an idle connection still is one: nothing came that nobody has read, and nobody has gone."""


class SocketPipe:
    """A connected, non-blocking socket; ``idle_s`` is the longest silence in seconds."""

    def __init__(self, sock: socket.socket, *, idle_s: float) -> None:
        self.sock = sock
        self.idle_s = idle_s
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._moved, self._since = 0, time.monotonic()
        self._turn: threading.Lock | None = None

    def begin(self, turn: threading.Lock | None = None) -> None:
        """A new request: what was slow before does not count. A ``turn`` the thread has is let go while it waits."""
        self._moved, self._since = 0, time.monotonic()
        self._turn = turn

    def receive_into(self, view: memoryview) -> int:
        while True:
            try:
                got = self.sock.recv_into(view)
            except BlockingIOError:
                self._wait(select.POLLIN)
            except OSError as exc:
                raise LinkBroken(_said(exc)) from exc
            else:
                self._moved += got
                return got

    def send(self, view: memoryview) -> tuple[int, bool]:
        while True:
            try:
                sent = self.sock.send(view)
            except BlockingIOError:
                ready = self._wait(select.POLLIN | select.POLLOUT)
                if not ready & select.POLLOUT:
                    return 0, True
            except OSError as exc:
                raise LinkBroken(_said(exc)) from exc
            else:
                self._moved += sent
                return sent, False

    def is_silent(self) -> bool:
        """Whether an idle connection still is one: the other side has neither spoken nor gone."""
        self._poller.modify(self.sock, select.POLLIN)
        return not self._poller.poll(0)

    def _wait(self, events: int) -> int:
        now = time.monotonic()
        if now - self._since > self.idle_s:
            if self._moved < LEAST_RATE * self.idle_s:
                raise LinkSilent
            self._moved, self._since = 0, now
        self._poller.modify(self.sock, events)
        if self._turn is not None:
            self._turn.release()
        try:
            ready = self._poller.poll(self.idle_s * 1000)
        finally:
            if self._turn is not None:
                self._turn.acquire()
        if not ready:
            raise LinkSilent
        return ready[0][1]


class TlsPipe:
    """TLS above another pipe (which may be TLS itself, to a proxy). ``ssl.SSLError`` only from the handshake."""

    def __init__(self, under: Pipe, context: ssl.SSLContext, server_name: str) -> None:
        self._under = under
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._came, self._goes, server_hostname=server_name)
        self._buffer: memoryview | None = None
        self._early = bytearray()
        self._unsent = memoryview(b"")
        self._handshake()

    def receive_into(self, view: memoryview) -> int:
        if self._early:
            got = min(len(view), len(self._early))
            view[:got] = self._early[:got]
            del self._early[:got]
            return got
        done = 0
        while done < len(view):
            try:
                read: Any = self._tls.read(len(view) - done, view[done:])  # typeshed: bytes, but it is a count
            except ssl.SSLWantReadError:
                if done or not self._more():
                    break
                continue
            except ssl.SSLError as exc:
                raise LinkBroken(f"TLS: {exc.reason or 'it ended without a farewell'}") from exc
            if not read:
                break
            done += read
        return done

    def send(self, view: memoryview) -> tuple[int, bool]:
        try:
            taken = self._tls.write(view)
        except ssl.SSLError as exc:
            raise LinkBroken(f"TLS: {exc.reason}") from exc
        return taken, not self._flush()

    def is_silent(self) -> bool:
        """Whether nothing of what came or should go is still held here: it would be taken for the next answer."""
        held = self._early or self._unsent or self._goes.pending or self._came.pending or self._tls.pending()
        return not held and self._under.is_silent()

    def _handshake(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                if not self._more():
                    raise LinkBroken("the connection ended during the TLS handshake") from None
            else:
                self._flush()
                return

    def _flush(self) -> bool:
        """Send all ciphertext there is; False as soon as the other side talks back instead of taking it.

        What is left then goes first the next time: a layer above may find that it was not an answer to it.
        """
        while self._unsent or self._goes.pending:
            if not self._unsent:
                self._unsent = memoryview(self._goes.read())
            sent, has_spoken = self._under.send(self._unsent)
            self._unsent = self._unsent[sent:]
            if has_spoken and self._has_answered():
                return False
        return True

    def _has_answered(self) -> bool:
        """What came while sending may be TLS's own business (session tickets), not an answer."""
        if not self._more():
            return True
        try:
            self._early += self._tls.read(_TICKET)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as exc:
            raise LinkBroken(f"TLS: {exc.reason}") from exc
        return True

    def _more(self) -> bool:
        """Take ciphertext from below; False when the other side has ended."""
        if self._buffer is None:
            self._buffer = buffer(CHUNK)
        got = self._under.receive_into(self._buffer)
        if got:
            self._came.write(self._buffer[:got])
        return bool(got)


class Link:
    """A connection in use or kept: its socket, and the pipe through which requests go."""

    def __init__(self, sock: socket.socket, *, idle_s: float) -> None:
        self.base = SocketPipe(sock, idle_s=idle_s)
        self.pipe: Pipe = self.base
        self.kept_at = 0.0

    def wrap(self, context: ssl.SSLContext, server_name: str) -> None:
        """TLS from here on. Raises ``ssl.SSLError`` when the handshake fails."""
        self.pipe = TlsPipe(self.pipe, context, server_name)

    def send_all(self, data: bytes | memoryview) -> bool:
        """Send everything; False when the other side answers before it has taken it."""
        left = memoryview(data)
        while left:
            sent, has_spoken = self.pipe.send(left)
            left = left[sent:]
            if has_spoken:
                return False
        return True

    def is_fresh(self) -> bool:
        """Whether a kept connection may be used again."""
        return self.pipe.is_silent()

    def cut(self) -> None:
        """Wake the thread that waits on this connection; called from another one."""
        try:
            self.base.sock.shutdown(socket.SHUT_RDWR)
        except OSError:  # it is not connected any more, which is what is wanted
            return

    def close(self) -> None:
        self.base.sock.close()


def _said(exc: OSError) -> str:
    return exc.strerror or type(exc).__name__
