"""Putting the files of a dataset into a bucket: looked for first, sent with their real SHA-256, settled by looking."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import anyio

from r2d1 import keys
from r2d1.errors import (
    ConfigError,
    IntegrityError,
    NameRefused,
    NotSupported,
    ObjectNotFound,
    PreconditionFailed,
    R2D1Error,
    RemoteError,
    RemoteUnavailable,
)
from r2d1.events import Teller
from r2d1.objects import Attributes, ByteRange, BytesSource, ObjectStore, Source
from r2d1.objects.opening import open_store
from r2d1.retry import Brake, RetryPolicy, retried
from r2d1.settings import Settings

#: The name under which the SHA-256 travels: ``x-amz-meta-sha256``.
SHA256 = "sha256"
IMMUTABLE = "public, max-age=31536000, immutable"
NO_CACHE = "no-cache"
BINARY = "application/octet-stream"
JSON = "application/json"

#: What stores answer to a condition that does not hold: R2 and S3 say 412, some say 304 or 409.
_LOST_RACE = (304, 409, 412)


class Conflict(R2D1Error):
    """A key that may not change holds other bytes than those to be published."""


class State(Enum):
    """What a bucket holds under a key, compared with what should be there."""

    ABSENT = "absent"
    SAME = "same"
    OTHER = "other"


def join_key(prefix: str, path: str) -> str:
    """The key of ``path`` below a prefix; an empty prefix adds no slash.

    ``NameRefused`` when it is none, ``ConfigError`` when checkpoints lie there.
    """
    key = keys.check_key(f"{prefix}/{path}" if prefix else path)
    if key.startswith(keys.JOBS):
        raise ConfigError(f"{keys.shown(key)}: checkpoints lie below {keys.JOBS}, and no dataset does")
    return key


def checked_prefix(prefix: str) -> str:
    """A prefix without the slashes at its end. ``ConfigError`` when it cannot begin a key."""
    bare = prefix.rstrip("/")
    if not bare and prefix:
        raise ConfigError("the prefix '/' is none; leave it out to publish at the top of the bucket")
    try:
        below = keys.nfc(keys.check_path(bare)) if bare else ""
    except NameRefused as exc:
        raise ConfigError(f"the prefix cannot be used: {exc}") from exc
    if f"{below}/".startswith(keys.JOBS):
        raise ConfigError(f"the prefix {keys.shown(below)} cannot be used: checkpoints lie below {keys.JOBS}")
    return below


def attributes_of(sha256: str, *, content_type: str, cache_control: str) -> Attributes:
    """The headers that a published object is stored with."""
    return Attributes(content_type, cache_control, {SHA256: sha256})


@dataclass(frozen=True, slots=True)
class HashedFile:
    """A file on its way up whose bytes must have ``sha256``: other bytes are noticed before the last of them leaves."""

    path: Path
    size: int
    sha256: str
    moved: Callable[[int], None] | None = None  # called with how many bytes were taken, in the thread that sends

    def blocks(self, block_size: int) -> Iterator[bytes | memoryview]:
        """The file's bytes; ``IntegrityError`` when they are not those that the hash was taken of."""
        hasher = hashlib.sha256()
        left = self.size
        with self.path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != self.size:
                raise self._changed(f"it no longer has {self.size} bytes")
            while block := file.read(min(block_size, left)):
                hasher.update(block)
                left -= len(block)
                if not left:
                    self._check(hasher.hexdigest())
                yield block
                if self.moved is not None:
                    self.moved(self.size - left)
        if left:
            raise self._changed(f"it ended {left} bytes early")

    def _check(self, found: str) -> None:
        if found != self.sha256:
            raise self._changed(f"its sha256 is {found}, not {self.sha256}")

    def _changed(self, what: str) -> IntegrityError:
        return IntegrityError(f"{self.path}: {what}; it was damaged or changed, and nothing of it is published")


@asynccontextmanager
async def opened_store(settings: Settings, store: ObjectStore | None, tell: Teller) -> AsyncIterator[ObjectStore]:
    """The store that is given, left open, or that of the settings, closed at the end."""
    if store is not None:
        yield store
        return
    for notice in settings.notices():
        tell.notice("warning", notice, once=notice)
    opened = open_store(settings, tell=tell)
    try:
        yield opened
    finally:
        with anyio.CancelScope(shield=True):
            await opened.aclose()


