"""Bodies written to files and read from them in short steps, hashed and checked on the way. Everything here blocks."""

from __future__ import annotations

import hashlib
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path

from r2d1.digest import crc64nvme
from r2d1.errors import BodyRefused, Superseded
from r2d1.objects import BodyCheck, ByteRange, Sink, Source
from r2d1.objects.local_ledger import disk_errors

_BLOCK = 1 << 20

#: Bytes of one step: a cancelled call waits for the step under way.
_STEP = 8 << 20


class Intake:
    """A body on its way into a temporary file. Its MD5 becomes the ETag, unless that is known already.

    Call ``step`` until it returns False, then ``finish``; or ``discard`` at any time.
    """

    def __init__(self, operation: str, key: str, temp: Path, source: Source, *, etag: str | None = None) -> None:
        self._operation, self._key = operation, key
        self._source = source
        self._blocks: Iterator[bytes | memoryview] | None = None
        self.temp = temp
        self._file: FileIO | None = None
        self._etag = etag
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha256 = hashlib.sha256()
        self._crc = 0
        self.size = 0

    def step(self, check: BodyCheck | None, sha256: str | None) -> bool:
        """Write up to 8 MiB more; whether there may be more."""
        if self._blocks is None:
            with disk_errors(self._operation, self._key):
                self._file = self.temp.open("xb", buffering=0)
            self._blocks = self._source.blocks(_BLOCK)
        until = self.size + _STEP
        while self.size < until:
            block = next(self._blocks, b"")
            if not block:
                return False
            self._take(memoryview(block), check, sha256)
        return True

    def _take(self, block: memoryview, check: BodyCheck | None, sha256: str | None) -> None:
        if self._etag is None:
            self._md5.update(block)
        if sha256 is not None:
            self._sha256.update(block)
        if check is not None and check.algorithm == "crc64nvme":
            self._crc = crc64nvme(block, self._crc)
        self.size += len(block)
        assert self._file is not None
        with disk_errors(self._operation, self._key):
            while block:
                block = block[self._file.write(block) :]

    def finish(self, check: BodyCheck | None, sha256: str | None) -> str:
        """Check the body, make it durable, and return its ETag; ``BodyRefused`` when it is not as announced."""
        if self.size != self._source.size:
            raise Superseded(f"the source gave {self.size} of {self._source.size} bytes")
        if check is not None and check.value != self._value_of(check.algorithm):
            raise self._refused("BadDigest", f"the {check.algorithm} of the body is not the one announced")
        if sha256 is not None and sha256 != self._sha256.hexdigest():
            raise self._refused("XAmzContentSHA256Mismatch", "the SHA-256 of the body is not the one announced")
        assert self._file is not None
        now = time.time_ns()
        with disk_errors(self._operation, self._key), self._file as file:
            os.utime(file.fileno(), ns=(now, now))
            os.fsync(file.fileno())
        return self._etag or self._md5.hexdigest()

    def _value_of(self, algorithm: str) -> str:
        value = self._crc.to_bytes(8, "big") if algorithm == "crc64nvme" else self._md5.digest()
        return b64encode(value).decode()

    def _refused(self, code: str, reason: str) -> BodyRefused:
        return BodyRefused(self._operation, self._key, status=400, code=code, reason=reason)

    def discard(self) -> None:
        """Close everything and remove the file, if it was not committed."""
        close = getattr(self._blocks, "close", None)
        self._blocks = None
        if self._file is not None:
            self._file.close()
        self.temp.unlink(missing_ok=True)
        if close is not None:
            close()


class Joining:
    """Files being joined into one source of bytes, for an ``Intake``."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self.size = sum(path.stat().st_size for path in paths)

    def blocks(self, block_size: int) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(block_size))
        for path in self._paths:
            with path.open("rb", buffering=0) as file:
                while got := file.readinto(buffer):
                    yield buffer[:got]


class Outlet:
    """A range of an open file on its way into a sink; call ``step`` until it returns False."""

    def __init__(self, fd: int, span: ByteRange, sink: Sink) -> None:
        self._fd, self._at, self._stop, self._sink = fd, span.start, span.stop, sink
        self._buffer = memoryview(bytearray(min(_BLOCK, span.size)))

    def step(self) -> bool:
        until = min(self._stop, self._at + _STEP)
        while self._at < until:
            got = os.preadv(self._fd, [self._buffer[: self._stop - self._at]], self._at)
            if not got:
                raise OSError(f"the file ends at {self._at}, expected {self._stop}")
            self._sink.write(self._buffer[:got])
            self._at += got
        return self._at < self._stop
