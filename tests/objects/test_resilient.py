"""The store that repeats: what is tried again and how often, and what never is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from r2d1.errors import (
    AccessRefused,
    BodyRefused,
    NotSent,
    PreconditionFailed,
    RemoteError,
    RemoteUnavailable,
    Throttled,
)
from r2d1.events import Event, Retried, Teller
from r2d1.objects import ByteRange, BytesSource
from r2d1.objects.r2 import R2Store
from r2d1.objects.resilient import BODY_TRIES, Resilient
from r2d1.retry import Brake, RetryPolicy
from r2d1.settings import Settings
from r2d1.testing import (
    Answer,
    CutReply,
    Fault,
    FlipRequest,
    MemoryStore,
    Reset,
    Rules,
    S3Double,
    Swallow,
    When,
)
from tests.contract.objects import Blocks, Gathered, crc64nvme_of, pattern

MIB = 1 << 20
QUICK = RetryPolicy(attempts=6, base_s=0.001, cap_s=0.002)


@pytest.fixture
def double() -> Iterator[S3Double]:
    with S3Double(rules=Rules(min_part_size=1, write_interval_s=0, page_size=10)) as double:
        yield double


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
async def store(double: S3Double, told: list[Event]) -> AsyncIterator[Resilient]:
    tell = Teller(told.append)
    inner = R2Store(Settings.from_env(environ=double.env()), tell=tell)
    store = Resilient(inner, policy=QUICK, brake=Brake(), tell=tell)
    yield store
    await store.aclose()


async def test_passing_trouble_is_not_seen(double: S3Double, store: Resilient, told: list[Event]) -> None:
    """Every kind of call goes on through resets, lost replies and 500s; each repetition is an event."""
    data = pattern(MIB)
    for operation in (
        "PutObject",
        "GetObject",
        "HeadObject",
        "ListObjectsV2",
        "DeleteObjects",
        "DeleteObject",
        "CreateMultipartUpload",
        "UploadPart",
        "ListParts",
        "ListMultipartUploads",
        "AbortMultipartUpload",
    ):
        double.faults.add(*(Fault(When(operation=operation), do) for do in (Reset(), Answer(502), Swallow())))
    await store.put("k", Blocks(data))
    assert (await store.get("k", limit=MIB))[0] == data
    assert (await store.head("k")).size == MIB
    upload = await store.create_upload("m")
    part = await store.put_part("m", upload, 1, Blocks(data))
    assert list(await store.list_parts("m", upload)) == [part]
    assert upload in [open_one.upload_id for open_one in await store.list_uploads("")]
    await store.abort_upload("m", upload)
    assert [info.key async for info in store.list("")] == ["k"]
    assert list(await store.list_folders("")) == []
    await store.delete(["k"])
    await store.delete(["k", "l"])
    retried = [event for event in told if isinstance(event, Retried)]
    assert len(retried) == len(told) == 33
    assert (retried[0].operation, retried[0].subject, retried[0].attempt) == ("PutObject", "k", 1)


async def test_a_conditional_put_is_not_repeated_after_a_lost_reply(double: S3Double, store: Resilient) -> None:
    """When the first attempt may have had its effect, the caller is told, and settles it by looking."""
    for do in (Swallow(), Answer(500), Reset()):
        double.faults.add(Fault(When(operation="PutObject"), do))
        before = len(double.requests)
        with pytest.raises(RemoteUnavailable) as caught:
            await store.put("k", BytesSource(b"x"), if_none_match=True)
        assert caught.value.ambiguous
        assert len(double.requests) == before + 1
    assert double.get("k") == b"x"


async def test_a_conditional_put_is_repeated_when_it_had_no_effect(double: S3Double, store: Resilient) -> None:
    """Throttling, a refused connection and a damaged body had no effect: the second attempt is the first."""
    double.faults.add(Fault(When(operation="PutObject"), Answer(429, "TooManyRequests")))
    double.faults.add(Fault(When(operation="PutObject"), Answer(503, "SlowDown")))
    double.faults.add(Fault(When(operation="PutObject"), FlipRequest()))
    etag = await store.put("k", BytesSource(b"body"), if_none_match=True)
    assert double.get("k") == b"body"
    await store.put("k", BytesSource(b"next"), if_match=etag)
    with pytest.raises(PreconditionFailed):
        await store.put("k", BytesSource(b"late"), if_match=etag)
    with double.refusing_connections(), pytest.raises(NotSent) as caught:
        await store.put("l", BytesSource(b"x"), if_none_match=True)
    assert caught.value.attempts == QUICK.attempts


async def test_a_complete_is_not_repeated_after_a_lost_reply(double: S3Double, store: Resilient) -> None:
    """A second Complete would meet the work of the first as an unknown upload."""
    upload = await store.create_upload("m")
    part = await store.put_part("m", upload, 1, BytesSource(b"x"))
    double.faults.add(Fault(When(operation="CompleteMultipartUpload"), Answer(429, "TooManyRequests")))
    double.faults.add(Fault(When(operation="CompleteMultipartUpload"), Swallow()))
    with pytest.raises(RemoteUnavailable) as caught:
        await store.complete_upload("m", upload, [part])
    assert (caught.value.attempts, caught.value.ambiguous) == (2, True)
    assert double.get("m") == b"x"


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "InvalidPart"), (507, "Full"), (501, "No")])
async def test_a_refusal_for_good_is_not_repeated(double: S3Double, store: Resilient, status: int, code: str) -> None:
    """What cannot become better is asked once (case 29)."""
    double.faults.add(Fault(When(), Answer(status, code), times=None))
    with pytest.raises(RemoteError) as caught:
        await store.put("k", BytesSource(b"x"))
    assert (caught.value.attempts, caught.value.status) == (1, status)
    assert len(double.requests) == 1


async def test_damage_on_the_way_up_is_repaired(double: S3Double, store: Resilient) -> None:
    """A part that arrives damaged is refused and sent again, with the same check (case 78)."""
    data = pattern(MIB)
    upload = await store.create_upload("m", check="crc64nvme")
    double.faults.add(Fault(When(operation="UploadPart"), FlipRequest(at=MIB // 2), times=2))
    part = await store.put_part("m", upload, 1, Blocks(data), check=crc64nvme_of(data))
    await store.complete_upload("m", upload, [part])
    assert double.get("m") == data


async def test_damage_that_stays_is_given_up(double: S3Double, store: Resilient) -> None:
    """A body refused a few times in a row is not the network's doing."""
    double.faults.add(Fault(When(), FlipRequest(), times=None))
    with pytest.raises(BodyRefused) as caught:
        await store.put("k", BytesSource(b"body"), check=crc64nvme_of(b"body"))
    assert caught.value.attempts == BODY_TRIES
    assert double.keys() == []


