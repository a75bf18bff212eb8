"""The R2 store on the wire: what it sends, how bodies travel, what it makes of ranges, and how it stops."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from r2d1.errors import (
    AccessRefused,
    BodyRefused,
    Closed,
    RangeRefused,
    RemoteError,
    RemoteUnavailable,
)
from r2d1.events import Event, Notice, Teller
from r2d1.objects import Attributes, ByteRange, BytesSource, r2_client
from r2d1.objects.r2 import R2Store
from r2d1.objects.r2_bodies import UploadBody
from r2d1.settings import Secret, Settings
from r2d1.testing import (
    Answer,
    Call,
    CutReply,
    Fault,
    Gate,
    Hold,
    RequestRecord,
    Reset,
    Rules,
    S3Double,
    Stall,
    Swallow,
    When,
)
from tests.contract.objects import Blocks, Gathered, crc64nvme_of, md5_of, pattern
from tests.objects.raw_server import answering, http, serving, store_at
from tests.tls import Authority

MIB = 1 << 20


@pytest.fixture
def double() -> Iterator[S3Double]:
    with S3Double(rules=Rules.lenient()) as double:
        yield double


@pytest.fixture
def told() -> list[Event]:
    return []


@pytest.fixture
async def store(double: S3Double, told: list[Event]) -> AsyncIterator[R2Store]:
    store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(told.append))
    yield store
    await store.aclose()


@pytest.fixture
def tls_double(tmp_path: Path) -> Iterator[tuple[S3Double, Settings]]:
    authority = Authority()
    pem = authority.write_server_pem(tmp_path / "server.pem")
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(authority.pem)
    with S3Double(rules=Rules.lenient(), certfile=pem) as double:
        yield double, Settings.from_env(environ=double.env() | {"R2D1_CA_BUNDLE": str(bundle)})


async def use_everything(store: R2Store) -> None:
    """Every kind of request once."""
    small, large = b"small", pattern(2 * MIB)
    await store.put("small", BytesSource(small), attributes=Attributes(metadata={"a": "1"}), if_none_match=True)
    await store.put("large", Blocks(large), check=crc64nvme_of(large))
    await store.put("signed", Blocks(large), signed_sha256=hashlib.sha256(large).hexdigest())
    await store.put("md5", Blocks(large), check=md5_of(large))
    await store.put("empty", BytesSource(b""))
    await store.head("large")
    await store.get("small", limit=99)
    await store.get_range("large", ByteRange(10, 20), Gathered())
    upload = await store.create_upload("parts", check="crc64nvme")
    parts = [await store.put_part("parts", upload, n, Blocks(large), check=crc64nvme_of(large)) for n in (1, 2)]
    await store.list_parts("parts", upload)
    await store.list_uploads("")
    await store.complete_upload("parts", upload, parts)
    await store.abort_upload("parts", upload)
    assert [info.key async for info in store.list("")] == ["empty", "large", "md5", "parts", "signed", "small"]
    await store.list_folders("")
    await store.delete(["small"])
    await store.delete(["large", "parts"])


def require_plain(record: RequestRecord) -> None:
    """No request may carry what R2 does not implement, nor ask for what an object token may not do."""
    headers = record.headers
    for refused in ("expect", "transfer-encoding", "content-encoding", "x-amz-trailer", "x-amz-sdk-checksum-algorithm"):
        assert refused not in headers, (record.operation, refused)
    assert headers["accept-encoding"] == "identity"
    assert "STREAMING" not in headers["x-amz-content-sha256"]
    assert record.operation not in ("HeadBucket", "ListBuckets", "GetBucketLocation", "CreateBucket")
    if record.method in ("PUT", "POST"):
        assert headers["content-length"] == str(record.received)


# -- what is sent ------------------------------------------------------------------------------------------


async def test_requests_are_plain(double: S3Double, store: R2Store) -> None:
    """Over http every request has a length and a payload hash, and nothing that R2 refuses (case 15)."""
    await use_everything(store)
    for record in double.requests:
        require_plain(record)
    refused = {record.operation for record in double.requests if record.status is None or record.status >= 400}
    assert refused <= {"AbortMultipartUpload"}


async def test_requests_are_plain_over_tls(tls_double: tuple[S3Double, Settings]) -> None:
    """The same over https, where botocore by itself would send trailers (case 15)."""
    double, settings = tls_double
    store = R2Store(settings, tell=Teller(None))
    await use_everything(store)
    await store.aclose()
    assert len(double.requests) > 15
    for record in double.requests:
        require_plain(record)


async def test_payload_hashes(double: S3Double, store: R2Store, transport: str) -> None:
    """Documents are signed, files are not hashed here, and a hash that is given is sent as it is."""
    large = pattern(MIB)
    await store.put("small", BytesSource(b"small"))
    await store.put("large", Blocks(large))
    await store.put("given", BytesSource(b"given"), signed_sha256=hashlib.sha256(b"given").hexdigest())
    sent = {record.key: record.headers["x-amz-content-sha256"] for record in double.requests}
    assert sent == {
        "small": hashlib.sha256(b"small").hexdigest() if transport == "aioboto3" else "UNSIGNED-PAYLOAD",
        "large": "UNSIGNED-PAYLOAD",
        "given": hashlib.sha256(b"given").hexdigest(),
    }


async def test_checks_are_named_at_create_and_repeated_at_complete() -> None:
    """A store that wants each part's checksum at Complete gets them, with checks on and off (case 16)."""
    rules = Rules(min_part_size=1, write_interval_s=0, complete_repeats_checksums=True)
    data = pattern(MIB)
    with S3Double(rules=rules) as double:
        store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(None))
        for check in (None, crc64nvme_of(data)):
            upload = await store.create_upload("k", check=check.algorithm if check else None)
            parts = [await store.put_part("k", upload, number, Blocks(data), check=check) for number in (1, 2)]
            assert [part.check for part in parts] == [check, check]
            listed = await store.list_parts("k", upload)
            assert [part.check for part in listed] == [check, check]
            await store.complete_upload("k", upload, listed)
        await store.aclose()
        creates = [record.headers for record in double.requests if record.operation == "CreateMultipartUpload"]
    assert "x-amz-checksum-algorithm" not in creates[0]
    assert creates[1]["x-amz-checksum-algorithm"] == "CRC64NVME"
    assert creates[1]["x-amz-checksum-type"] == "FULL_OBJECT"


