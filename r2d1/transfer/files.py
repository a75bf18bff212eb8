"""Local files as sources and sinks: opened safely, read and written in blocks, hashed on the way. All of it blocks."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from r2d1.checkpoint import Identity, LocalFile
from r2d1.digest import Hasher, crc64nvme, new_hasher
from r2d1.errors import CheckpointError, Superseded
from r2d1.objects import BodyCheck, ByteRange
from r2d1.objects.buffers import buffer
from r2d1.transfer.lane import BLOCK

#: Files up to this size are held in memory while they are sent or fetched.
HELD = 256 << 10


#: What opening a file may meet that says nothing of the file.
MAY_PASS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.EINTR})


def _nobody(size: int) -> None:
    """Who is told of moved bytes by default."""


def open_unchanged(path: Path, expected: Identity) -> int:
    """Open a file to be shipped; ``Superseded`` when it is not the one that was looked at.

    A link to it may have been taken away meanwhile, which moves its ctime; that is looked into again before the head
    is written. ``OSError`` when the system could not open it for reasons that may pass.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise Superseded(f"{path}: deleted while the checkpoint was being shipped") from exc
    except OSError as exc:
        if exc.errno in MAY_PASS:
            raise OSError(exc.errno, exc.strerror, str(path)) from exc  # tried again later; the file is not to blame
        raise CheckpointError(f"{path}: cannot be read: {exc.strerror}") from exc
    if not expected.is_before_unlinking(Identity.of(os.fstat(fd))):
        os.close(fd)
        raise Superseded(f"{path}: changed while the checkpoint was being shipped")
    return fd


def read_blocks(fd: int, span: ByteRange, block_size: int, name: str) -> Iterator[memoryview]:
    """Read a span in blocks into one reused buffer; ``Superseded`` when the file ends early.

    ``OSError`` naming the file when the disk fails.
    """
    block = buffer(min(block_size, span.size))
    at = span.start
    while at < span.stop:
        try:
            got = os.preadv(fd, [block[: span.stop - at]], at)
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, name) from exc
        if got == 0:
            raise Superseded(f"{name}: became shorter while the checkpoint was being shipped")
        yield block[:got]
        at += got


class SliceHashes:
    """Hashes a file slice by slice, in order: each slice alone, the whole file, and the check that travels along."""

    def __init__(self, fd: int, name: str, upload_check: str) -> None:
        self._fd, self._name, self._upload_check = fd, name, upload_check
        self._whole = new_hasher()

    def next_part(self, span: ByteRange) -> tuple[str, BodyCheck | None]:
        """The hex digest of the next slice of several, and its check."""
        return self._next(span, new_hasher(), self._whole)

    def next_only(self, span: ByteRange) -> tuple[str, BodyCheck | None]:
        """The hex digest of a file that is one slice, hashed once, and its check."""
        return self._next(span, self._whole)

    def _next(self, span: ByteRange, part: Hasher, *others: Hasher) -> tuple[str, BodyCheck | None]:
        check = _Check(self._upload_check)
        for block in read_blocks(self._fd, span, BLOCK, self._name):
            part.update(block)
            check.update(block)
            for other in others:
                other.update(block)
        return part.hexdigest(), check.finish()

    def whole(self) -> str:
        return self._whole.hexdigest()


class _Check:
    """The running value of ``x-amz-checksum-crc64nvme`` or ``Content-MD5``."""

    def __init__(self, algorithm: str) -> None:
        self._algorithm = algorithm
        self._crc = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, block: memoryview) -> None:
        if self._algorithm == "crc64nvme":
            self._crc = crc64nvme(block, self._crc)
        elif self._algorithm == "md5":
            self._md5.update(block)

    def finish(self) -> BodyCheck | None:
        if self._algorithm == "none":
            return None
        value = self._crc.to_bytes(8, "big") if self._algorithm == "crc64nvme" else self._md5.digest()
        return BodyCheck(self._algorithm, base64.b64encode(value).decode())


