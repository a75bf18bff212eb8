"""An object store that repeats what may be repeated: the only place where requests to a bucket are tried again.

What is repeated: everything whose second effect is the first one's. A conditional PUT and a Complete are not:
they are repeated only after errors that certainly had no effect, for otherwise the second attempt would meet the
work of the first and report it as somebody else's. Who called settles those by looking.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from r2d1.errors import BodyRefused, RemoteError, RemoteUnavailable
from r2d1.events import Teller
from r2d1.objects import (
    PAGE,
    PLAIN,
    Attributes,
    BodyCheck,
    ByteRange,
    ObjectInfo,
    ObjectStore,
    OpenUpload,
    Part,
    Sink,
    SmallGet,
    SmallPut,
    Source,
)
from r2d1.retry import Brake, RetryPolicy, retried

T = TypeVar("T")

#: How often a body is sent that the store says arrived damaged. What breaks it every time is not the network.
BODY_TRIES = 4


class Resilient:
    """A store around another one, with retries by ``policy``; ``brake`` is shared by all stores of one client."""

    def __init__(self, store: ObjectStore, *, policy: RetryPolicy, brake: Brake, tell: Teller) -> None:
        self._store = store
        self._policy = policy
        self._brake = brake
        self._tell = tell

    @property
    def where(self) -> str:
        return self._store.where

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
        is_conditional = if_none_match or if_match is not None
        return await self._retried(
            lambda: self._store.put(
                key,
                source,
                attributes=attributes,
                if_none_match=if_none_match,
                if_match=if_match,
                check=check,
                signed_sha256=signed_sha256,
            ),
            unless=lambda error: is_conditional and error.ambiguous,
        )

    async def put_several(self, puts: Sequence[SmallPut]) -> Sequence[str]:
        await self._brake.wait()
        etags = await self._store.put_several(puts)
        if len(etags) == len(puts):
            self._brake.ease()
        return etags

    async def get_several(self, gets: Sequence[SmallGet]) -> int:
        await self._brake.wait()
        done = await self._store.get_several(gets)
        if done == len(gets):
            self._brake.ease()
        return done

    async def get(self, key: str, *, limit: int) -> tuple[bytes, ObjectInfo]:
        return await self._retried(lambda: self._store.get(key, limit=limit))

    async def get_range(self, key: str, span: ByteRange, sink: Sink, *, if_match: str | None = None) -> ObjectInfo:
        counted = _Counted(sink)
        etag = if_match

        async def rest() -> ObjectInfo:
            nonlocal etag
            if counted.written == span.size:  # the connection broke after the last byte
                return await self._store.head(key)
            left = ByteRange(span.start + counted.written, span.stop)
            try:
                return await self._store.get_range(key, left, counted, if_match=etag)
            except RemoteUnavailable as error:
                etag = etag or error.etag
                raise

        # Without an ETag nothing would bind the rest to the bytes that came.
        return await self._retried(rest, unless=lambda _: bool(counted.written) and etag is None)

    async def head(self, key: str) -> ObjectInfo:
        return await self._retried(lambda: self._store.head(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        walk = _Walk(self._store, prefix, start_after)
        try:
            while page := await self._retried(walk.next_page):
                for info in page:
                    yield info
        finally:
            await walk.aclose()

    async def list_folders(self, prefix: str) -> Sequence[str]:
        return await self._retried(lambda: self._store.list_folders(prefix))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._retried(lambda: self._store.delete(keys))

    async def create_upload(self, key: str, *, attributes: Attributes = PLAIN, check: str | None = None) -> str:
        return await self._retried(lambda: self._store.create_upload(key, attributes=attributes, check=check))

    async def put_part(
        self, key: str, upload_id: str, number: int, source: Source, *, check: BodyCheck | None = None
    ) -> Part:
        return await self._retried(lambda: self._store.put_part(key, upload_id, number, source, check=check))

    async def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, if_none_match: bool = False
    ) -> str:
        return await self._retried(
            lambda: self._store.complete_upload(key, upload_id, parts, if_none_match=if_none_match),
            unless=lambda error: error.ambiguous,
        )

    async def abort_upload(self, key: str, upload_id: str) -> None:
        await self._retried(lambda: self._store.abort_upload(key, upload_id))

    async def list_parts(self, key: str, upload_id: str) -> Sequence[Part]:
        return await self._retried(lambda: self._store.list_parts(key, upload_id))

    async def list_uploads(self, prefix: str) -> Sequence[OpenUpload]:
        return await self._retried(lambda: self._store.list_uploads(prefix))

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _retried(
        self, func: Callable[[], Awaitable[T]], *, unless: Callable[[RemoteError], bool] = lambda _: False
    ) -> T:
        refused_bodies = 0

        def again(error: RemoteError) -> bool:
            nonlocal refused_bodies
            refused_bodies += isinstance(error, BodyRefused)
            return error.transient and refused_bodies < BODY_TRIES and not unless(error)

        return await retried(func, policy=self._policy, brake=self._brake, tell=self._tell, again=again)


class _Walk:
    """A listing that goes on where it broke off.

    As long as nothing breaks it is one listing to the store: some servers' order is not that of ``start_after``.
    """

    def __init__(self, store: ObjectStore, prefix: str, start_after: str) -> None:
        self._store = store
        self._prefix = prefix
        self._last = start_after
        self._infos: AsyncGenerator[ObjectInfo, None] | None = None
        self._page: list[ObjectInfo] = []

    async def next_page(self) -> list[ObjectInfo]:
        """The next objects, none at the end. What came before an error is kept for the next call."""
        if self._infos is None:
            self._infos = self._store.list(self._prefix, start_after=self._last)
        try:
            while len(self._page) < PAGE and (info := await anext(self._infos, None)) is not None:
                self._page.append(info)
                self._last = info.key
        except RemoteError:
            await self.aclose()
            raise
        page, self._page = self._page, []
        return page

    async def aclose(self) -> None:
        if self._infos is not None:
            await self._infos.aclose()
            self._infos = None


class _Counted:
    """A sink that knows how much it was given."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.written = 0

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self._sink.write(block)
        self.written += len(block)