def has_checksum_header(call: Call) -> bool:
    return any(name.startswith(("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer")) for name in call.headers)


@pytest.mark.parametrize("status", [501, 400, 401, 500])
async def test_a_store_that_refuses_checksums_works(
    double: S3Double, store: R2Store, told: list[Event], status: int
) -> None:
    """Checksum headers answered with an error are found to be the cause, told of once, and left out (case 15)."""
    double.faults.add(Fault(When(matches=has_checksum_header), Answer(status, code="Nope"), times=None))
    await use_everything(store)
    refused = [record for record in double.requests if record.fault]
    assert 1 <= len(refused) <= 2
    (notice,) = told
    assert isinstance(notice, Notice)
    assert "checksum" in notice.text
    assert str(status) in notice.text
    after = [record for record in double.requests if record.number > refused[-1].number]
    bodies = [record for record in after if record.operation in ("PutObject", "UploadPart")]
    checked = [record.key for record in bodies if "content-md5" in record.headers]
    assert set(checked) >= {"parts"}


async def test_one_passing_trouble_does_not_end_checks(double: S3Double, store: R2Store, told: list[Event]) -> None:
    """A single 500 to a body with a check is worked around, and checks go on."""
    data = pattern(1000)
    double.faults.add(Fault(When(operation="PutObject"), Answer(500)))
    await store.put("a", BytesSource(data), check=crc64nvme_of(data))
    await store.put("b", BytesSource(data), check=crc64nvme_of(data))
    assert not told
    assert "x-amz-checksum-crc64nvme" in double.requests[-1].headers


async def test_a_check_that_was_taken_once_is_not_blamed_later(double: S3Double, store: R2Store) -> None:
    """Once a store has taken a check, an error is that of the request, and is not asked twice."""
    await store.put("a", BytesSource(b"x"), check=crc64nvme_of(b"x"))
    for status in (501, 400, 401, 500):
        before = len(double.requests)
        double.faults.add(Fault(When(), Answer(status, code="Nope")))
        with pytest.raises(RemoteError):
            await store.put("b", BytesSource(b"x"), check=crc64nvme_of(b"x"))
        assert len(double.requests) == before + 1


async def test_credentials_that_are_wrong_stay_wrong(double: S3Double, store: R2Store, told: list[Event]) -> None:
    """A 401 that does not go away without the check is an error after two requests, and checks are not blamed."""
    double.faults.add(Fault(When(), Answer(401, code="Unauthorized"), times=None))
    with pytest.raises(AccessRefused):
        await store.put("a", BytesSource(b"x"), check=crc64nvme_of(b"x"))
    assert len(double.requests) == 2
    assert not told


