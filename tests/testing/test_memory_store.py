"""The store in memory: R2's rules behind the seam, hooks for faults, and a log that repeats itself."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import anyio
import pytest

from r2d1.errors import (
    AccessRefused,
    BodyRefused,
    FormatError,
    NotSupported,
    ObjectNotFound,
    PreconditionFailed,
    RangeRefused,
    RemoteUnavailable,
    Throttled,
    UploadNotFound,
)
from r2d1.objects import Attributes, BodyCheck, ByteRange, BytesSource, ObjectStore, OpenUpload
from r2d1.tasks import inline
from r2d1.testing.blob import Blob
from r2d1.testing.bodies import checksum_of
from r2d1.testing.bucket import Bucket
from r2d1.testing.memory import MemoryStore, logical_clock
from r2d1.testing.rules import Rules


class Received:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self.data += block


def crc(data: bytes) -> BodyCheck:
    return BodyCheck("crc64nvme", checksum_of("crc64nvme", Blob([data])))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


async def test_it_is_an_object_store(store: MemoryStore) -> None:
    """It has the calls of the seam, objects and metadata come back as they were sent."""
    seam: ObjectStore = store
    etag = await seam.put("a/b", BytesSource(b"hello"), attributes=Attributes("text/x", metadata={"n": "1"}))
    assert etag == hashlib.md5(b"hello").hexdigest()
    data, info = await seam.get("a/b", limit=5)
    assert (data, info.size, info.etag, info.metadata) == (b"hello", 5, etag, {"n": "1"})
    assert await seam.head("a/b") == info
    assert [found.key async for found in seam.list("a/")] == ["a/b"]
    assert list(await seam.list_folders("")) == ["a/"]
    await seam.delete(["a/b", "nothing"])
    with pytest.raises(ObjectNotFound, match="a/b"):
        await seam.head("a/b")
    await seam.aclose()


async def test_refusals_are_errors_of_r2d1(store: MemoryStore) -> None:
    """Each refusal of the model arrives as the error the seam promises, with operation, key, status and code."""
    await store.put("a", BytesSource(b"hello"))
    with pytest.raises(PreconditionFailed) as caught:
        await store.put("a", BytesSource(b"x"), if_none_match=True)
    assert (caught.value.operation, caught.value.subject) == ("PutObject", "a")
    assert (caught.value.status, caught.value.code) == (412, "PreconditionFailed")
    with pytest.raises(PreconditionFailed):
        await store.put("a", BytesSource(b"x"), if_match="0" * 32)
    with pytest.raises(PreconditionFailed):
        await store.get_range("a", ByteRange(0, 1), Received(), if_match="0" * 32)
    for span in (ByteRange(5, 6), ByteRange(4, 6)):
        with pytest.raises(RangeRefused):
            await store.get_range("a", span, Received())
    with pytest.raises(FormatError, match="a"):
        await store.get("a", limit=4)
    with pytest.raises(UploadNotFound):
        await store.put_part("a", "never", 1, BytesSource(b"x"))
    await store.abort_upload("a", "never")


async def test_checks_travel_with_bodies(store: MemoryStore) -> None:
    """A body that is not what its check says is BodyRefused and changes nothing."""
    await store.put("a", BytesSource(b"one"), check=crc(b"one"))
    md5 = BodyCheck("md5", base64.b64encode(hashlib.md5(b"two").digest()).decode())
    await store.put("a", BytesSource(b"two"), check=md5, signed_sha256=hashlib.sha256(b"two").hexdigest())
    for wrong in (crc(b"two"), md5):
        with pytest.raises(BodyRefused):
            await store.put("a", BytesSource(b"three"), check=wrong)
    with pytest.raises(BodyRefused):
        await store.put("a", BytesSource(b"three"), signed_sha256=hashlib.sha256(b"two").hexdigest())
    assert (await store.get("a", limit=9))[0] == b"two"


async def test_a_source_that_shrank(store: MemoryStore) -> None:
    """A source that has fewer bytes than it announced is refused like a body that ended early."""

    class Shrunk(BytesSource):
        @property
        def size(self) -> int:
            return 9

    with pytest.raises(BodyRefused, match="IncompleteBody"):
        await store.put("a", Shrunk(b"short"))


async def test_multipart_by_the_seam(store: MemoryStore) -> None:
    """Parts are listed, joined and gone; the ETag is that of a multipart upload."""
    upload_id = await store.create_upload("a", attributes=Attributes(cache_control="no-cache"), check="crc64nvme")
    parts = [
        await store.put_part("a", upload_id, number, BytesSource(data), check=crc(data))
        for number, data in enumerate((b"aaa", b"bbb", b"c"), start=1)
    ]
    assert list(await store.list_parts("a", upload_id)) == parts
    assert list(await store.list_uploads("")) == [OpenUpload("a", upload_id)]
    etag = await store.complete_upload("a", upload_id, parts, if_none_match=True)
    assert etag.endswith("-3")
    assert (await store.get("a", limit=9))[0] == b"aaabbbc"
    assert store.model.stored("a").kept.headers["cache-control"] == "no-cache"  # type: ignore[union-attr]
    assert list(await store.list_uploads("")) == []


async def test_listings_go_through_their_pages() -> None:
    """Objects, folders, parts and uploads come complete when a page holds two of them."""
    store = MemoryStore(Bucket(replace(Rules.lenient(), page_size=2), clock=logical_clock()))
    keys = [f"p/{n}/x" for n in range(5)]
    uploads = []
    for key in keys:
        store.model.place(key, b"")
        uploads.append(OpenUpload(key, await store.create_upload(key)))
    parts = [await store.put_part(keys[0], uploads[0].upload_id, n, BytesSource(b"x")) for n in range(1, 6)]
    assert [info.key async for info in store.list("p/")] == keys
    assert [info.key async for info in store.list("p/", start_after="p/2/x")] == keys[3:]
    assert list(await store.list_folders("p/")) == [f"p/{n}/" for n in range(5)]
    assert list(await store.list_parts(keys[0], uploads[0].upload_id)) == parts
    assert list(await store.list_uploads("p/")) == uploads
    assert [record.operation for record in store.requests].count("ListObjectsV2") == 3 + 1 + 3


async def test_profiles() -> None:
    """A store without ListParts says so, a token without rights is refused, R2's pace is Throttled."""
    rules = Rules(missing=frozenset({"ListParts"}), forbidden=frozenset({"ListMultipartUploads"}))
    store = MemoryStore(Bucket(rules, clock=lambda: 1_700_000_000.0))
    with pytest.raises(NotSupported):
        await store.list_parts("a", await store.create_upload("a"))
    with pytest.raises(AccessRefused):
        await store.list_uploads("")
    await store.put("a", BytesSource(b""))
    with pytest.raises(Throttled):
        await store.put("a", BytesSource(b""))