@dataclass(slots=True)
class SliceSource:
    """A slice of an open file on its way up; what is sent must have ``digest``, or nothing is.

    The file is read (from the page cache) a second time here. A change since it was hashed is noticed before the
    last block leaves; with ``is_verified`` that is left to the store, which compares the checksum that was taken
    along with the digest, and looked for here only when it has refused.
    """

    fd: int
    span: ByteRange
    digest: str
    name: str
    moved: Callable[[int], None] = _nobody
    is_verified: bool = False

    @property
    def size(self) -> int:
        return self.span.size

    def blocks(self, block_size: int) -> Iterator[bytes | memoryview]:
        is_verified, self.is_verified = self.is_verified, False
        hasher = None if is_verified else new_hasher()
        left = self.span.size
        for block in read_blocks(self.fd, self.span, block_size, self.name):
            left -= len(block)
            if hasher is not None:
                hasher.update(block)
                if left == 0 and hasher.hexdigest() != self.digest:
                    raise Superseded(f"{self.name}: its bytes changed while the checkpoint was being shipped")
            yield block
            self.moved(len(block))


@dataclass(frozen=True, slots=True)
class Held:
    """A small file in memory, with its digest and the check of its bytes."""

    data: bytes
    digest: str
    check: BodyCheck | None

    def source(self, moved: Callable[[int], None]) -> HeldSource:
        return HeldSource(self.data, moved)


@dataclass(frozen=True, slots=True)
class HeldSource:
    """A small file's bytes on their way up."""

    data: bytes
    moved: Callable[[int], None]

    @property
    def size(self) -> int:
        return len(self.data)

    def blocks(self, block_size: int) -> Iterator[bytes | memoryview]:
        for at in range(0, len(self.data), block_size):
            yield memoryview(self.data)[at : at + block_size]
        self.moved(len(self.data))


def read_held(path: Path, file: LocalFile, upload_check: str) -> Held:
    """Read a small file; ``Superseded`` unless it is the one that was looked at, before and after."""
    fd = open_unchanged(path, file.identity)
    try:
        span = ByteRange(0, file.identity.size)
        data = b"".join(bytes(block) for block in read_blocks(fd, span, BLOCK, file.path))
        if not file.identity.is_like(Identity.of(os.fstat(fd))):
            raise Superseded(f"{path}: changed while the checkpoint was being shipped")
    finally:
        os.close(fd)
    hasher, check = new_hasher(), _Check(upload_check)
    hasher.update(data)
    check.update(memoryview(data))
    return Held(data, hasher.hexdigest(), check.finish())


class Staged:
    """An open file that many threads write to, each its own span.

    One at a time: the kernel writes a file in one thread at once anyway, and has the others spin meanwhile, which
    cost a seventh of the CPU time of a large file's way down.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._turn = threading.Lock()

    def write(self, block: bytes | bytearray | memoryview, at: int) -> None:
        """Write all of ``block`` at an offset in bytes. Blocks; raises ``OSError``."""
        view = memoryview(block)
        with self._turn:
            while view:
                done = os.pwrite(self.fd, view, at)
                at += done
                view = view[done:]


class SliceSink:
    """Where a slice of a file on the way down is written, and hashed in the same pass."""

    def __init__(self, file: Staged, span: ByteRange, hasher: Hasher, moved: Callable[[int], None] = _nobody) -> None:
        self._file, self._at, self._hasher, self._moved = file, span.start, hasher, moved

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self._hasher.update(block)
        self._file.write(block, self._at)
        self._at += len(block)
        self._moved(len(block))

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()


class HeldSink:
    """Where a small file on the way down is held until it is whole."""

    def __init__(self, hasher: Hasher, moved: Callable[[int], None]) -> None:
        self._data, self._hasher, self._moved = bytearray(), hasher, moved

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self._hasher.update(block)
        self._data += block
        self._moved(len(block))

    def hexdigest(self) -> str:
        return self._hasher.hexdigest()

    def content(self) -> bytes:
        return bytes(self._data)


def hash_span(fd: int, span: ByteRange, hasher: Hasher, name: str) -> str:
    """The hex digest of a span of an open file."""
    for block in read_blocks(fd, span, BLOCK, name):
        hasher.update(block)
    return hasher.hexdigest()
