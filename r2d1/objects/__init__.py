"""The object store seam: what r2d1 asks of a bucket, and nothing more.

Every implementation (R2 in ``r2.py``, a directory in ``local.py``, memory in ``memory.py``) is held to
one contract suite, ``tests/contract/objects.py``. Errors are those of ``r2d1.errors``: a call raises
``ObjectNotFound``, ``PreconditionFailed``, … and never a library's own exception.

One call is one attempt: retrying is ``objects/resilient.py``'s work.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

#: Most objects one DeleteObjects request takes, and most keys a page of a listing holds (R2 and S3).
PAGE = 1000


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes ``start`` (included) to ``stop`` (excluded) of an object; never empty."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of an object. ``etag`` comes without quotes; ``modified`` is seconds since the epoch."""

    key: str
    size: int
    etag: str
    modified: float
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """A multipart upload that was begun and neither completed nor aborted."""

    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class BodyCheck:
    """A check that travels with a body so that the store refuses damaged bytes.

    ``algorithm`` is ``"crc64nvme"`` or ``"md5"``; ``value`` is base64 as the header wants it.
    """

    algorithm: str
    value: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part that the store has taken: its number (1 to 10,000), ETag without quotes, size in bytes.

    ``check`` is the check it carried, when the store took that: Complete must repeat it, so keep it with the part.
    ``verified``: the store said so itself, by repeating the checksum in its answer.
    """

    number: int
    etag: str
    size: int
    check: BodyCheck | None = None
    verified: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Attributes:
    """Headers kept with an object. ``metadata`` are ``x-amz-meta-*`` names without the prefix, lower case."""

    content_type: str = "application/octet-stream"
    cache_control: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


#: The headers of an object of which nothing is said.
PLAIN = Attributes()


class Source(Protocol):
    """Bytes on their way up. ``blocks`` may be called again for another attempt; it blocks: call it in a thread.

    What it raises fails the call that sends it, as it is. An iterator that is not used up is closed (if it has a
    ``close``) before the call ends, and never advanced by two threads at once.
    """

    @property
    def size(self) -> int: ...

    def blocks(self, block_size: int) -> Iterator[bytes | memoryview]:
        """Yield all bytes from the start, in blocks; a block is valid until the next one is asked for."""


class Sink(Protocol):
    """Where a range's bytes go. ``write`` is called in order, from one thread at a time, and blocks."""

    def write(self, block: bytes | bytearray | memoryview) -> None: ...


@dataclass(frozen=True, slots=True)
class BytesSource:
    """A source that is already in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def blocks(self, block_size: int) -> Iterator[bytes | memoryview]:
        view = memoryview(self.data)
        for at in range(0, len(view), block_size):
            yield view[at : at + block_size]


class BytesSink:
    """A sink that keeps everything in ``data``."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self.data += block


@dataclass(frozen=True, slots=True)
class SmallPut:
    """A small object to be written. ``check`` is called once, in a worker thread, before the source is read."""

    key: str
    source: Source
    check: Callable[[], BodyCheck | None]


@dataclass(frozen=True, slots=True)
class SmallGet:
    """A small object to be read whole, of ``size`` bytes (above 0). ``take`` gets them in a worker thread.

    ``take`` returns whether they are right; what it raises fails the call as it is.
    """

    key: str
    size: int
    if_match: str | None
    take: Callable[[bytes], bool]


class ObjectStore(Protocol):
    """A bucket. Keys are NFC text of 1 to 1,024 bytes.

    ``where`` names endpoint and bucket for messages, journals and locks; it never holds a secret.
    """

    @property
    def where(self) -> str: ...

    async def put(
        self,
        key: str,
        source: Source,
        *,
        attributes: Attributes = PLAIN,
        if_none_match: bool = False,
        if_match: str | None = None,
        check: BodyCheck | None = None,
        signed_sha256: str | None = None,
    ) -> str:
        """Write a whole object atomically and return its ETag.

        ``if_none_match`` succeeds only when the key is absent, ``if_match`` only when it has this ETag;
        else ``PreconditionFailed``. ``signed_sha256`` (hex) is sent as ``x-amz-content-sha256``.
        """

    async def put_several(self, puts: Sequence[SmallPut]) -> Sequence[str]:
        """Write small objects one after another; returns the ETags of as many as went well, from the first on.

        One wait for all costs a fraction of one for each. It ends at the first that the store or the network does
        not take at once, without a word: the caller sends the rest by ``put``, which tries again and tells.
        """

    async def get_several(self, gets: Sequence[SmallGet]) -> int:
        """Read small objects one after another; returns how many went well, from the first on.

        It ends like ``put_several``, and where ``take`` says no: the caller asks for the rest by ``get_range``.
        """

    async def get(self, key: str, *, limit: int) -> tuple[bytes, ObjectInfo]:
        """Read a small object whole; ``FormatError`` when it is larger than ``limit`` bytes."""

    async def get_range(self, key: str, span: ByteRange, sink: Sink, *, if_match: str | None = None) -> ObjectInfo:
        """Write the bytes of ``span`` to ``sink`` and return what the store says of the object.

        ``size`` of the result is the whole object's. ``PreconditionFailed`` when ``if_match`` is given and
        the ETag differs; ``RangeRefused`` when the span does not lie within the object. A connection that
        ends early raises ``RemoteUnavailable`` after the bytes that came were written.
        """

    async def head(self, key: str) -> ObjectInfo:
        """Size, ETag, time and metadata of an object."""

    def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Every object whose key begins with ``prefix``, in the order of the keys' UTF-8 bytes (no metadata)."""

    async def list_folders(self, prefix: str) -> Sequence[str]:
        """The common prefixes one ``/`` below ``prefix`` (which ends in ``/``), each ending in ``/``, sorted."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is absent counts as deleted. An error names the first key that stayed."""

    async def create_upload(self, key: str, *, attributes: Attributes = PLAIN, check: str | None = None) -> str:
        """Begin a multipart upload and return its id; ``check`` names the algorithm its parts will carry."""

    async def put_part(
        self, key: str, upload_id: str, number: int, source: Source, *, check: BodyCheck | None = None
    ) -> Part:
        """Send one part; all parts but the last must have one size of at least 5 MiB (R2's rule)."""

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, if_none_match: bool = False
    ) -> str:
        """Join the parts into the object and return its ETag. ``UploadNotFound`` when the upload is unknown."""

    async def abort_upload(self, key: str, upload_id: str) -> None:
        """Give an upload up; one that is unknown counts as aborted."""

    async def list_parts(self, key: str, upload_id: str) -> Sequence[Part]:
        """The parts an open upload has; ``NotSupported`` on stores without ListParts."""

    async def list_uploads(self, prefix: str) -> Sequence[OpenUpload]:
        """The open uploads below a prefix; ``NotSupported`` on stores without ListMultipartUploads."""

    async def aclose(self) -> None:
        """Release connections and threads. Safe to call twice."""