async def test_hooks_act_before_and_after_a_request() -> None:
    """What ``before`` raises had no effect, what ``after`` raises is a reply that was lost."""
    seen: list[str] = []

    async def before(operation: str, key: str) -> None:
        seen.append(f"before {operation} {key} {hooked.model.keys()}")
        if len(seen) == 1:
            raise RemoteUnavailable(operation, key, reason="never arrived")

    async def after(operation: str, key: str) -> None:
        seen.append(f"after {operation} {key} {hooked.model.keys()}")
        raise RemoteUnavailable(operation, key, reason="the reply was lost")

    hooked = MemoryStore(before=before, after=after)
    with pytest.raises(RemoteUnavailable, match="never arrived"):
        await hooked.put("a", BytesSource(b"x"))
    assert hooked.requests == []
    with pytest.raises(RemoteUnavailable, match="lost"):
        await hooked.put("a", BytesSource(b"x"))
    assert seen == ["before PutObject a []", "before PutObject a []", "after PutObject a ['a']"]


async def test_wires_damage_and_cut_bodies(store: MemoryStore) -> None:
    """A body can be damaged on its way up, and damaged or cut on its way down."""
    store.wire_up = lambda key, at, block: b"j" + block[1:] if at == 0 else block
    with pytest.raises(BodyRefused):
        await store.put("a", BytesSource(b"hello"), check=crc(b"hello"))
    await store.put("a", BytesSource(b"hello"))
    assert (await store.get("a", limit=5))[0] == b"jello"

    data = bytes(range(256)) * 4096
    store.wire_up = None
    await store.put("b", BytesSource(data))

    def cut(key: str, at: int, block: bytes) -> bytes:
        if at > 300_000:
            raise RemoteUnavailable("GetObject", key, reason="cut")
        return block

    store.wire_down = cut
    sink = Received()
    with pytest.raises(RemoteUnavailable, match="cut"):
        await store.get_range("b", ByteRange(100, len(data)), sink)
    assert bytes(sink.data) == data[100 : 100 + len(sink.data)]
    assert 0 < len(sink.data) < len(data)


async def test_requests_are_logged(store: MemoryStore) -> None:
    """The log has operation, key, bytes, status and code of every request, in order."""
    await store.put("a", BytesSource(b"hello"))
    upload_id = await store.create_upload("b")
    await store.put_part("b", upload_id, 1, BytesSource(b"xy"))
    with pytest.raises(ObjectNotFound):
        await store.head("c")
    assert [
        (record.number, record.method, record.operation, record.key, record.received, record.status, record.code)
        for record in store.requests
    ] == [
        (1, "PUT", "PutObject", "a", 5, 200, ""),
        (2, "POST", "CreateMultipartUpload", "b", 0, 200, ""),
        (3, "PUT", "UploadPart", "b", 2, 200, ""),
        (4, "HEAD", "HeadObject", "c", 0, 404, "NoSuchKey"),
    ]
    assert store.requests[2].part_number == 1


async def test_the_same_calls_give_the_same_log() -> None:
    """Two runs of interleaved tasks, threads in line, leave equal logs and equal buckets."""

    async def run() -> tuple[list[object], list[object]]:
        store = MemoryStore()

        async def worker(name: str) -> None:
            for number in range(3):
                await store.put(f"{name}/{number}", BytesSource(b"x"))
            upload_id = await store.create_upload(name)
            await store.complete_upload(name, upload_id, [await store.put_part(name, upload_id, 1, BytesSource(b"x"))])

        async with anyio.create_task_group() as tasks:
            for name in "abc":
                tasks.start_soon(worker, name)
        objects = [info async for info in store.list("")]
        return list(store.requests), list(objects)

    token = inline.set(lambda func: None)
    try:
        assert await run() == await run()
    finally:
        inline.reset(token)


async def test_stores_share_a_bucket() -> None:
    """What one store writes another one over the same bucket reads."""
    first = MemoryStore()
    second = MemoryStore(first.model, name="second")
    await first.put("a", BytesSource(b"x"))
    assert (await second.head("a")).size == 1
    assert (first.where, second.where) == ("memory://memory", "memory://second")
