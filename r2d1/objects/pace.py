"""Bodies that move no faster than they are allowed to, both ways together."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from r2d1.objects import Sink, Source
from r2d1.tasks import halting, pause_thread

#: Seconds' worth of bytes in one step: short enough for a limit to be kept evenly, and for a pause to be short.
_STEP_S = 0.05

#: Seconds of allowance that idle time may leave for later.
_BURST_S = 0.1

_LEAST_STEP = 4 << 10


class Pace:
    """Turns in time for ``limit`` bytes per second, shared by any number of threads."""

    def __init__(self, limit: int) -> None:
        self.step = max(_LEAST_STEP, int(limit * _STEP_S))
        self._limit = limit
        self._lock = threading.Lock()
        self._next = 0.0

    def take(self, size: int) -> None:
        """Wait until ``size`` more bytes may move. Blocks, shorter when the work is cancelled."""
        if (halt := halting.get()) is not None and halt.called:
            return  # it moves nothing any more: others would pay for its turns
        with self._lock:
            begin = max(self._next, time.monotonic() - _BURST_S)
            self._next = begin + size / self._limit
        if (wait := begin - time.monotonic()) > 0:
            pause_thread(wait)

    def of_source(self, source: Source) -> Source:
        return _PacedSource(source, self)

    def of_sink(self, sink: Sink) -> Sink:
        return _PacedSink(sink, self)


@dataclass(frozen=True, slots=True)
class _PacedSource:
    source: Source
    pace: Pace

    @property
    def size(self) -> int:
        return self.source.size

    def blocks(self, block_size: int) -> Iterator[bytes | memoryview]:
        blocks = self.source.blocks(min(block_size, self.pace.step))
        try:
            for block in blocks:
                self.pace.take(len(block))
                yield block
        finally:
            if (close := getattr(blocks, "close", None)) is not None:
                close()


@dataclass(frozen=True, slots=True)
class _PacedSink:
    sink: Sink
    pace: Pace

    def write(self, block: bytes | bytearray | memoryview) -> None:
        view = memoryview(block)
        for at in range(0, len(view), self.pace.step):
            piece = view[at : at + self.pace.step]
            self.sink.write(piece)
            self.pace.take(len(piece))
