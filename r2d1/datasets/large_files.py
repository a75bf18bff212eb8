"""Files that one PUT cannot carry: sent in parts of one size, joined, and settled by looking when an answer is lost."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from r2d1.datasets.label_files import LabelFile, require_same
from r2d1.datasets.open_uploads import OpenUploads
from r2d1.datasets.sending import SHA256, State, state_of
from r2d1.errors import R2D1Error, RemoteUnavailable, UploadNotFound
from r2d1.events import Teller
from r2d1.manifest import plan_part_size
from r2d1.objects import Attributes, BodyCheck, ObjectStore, Part
from r2d1.tasks import acquired, in_thread, one_error
from r2d1.transfer.files import SliceHashes, SliceSource
from r2d1.transfer.plan import plan_ranges

#: The check that travels with each part; a store that does not take it gets Content-MD5 instead.
_CHECK = "crc64nvme"
#: How long an abort may hold up what failed.
_ABORT_WITHIN_S = 10.0


async def send_in_parts(
    store: ObjectStore,
    key: str,
    file: LabelFile,
    attributes: Attributes,
    *,
    concurrency: int,
    tell: Teller,
    moved: Callable[[int], None],
    uploads: OpenUploads,
) -> None:
    """Send a file as a multipart upload, ``concurrency`` parts at once; what fails is aborted.

    ``moved`` is called after each part, with the bytes of all that were sent. In ``uploads`` the upload is noted
    until it has ended.
    """
    async with _opened(file) as handle:
        upload_id = await store.create_upload(key, attributes=attributes, check=_CHECK)
        try:
            await in_thread(uploads.began, store.where, key, upload_id)
            parts = await _send_parts(store, key, upload_id, file, handle, concurrency, moved)
            await in_thread(require_same, handle, file)
            if await _is_completed(store, key, upload_id, parts, file.identity.size, attributes.metadata[SHA256]):
                await in_thread(uploads.ended, upload_id)
            else:
                await _abort(store, key, upload_id, tell, uploads)
        except BaseException:
            await _abort(store, key, upload_id, tell, uploads)
            raise


@asynccontextmanager
async def _opened(file: LabelFile) -> AsyncIterator[int]:
    async with acquired(os.open, os.close, file.source, os.O_RDONLY | os.O_CLOEXEC) as handle:
        await in_thread(require_same, handle, file)
        yield handle


async def _send_parts(
    store: ObjectStore,
    key: str,
    upload_id: str,
    file: LabelFile,
    handle: int,
    concurrency: int,
    moved: Callable[[int], None],
) -> list[Part]:
    spans = enumerate(plan_ranges(file.identity.size, plan_part_size(file.identity.size)), start=1)
    hashes = SliceHashes(handle, str(file.source), _CHECK)
    in_order = anyio.Lock()
    sent: list[Part] = []

    async def next_slice() -> tuple[int, SliceSource, BodyCheck | None] | None:
        async with in_order:  # slices are hashed in the order of the file
            number, span = next(spans, (0, None))
            if span is None:
                return None
            digest, check = await in_thread(hashes.next_part, span)
            return number, SliceSource(handle, span, digest, str(file.source)), check

    async def work() -> None:
        while (piece := await next_slice()) is not None:
            number, source, check = piece
            sent.append(await store.put_part(key, upload_id, number, source, check=check))
            moved(sum(part.size for part in sent))

    with one_error():
        async with anyio.create_task_group() as tasks:
            for _ in range(concurrency):
                tasks.start_soon(work)
    return sorted(sent, key=lambda part: part.number)


async def _is_completed(
    store: ObjectStore, key: str, upload_id: str, parts: list[Part], size: int, sha256: str
) -> bool:
    """Join the parts. A lost answer is settled by looking: the object is right if its size and hash are.

    False then: another run may have put it there, and this upload be open.
    """
    try:
        await store.complete_upload(key, upload_id, parts)
    except (RemoteUnavailable, UploadNotFound):
        if await state_of(store, key, size=size, sha256=sha256) is not State.SAME:
            raise
        return False
    return True


async def _abort(store: ObjectStore, key: str, upload_id: str, tell: Teller, uploads: OpenUploads) -> None:
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _ABORT_WITHIN_S):
        try:
            await store.abort_upload(key, upload_id)
            await in_thread(uploads.ended, upload_id)
        except R2D1Error as error:
            text = f"an upload could not be aborted; the next run does so, or the bucket after 7 days: {error}"
            tell.notice("warning", text)