async def test_a_body_that_is_refused_is_not_blamed_on_the_check(double: S3Double, store: R2Store) -> None:
    """BadDigest means damage: it is not worked around by leaving the check out."""
    with pytest.raises(BodyRefused):
        await store.put("a", BytesSource(b"x"), check=crc64nvme_of(b"y"))
    assert len(double.requests) == 1


# -- one request a call ------------------------------------------------------------------------------------


@pytest.mark.parametrize("do", [Answer(503), Answer(500), Answer(429), Reset(), Swallow()])
async def test_a_call_is_one_request(double: S3Double, store: R2Store, do: Answer | Reset | Swallow) -> None:
    """Neither botocore nor aiohttp tries again, also not on a kept-alive connection that breaks."""
    await store.put("before", BytesSource(b"x"))
    double.faults.add(Fault(When(), do, times=None))
    for attempt in range(2):
        with pytest.raises(RemoteUnavailable):
            await store.put("k", BytesSource(b"x"), if_none_match=True)
        with pytest.raises(RemoteUnavailable):
            await store.head("k")
        assert double.log.next_number() - 1 == 1 + 3 * attempt + 2


async def test_redirects_are_not_followed(double: S3Double, store: R2Store) -> None:
    """A redirect, or a 400 to a HEAD, does not make botocore ask HeadBucket for a region."""
    elsewhere = Answer(301, "PermanentRedirect", headers={"x-amz-bucket-region": "eu-west-1", "Location": double.url})
    double.faults.add(Fault(When(), elsewhere), Fault(When(), Answer(400, "")), Fault(When(), elsewhere))
    for call in (store.head("k"), store.head("k"), store.put("k", BytesSource(b"x"))):
        with pytest.raises(RemoteError) as caught:
            await call
        assert not caught.value.transient
    assert [record.operation for record in double.requests] == ["HeadObject", "HeadObject", "PutObject"]


async def test_nothing_is_kept_between_requests(double: S3Double) -> None:
    """Cookies that the edge sets do not come back."""
    by_name = double.env() | {"R2D1_R2_ENDPOINT_URL": double.url.replace("127.0.0.1", "localhost")}
    store = R2Store(Settings.from_env(environ=by_name), tell=Teller(None))
    seen: list[str | None] = []

    def note(call: Call) -> bool:
        seen.append(call.headers.get("cookie"))
        return False

    double.faults.add(Fault(When(matches=note), Reset()))
    double.faults.add(Fault(When(), Answer(404, "NoSuchKey", headers={"Set-Cookie": "__cf_bm=1; Path=/"}), times=None))
    for _ in range(2):
        with pytest.raises(RemoteError):
            await store.get("k", limit=1)
    await store.aclose()
    assert seen == [None, None]


async def test_connections_do_not_exceed_the_concurrency(double: S3Double) -> None:
    """100 small objects at once go over no more connections than the concurrency and a few (case 26)."""
    settings = Settings.from_env(environ=double.env(), concurrency=4)
    store = R2Store(settings, tell=Teller(None))
    async with anyio.create_task_group() as tasks:
        for number in range(100):
            tasks.start_soon(store.put, f"k{number}", BytesSource(b"x" * 1000))
    await store.aclose()
    assert len(double.keys()) == 100
    assert double.connections <= 4 + 4


# -- bodies ------------------------------------------------------------------------------------------------


async def test_a_body_is_read_only_as_fast_as_it_is_taken() -> None:
    """A server that takes no byte of a part stops the reading of its source after a few MiB (case 32)."""
    read = 0

    class Counted(Blocks):
        def blocks(self, block_size: int) -> Iterator[memoryview]:
            nonlocal read
            for _ in range(256):
                read += MIB
                yield memoryview(bytes(MIB))

    async def take_nothing(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with serving(take_nothing) as url, store_at(url, idle_s=0.5) as store:
        with pytest.raises(RemoteUnavailable, match="nothing moved"):
            await store.put_part("k", "upload", 1, Counted(b"", size=256 * MIB))
    assert read <= 16 * MIB  # most of it lies in the sockets' buffers


async def test_every_block_counts_as_movement() -> None:
    """The time allowed is for silence, not for the whole of a body: each block begins it anew, in both directions."""
    moves: list[str] = []
    threads = anyio.CapacityLimiter(1)
    body = UploadBody(Blocks(pattern(300_000)), threads=threads, moved=lambda: moves.append("up"), sha256=None)
    assert b"".join([block async for block in body]) == pattern(300_000)
    await body.aclose()
    assert moves.count("up") >= 300_000 // 70_000

    async def trickle(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http("200 OK", b"", Content_Length="100", **HEADERS))
        for byte in OBJECT:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.012)

    async with serving(trickle) as url, store_at(url, idle_s=1.0) as store:
        sink = Gathered()
        await store.get_range("k", ByteRange(0, 100), sink)
    assert sink.data == OBJECT