async def test_attempts_are_bounded(double: S3Double, store: Resilient) -> None:
    """Trouble that lasts ends in the last error, which tells the number of attempts."""
    double.faults.add(Fault(When(), Answer(503), times=None))
    with pytest.raises(RemoteUnavailable, match="6 attempts"):
        await store.head("k")
    assert len(double.requests) == QUICK.attempts


async def test_a_range_goes_on_where_it_broke(double: S3Double, store: Resilient) -> None:
    """Bytes that came are not fetched again, and the rest is bound to the same object (with and without an ETag)."""
    data = pattern(12 * MIB)
    etag = double.put("k", data)
    for if_match in (None, etag):
        double.faults.clear()
        double.faults.add(Fault(When(operation="GetObject"), CutReply(after=5 * MIB), times=2))
        double.log.clear()
        sink = Gathered()
        info = await store.get_range("k", ByteRange(0, len(data)), sink, if_match=if_match)
        assert (sink.data == data, info.size) == (True, len(data))
        first, second, third = double.requests
        assert first.headers["range"] == f"bytes=0-{12 * MIB - 1}"
        assert second.headers["if-match"] == third.headers["if-match"] == f'"{etag}"'
        starts = [int(record.headers["range"].removeprefix("bytes=").split("-")[0]) for record in double.requests]
        assert 0 < starts[1] < starts[2]
        assert sum(record.sent for record in double.requests) < 14 * MIB


async def test_a_range_never_blends_two_objects(double: S3Double, store: Resilient) -> None:
    """An object replaced between two attempts is noticed."""
    double.put("k", pattern(12 * MIB, 1))
    double.faults.add(Fault(When(operation="GetObject"), CutReply(after=5 * MIB)))

    class Replacing(Gathered):
        def write(self, block: bytes | bytearray | memoryview) -> None:
            super().write(block)
            double.put("k", pattern(12 * MIB, 2))

    with pytest.raises(PreconditionFailed):
        await store.get_range("k", ByteRange(0, 12 * MIB), Replacing())


async def test_a_listing_goes_on_where_it_broke(double: S3Double, store: Resilient) -> None:
    """Trouble between pages neither repeats nor skips a key, and asks for no page twice that came whole."""
    keys = [f"k/{number:03}" for number in range(35)]
    for key in keys:
        double.put(key, b"x")
    double.faults.add(*(Fault(When(operation="ListObjectsV2", nth=nth), Answer(500)) for nth in (1, 3, 5)))
    assert [info.key async for info in store.list("k/")] == keys
    assert [info.key async for info in store.list("k/", start_after=keys[20])] == keys[21:]


async def test_one_listing_stays_one_listing() -> None:
    """While nothing breaks, the pages of the store are asked for once each."""
    memory = MemoryStore()
    for number in range(2500):
        memory.model.place(f"k{number:05}", b"x")
    store = Resilient(memory, policy=QUICK, brake=Brake(), tell=Teller(None))
    assert len([info async for info in store.list("k")]) == 2500
    assert len(memory.requests) == 3


async def test_pushback_slows_everybody(told: list[Event]) -> None:
    """A Retry-After to one request holds back the others of the same client (case 28)."""
    memory = MemoryStore()
    waited: list[float] = []
    brake = Brake()

    async def push_back(operation: str, key: str) -> None:
        waited.append(anyio.current_time())
        if len(waited) == 1:
            raise Throttled(operation, key, status=503, retry_after=0.3)

    memory.before = push_back
    memory.model.place("k", b"x")
    store = Resilient(memory, policy=QUICK, brake=brake, tell=Teller(told.append))
    other = Resilient(memory, policy=QUICK, brake=brake, tell=Teller(None))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.head, "k")
        while not waited:
            await anyio.sleep(0)
        await anyio.sleep(0)
        tasks.start_soon(other.head, "k")
    assert len(waited) == 3
    assert min(waited[1:]) - waited[0] >= 0.3
    assert isinstance(told[0], Retried)


async def test_credentials_are_asked_once(double: S3Double, store: Resilient) -> None:
    """A wrong secret is told at once."""
    double.rotate(double.access_key, "another")
    with pytest.raises(AccessRefused) as caught:
        [info async for info in store.list("")]
    assert caught.value.attempts == 1
