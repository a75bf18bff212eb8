"""Memory for bodies."""

from __future__ import annotations

import mmap

_MAPPED_FROM = 128 << 10


def buffer(size: int) -> memoryview:
    """``size`` bytes. Large ones go back to the system at once: malloc would keep some for every thread."""
    if size < _MAPPED_FROM:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