class _Hashing:
    """A sink that keeps nothing but the hash."""

    def __init__(self) -> None:
        self.hasher = hashlib.sha256()

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self.hasher.update(block)


async def state_of(store: ObjectStore, key: str, *, size: int, sha256: str) -> State:
    """Compare an object with what should be there: size and stored SHA-256, or its bytes where none is stored."""
    try:
        info = await store.head(key)
        if info.size != size:
            return State.OTHER
        said = info.metadata.get(SHA256)
        if said is None:
            said = await _read_sha256(store, key, size, info.etag)
    except (ObjectNotFound, PreconditionFailed):
        return State.ABSENT  # deleted or replaced while it was looked at: what follows looks again
    return State.SAME if said == sha256 else State.OTHER


async def _read_sha256(store: ObjectStore, key: str, size: int, etag: str) -> str:
    sink = _Hashing()
    if size:
        await store.get_range(key, ByteRange(0, size), sink, if_match=etag)
    return sink.hasher.hexdigest()


@dataclass(slots=True)
class Placing:
    """Puts objects of one publication; ``brake`` slows all of it when the store asks for that."""

    store: ObjectStore
    tell: Teller
    brake: Brake = field(default_factory=Brake)
    policy: RetryPolicy = field(default_factory=RetryPolicy)

    async def place_new(self, key: str, source: Source, attributes: Attributes) -> bool:
        """Create an object that never changes, and say whether its bytes were sent.

        One that is there with the same bytes is left alone. A lost answer, a condition that did not hold and a race
        with another publisher are settled by looking. ``Conflict`` when other bytes are there.
        """
        size, sha256 = source.size, attributes.metadata[SHA256]
        sent = False

        async def attempt() -> bool:
            nonlocal sent
            state = await state_of(self.store, key, size=size, sha256=sha256)
            if state is State.ABSENT:
                sent = True
                await self._create(key, source, attributes)
            elif state is State.OTHER:
                raise _conflict(key, size, sha256)
            return sent

        return await retried(attempt, policy=self.policy, brake=self.brake, tell=self.tell, again=_unsettled)

    async def _create(self, key: str, source: Source, attributes: Attributes) -> None:
        sha256 = attributes.metadata[SHA256]
        try:
            await self.store.put(key, source, attributes=attributes, if_none_match=True, signed_sha256=sha256)
        except NotSupported:
            self.tell.notice(
                "warning",
                f"{self.store.where} refuses If-None-Match: what another program writes to a key at the same moment"
                " could be overwritten; `r2d1 doctor` tells more",
                once="no conditions",
            )
            await self.store.put(key, source, attributes=attributes, signed_sha256=sha256)
        except RemoteError as error:
            if error.status not in _LOST_RACE:
                raise
            raise Unsettled(error.operation, key, reason="another program was writing this key") from error

    async def document_state(self, key: str, data: bytes) -> State:
        """What is there where a document is to be."""
        return await state_of(self.store, key, size=len(data), sha256=hashlib.sha256(data).hexdigest())

    async def place_document(self, key: str, data: bytes) -> State:
        """Write a document that may be replaced, unless it is there already; returns what was there before."""
        before = await self.document_state(key, data)
        if before is not State.SAME:
            sha256 = hashlib.sha256(data).hexdigest()
            attributes = attributes_of(sha256, content_type=JSON, cache_control=NO_CACHE)
            await self.store.put(key, BytesSource(data), attributes=attributes, signed_sha256=sha256)
        return before


class Unsettled(RemoteUnavailable):
    """A condition did not hold: whose bytes are there is told by looking again."""


def _unsettled(error: RemoteError) -> bool:
    """What a conditional PUT leaves in doubt. All else has been repeated by the store already."""
    return error.ambiguous and error.operation == "PutObject"


def _conflict(key: str, size: int, sha256: str) -> Conflict:
    return Conflict(
        f"{key}: the bucket holds an object of this key that is not the {size} bytes with the sha256 {sha256};"
        " nothing was overwritten. Find out who wrote it, delete it, and publish again"
    )
