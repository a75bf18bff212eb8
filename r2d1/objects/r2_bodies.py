"""Bodies of requests and answers, moved in blocks between the event loop and blocking sources and sinks."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from r2d1.errors import Superseded
from r2d1.objects import Sink, Source
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    import aiohttp

#: Bytes read from a source at once, and most bytes of a part that are in memory (aiohttp may hold a second copy).
#: Blocks come from many threads and malloc keeps some for each: with larger ones, four parts more cost 28 MiB.
BLOCK = 192 << 10

#: Bytes gathered before a sink's thread is woken.
_GATHER = 512 << 10


class UploadBody:
    """The body of one request, read from its source on a worker thread while it is sent; never whole in memory.

    ``moved`` is called whenever the connection has taken a block. ``failure`` is what the source raised, if it
    did: the HTTP library reports that as a broken connection.
    """

    def __init__(
        self, source: Source, *, threads: anyio.CapacityLimiter, moved: Callable[[], None], sha256: str | None
    ) -> None:
        self.sha256 = sha256
        self.failure: Exception | None = None
        self.finished = False
        self._source = source
        self._threads = threads
        self._moved = moved
        self._left = source.size
        self._blocks: Iterator[bytes | memoryview] | None = None
        self._closed = False
        self._turn = anyio.Lock()

    def read(self) -> bytes:
        """Only here because botocore takes no body without it; nothing may read a body whole."""
        raise NotImplementedError("an upload's body is streamed")

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        self._moved()
        if not self._left:
            self.finished = True
            raise StopAsyncIteration
        try:
            async with self._turn:
                return await in_thread(self._next, limiter=self._threads)
        except Exception as exc:
            self.failure = exc
            raise

    def _next(self) -> bytes:
        if self._blocks is None:
            self._blocks = self._source.blocks(BLOCK)
        # A copy: a source may reuse its buffer, and the transport keeps what it has not sent yet.
        block = b"" if self._closed else bytes(next(self._blocks, b""))
        self._left -= len(block)
        if not block or self._left < 0 or (self._left == 0 and next(self._blocks, b"")):
            given = "more" if block else self._source.size - self._left
            raise Superseded(f"the source gave {given} of {self._source.size} bytes")
        return block

    async def aclose(self) -> None:
        """Wait for a read under way, which the HTTP library has cancelled by now, and close the source's iterator."""
        with anyio.CancelScope(shield=True):
            async with self._turn:
                self._closed = True
                if self._left and (close := getattr(self._blocks, "close", None)) is not None:
                    await in_thread(close)


@contextmanager
def exact_blocks(source: Source, block_size: int) -> Iterator[Iterator[bytes | memoryview]]:
    """A source's blocks for one attempt, which blocks; ``Superseded`` unless they are as many bytes as it says.

    That is known before the last block is given away. An iterator that is not used up is closed.
    """
    blocks = source.blocks(block_size)

    def exactly() -> Iterator[bytes | memoryview]:
        left = source.size
        for block in blocks:
            left -= len(block)
            if left < 0 or (left == 0 and next(blocks, b"")):
                raise Superseded(f"the source gave more of {source.size} bytes")
            yield block
        if left:
            raise Superseded(f"the source gave {source.size - left} of {source.size} bytes")

    try:
        yield exactly()
    finally:
        if (close := getattr(blocks, "close", None)) is not None:
            close()


def read_whole(source: Source) -> bytes:
    """A small source's bytes. Blocks."""
    data = b"".join(bytes(block) for block in source.blocks(BLOCK))
    if len(data) != source.size:
        raise Superseded(f"the source gave {len(data)} of {source.size} bytes")
    return data


def md5_of(source: Source) -> bytes:
    """The MD5 digest of a source's bytes. Blocks."""
    digest = hashlib.md5(usedforsecurity=False)
    for block in source.blocks(BLOCK):
        digest.update(block)
    return digest.digest()


async def deliver(
    content: aiohttp.StreamReader,
    sink: Sink,
    *,
    skip: int,
    size: int,
    threads: anyio.CapacityLimiter,
    moved: Callable[[], None],
) -> int:
    """Write ``size`` bytes of an answer to a sink, after passing over ``skip``; returns how many came.

    What came before a connection broke is written before the error goes on.
    """
    gathered: list[bytes] = []
    held = done = 0
    try:
        while done + held < size and (chunk := await content.readany()):
            moved()
            piece = chunk[skip : skip + size - done - held]
            skip = max(0, skip - len(chunk))
            gathered.append(piece)
            held += len(piece)
            if held >= _GATHER:
                ready, gathered, done, held = gathered, [], done + held, 0
                await in_thread(_write_all, sink, ready, limiter=threads)
                moved()
    except Exception:
        await in_thread(_write_all, sink, gathered, limiter=threads)
        raise
    await in_thread(_write_all, sink, gathered, limiter=threads)
    return done + held


def _write_all(sink: Sink, blocks: list[bytes]) -> None:
    for block in blocks:
        if block:
            sink.write(block)
