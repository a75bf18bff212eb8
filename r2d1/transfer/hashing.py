"""Digests of local files, taken slice by slice so that cancelling never waits for a whole file."""

from __future__ import annotations

import os
from pathlib import Path

from r2d1.checkpoint import Identity
from r2d1.digest import Hasher, new_hasher
from r2d1.objects import ByteRange
from r2d1.tasks import acquired, in_thread
from r2d1.transfer.files import open_unchanged, read_blocks
from r2d1.transfer.lane import BLOCK, Lane
from r2d1.transfer.plan import plan_ranges


async def digest_file(
    lane: Lane, path: Path, identity: Identity, *, algorithm: str, part_size: int
) -> tuple[str, tuple[str, ...]]:
    """``(digest, slice digests)`` of a local file, as a manifest with ``part_size`` would state them.

    ``Superseded`` when the file is not in the state ``identity`` names.
    """
    async with acquired(open_unchanged, os.close, path, identity, limiter=lane.disk) as fd:
        whole, parts = new_hasher(algorithm), list[str]()
        for span in plan_ranges(identity.size, part_size):
            part = new_hasher(algorithm)
            for step in _steps(span):
                await in_thread(_feed, fd, step, str(path), part, whole, limiter=lane.disk)
            parts.append(part.hexdigest())
    return f"{algorithm}:{whole.hexdigest()}", tuple(parts) if len(parts) > 1 else ()


def _steps(span: ByteRange) -> list[ByteRange]:
    """A slice in pieces of at most 64 MiB: a few hundredths of a second of hashing each."""
    return [ByteRange(span.start + at.start, span.start + at.stop) for at in plan_ranges(span.size, 64 * BLOCK)]


def _feed(fd: int, span: ByteRange, name: str, *hashers: Hasher) -> None:
    for block in read_blocks(fd, span, BLOCK, name):
        for hasher in hashers:
            hasher.update(block)