async def test_a_retry_sends_the_same_bytes(double: S3Double, store: R2Store) -> None:
    """A source can be sent again after the first attempt broke in its middle, over plain http (case 35)."""
    data = pattern(3 * MIB)
    source = Blocks(data)
    upload = await store.create_upload("k")
    double.faults.add(Fault(When(operation="UploadPart"), Reset()))
    with pytest.raises(RemoteUnavailable) as caught:
        await store.put_part("k", upload, 1, source)
    assert (caught.value.transient, caught.value.ambiguous) == (True, True)
    part = await store.put_part("k", upload, 1, source)
    await store.complete_upload("k", upload, [part])
    assert double.get("k") == data


async def test_an_early_refusal_is_heard() -> None:
    """A server that refuses by the head alone, and takes no body, is not waited for."""

    async def refuse(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(http("403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"))
        await writer.drain()
        await asyncio.Event().wait()

    async with serving(refuse) as url, store_at(url, idle_s=30) as store:
        with anyio.fail_after(10), pytest.raises(AccessRefused, match="AccessDenied"):
            await store.put_part("k", "upload", 1, Blocks(bytes(64 * MIB)))


# -- ranges ------------------------------------------------------------------------------------------------

OBJECT = bytes(range(100))
HEADERS = {"ETag": '"e1"', "Last-Modified": "Fri, 21 Aug 2026 10:00:00 GMT"}


@pytest.mark.parametrize(
    "answer",
    [
        http("206 Partial Content", OBJECT[10:20], Content_Range="bytes 10-19/100", **HEADERS),
        http("200 OK", OBJECT[10:20], Content_Range="bytes 10-19/100", **HEADERS),
        http("200 OK", OBJECT, **HEADERS),
    ],
    ids=["206", "200 with the range", "200 with everything"],
)
async def test_answers_to_a_range(answer: bytes) -> None:
    """The bytes asked for arrive, whether the server honours the range, mislabels it, or ignores it."""
    async with serving(answering(answer)) as url, store_at(url) as store:
        sink = Gathered()
        info = await store.get_range("k", ByteRange(10, 20), sink)
    assert sink.data == OBJECT[10:20]
    assert (info.size, info.etag) == (100, "e1")


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (http("206 Partial Content", OBJECT[:10], Content_Range="bytes 0-9/100", **HEADERS), RemoteError, "0 to 10"),
        (http("206 Partial Content", OBJECT[10:15], Content_Range="bytes 10-14/15", **HEADERS), RangeRefused, "has 15"),
        (http("206 Partial Content", OBJECT[10:20], **HEADERS), RemoteError, "Content-Range"),
        (http("200 OK", OBJECT[:5], **HEADERS), RangeRefused, "has 5"),
        (http("200 OK", OBJECT[:15], **{**HEADERS, "Content_Length": "100"}), RemoteUnavailable, "ended"),
        (
            http("206 Partial Content", b"short", Content_Range="bytes 10-19/100", **HEADERS | {"Content-Length": ""}),
            RemoteError,
            "5 of 10",
        ),
    ],
    ids=["other bytes", "clamped", "no Content-Range", "too short", "cut", "no length and cut"],
)
async def test_wrong_answers_to_a_range(answer: bytes, error: type[RemoteError], says: str) -> None:
    """An answer that is not the range that was asked for is an error that says so."""
    async with serving(answering(answer)) as url, store_at(url) as store:
        with pytest.raises(error, match=says):
            await store.get_range("k", ByteRange(10, 20), Gathered())


async def test_a_range_that_breaks_off_leaves_what_came(double: S3Double, store: R2Store) -> None:
    """Bytes before the break are in the sink, and the error names the object's ETag for whoever goes on."""
    data = pattern(8 * MIB)
    etag = double.put("k", data)
    double.faults.add(Fault(When(operation="GetObject"), CutReply(after=6 * MIB)))
    sink = Gathered()
    with pytest.raises(RemoteUnavailable, match="ended early") as caught:
        await store.get_range("k", ByteRange(0, len(data)), sink)
    assert caught.value.etag == etag
    assert MIB < len(sink.data) <= 6 * MIB
    assert sink.data == data[: len(sink.data)]


async def test_a_head_without_a_length_is_an_error() -> None:
    """A proxy that strips Content-Length is named, rather than a size made up."""
    async with serving(answering(http("200 OK", Content_Length="", ETag='"e"'))) as url, store_at(url) as store:
        with pytest.raises(RemoteError, match="Content-Length"):
            await store.head("k")


# -- listings ----------------------------------------------------------------------------------------------


async def test_every_page_is_read() -> None:
    """Objects, folders, parts and uploads come whole when the server gives three at a time."""
    with S3Double(rules=Rules(min_part_size=1, write_interval_s=0, page_size=3)) as double:
        store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(None))
        keys = [f"p/{letter}/{number} +%.bin" for letter in "abcde" for number in range(3)]
        for key in keys:
            double.put(key, b"x")
        assert [info.key async for info in store.list("p/")] == keys
        assert [info.key async for info in store.list("p/", start_after=keys[6])] == keys[7:]
        assert list(await store.list_folders("p/")) == [f"p/{letter}/" for letter in "abcde"]
        uploads = {await store.create_upload("u ü") for _ in range(5)}
        assert {upload.upload_id for upload in await store.list_uploads("")} == uploads
        upload = uploads.pop()
        parts = [await store.put_part("u ü", upload, number, BytesSource(b"x")) for number in range(1, 8)]
        assert [part.number for part in await store.list_parts("u ü", upload)] == list(range(1, 8))
        await store.complete_upload("u ü", upload, parts)
        await store.aclose()


async def test_a_listing_that_does_not_go_on_is_an_error() -> None:
    """A server that says there is more, but not where, does not make an endless loop."""
    for more in (b"", b"<NextContinuationToken>t</NextContinuationToken>"):
        page = b"<ListBucketResult><IsTruncated>true</IsTruncated>" + more + b"</ListBucketResult>"
        async with serving(answering(http("200 OK", page))) as url, store_at(url) as store:
            with pytest.raises(RemoteError, match="not where"):
                [info async for info in store.list("p/")]


_LAST = "<IsTruncated>false</IsTruncated>"


@pytest.mark.parametrize(
    "written",
    ["2026-11-30T19:33:16.000Z", "2026-11-30T21:33:16+02:00", "2026-11-30T19:33:16", "Mon, 30 Nov 2026 19:33:16 GMT"],
)
async def test_dates_of_a_listing(written: str) -> None:
    """S3's form of a date is read, with what zone it has (else UTC), and the forms of other servers too."""
    entry = f"<Key>k</Key><LastModified>{written}</LastModified><ETag>e</ETag><Size>1</Size>"
    page = f"<ListBucketResult>{_LAST}<Contents>{entry}</Contents></ListBucketResult>".encode()
    async with serving(answering(http("200 OK", page))) as url, store_at(url) as store:
        (info,) = [info async for info in store.list("")]
        assert datetime.fromtimestamp(info.modified, UTC) == datetime(2026, 11, 30, 19, 33, 16, tzinfo=UTC)


async def test_a_long_listing_is_read_quickly() -> None:
    """The dates of a full page are read without botocore's guessing, which holds the loop for a tenth of a second."""
    entry = "<Contents><Key>k{}</Key><LastModified>2026-11-30T19:33:16.000Z</LastModified><Size>1</Size></Contents>"
    page = "".join(entry.format(number) for number in range(1000))
    guessed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(r2_client, "parse_timestamp", guessed.append)
        answer = http("200 OK", f"<ListBucketResult>{_LAST}{page}</ListBucketResult>".encode())
        async with serving(answering(answer)) as url, store_at(url) as store:
            assert len([info async for info in store.list("")]) == 1000
    assert not guessed


async def test_an_object_token_is_enough() -> None:
    """A token that may not touch the bucket itself does all that r2d1 needs (case 82)."""
    with S3Double(rules=Rules.object_token()) as double:
        store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(None))
        await store.put("k", BytesSource(b"x"), if_none_match=True)
        assert [info.key async for info in store.list("")] == ["k"]
        upload = await store.create_upload("m")
        await store.complete_upload("m", upload, [await store.put_part("m", upload, 1, BytesSource(b"x"))])
        with pytest.raises(AccessRefused):
            await store.list_uploads("")
        await store.delete(["k", "m"])
        await store.aclose()


async def test_a_key_that_could_not_be_deleted_is_named(double: S3Double, store: R2Store) -> None:
    """DeleteObjects answers 200 also when it failed: the first key that stayed is an error."""
    body = (
        b"<DeleteResult><Deleted><Key>a</Key></Deleted>"
        b"<Error><Key>b c</Key><Code>AccessDenied</Code><Message>locked</Message></Error></DeleteResult>"
    )
    double.faults.add(Fault(When(operation="DeleteObjects"), Answer(200, body=body)))
    with pytest.raises(AccessRefused, match="b c.*AccessDenied.*locked"):
        await store.delete(["a", "b c", "d"])


# -- the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False], ids=["asyncio", "anyio"])
async def test_cancelling_an_upload(double: S3Double, store: R2Store, native: bool) -> None:
    """A cancelled upload ends at once: socket closed, source closed, no task left, the store usable."""
    closed = 0

    class Closing(Blocks):
        def blocks(self, block_size: int) -> Iterator[memoryview]:
            nonlocal closed
            try:
                yield from super().blocks(block_size)
            finally:
                closed += 1

    await store.put("warm", BytesSource(b"x"))
    before = asyncio.all_tasks()
    gate = Gate()
    double.faults.add(Fault(When(key="held"), Hold(gate)))
    upload = store.put("held", Closing(pattern(64 * MIB)))
    await _cancelled(upload, gate, native)
    assert asyncio.all_tasks() == before
    assert closed == 1
    await store.put("after", BytesSource(b"x"))
    gate.release()
    assert double.keys() == ["after", "warm"]


@pytest.mark.parametrize("native", [True, False], ids=["asyncio", "anyio"])
async def test_cancelling_a_download(double: S3Double, store: R2Store, native: bool) -> None:
    """A cancelled download ends at once, and nothing is written afterwards."""
    double.put("k", pattern(8 * MIB))
    await store.head("k")
    before = asyncio.all_tasks()
    gate = Gate()
    double.faults.add(Fault(When(operation="GetObject"), Stall(gate, after=3 * MIB)))
    sink = Gathered()
    await _cancelled(store.get_range("k", ByteRange(0, 8 * MIB), sink), gate, native)
    assert asyncio.all_tasks() == before
    came = len(sink.data)
    gate.release()
    await store.head("k")
    assert len(sink.data) == came


async def _cancelled(call: object, gate: Gate, native: bool) -> None:
    """Start a call, wait until the double has it, cancel it."""
    if native:
        task = asyncio.ensure_future(call)  # type: ignore[call-overload]
        await gate.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await call  # type: ignore[misc]

        tasks.start_soon(run)
        await gate.arrived.wait()
        tasks.cancel_scope.cancel()


async def test_a_closed_store_says_so(double: S3Double, store: R2Store) -> None:
    """A call after the end is an error of its own, not a broken connection."""
    await store.put("k", BytesSource(b"x"))
    await store.aclose()
    with pytest.raises(Closed):
        await store.head("k")


async def test_an_unused_store_closes(double: S3Double) -> None:
    """A store that was never used opens nothing to close."""
    store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(None))
    await store.aclose()
    assert double.connections == 0


def test_importing_the_store_imports_no_aioboto3() -> None:
    """What costs a third of a second is imported at the first request."""
    code = "import sys, r2d1.objects.opening, r2d1.objects.r2; sys.exit('aioboto3' in sys.modules or 'aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_waiting_for_a_turn_is_not_silence() -> None:
    """Calls beyond the number of connections wait as long as it takes: the idle time is the server's alone."""
    began: list[str] = []

    async def slowly(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began.append(head.split()[1])
        await asyncio.sleep(0.5)
        writer.write(http("200 OK", b"", **HEADERS))

    async with serving(slowly) as url:
        settings = Settings(endpoint_url=url, bucket="b-b", access_key="k", secret_key=Secret("s"), concurrency=1)
        store = R2Store(settings, tell=Teller(None), idle_s=2.0)
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(store.head, f"k{number}")
        await store.aclose()
    assert len(began) == 30
