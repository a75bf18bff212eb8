"""The bucket model enforces R2's rules, none of them through a socket."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from r2d1.testing.blob import Blob, BlobWriter
from r2d1.testing.bodies import ALGORITHMS, Announced, Body, BodyReader, checksum_of
from r2d1.testing.bucket import Bucket
from r2d1.testing.conditions import Conditions, RangeAsked
from r2d1.testing.metadata import decoded, encoded
from r2d1.testing.refusals import Refused
from r2d1.testing.rules import MIB, Conditional, Rules
from r2d1.testing.sigv4 import Credentials, Head, verify
from r2d1.testing.stored import Kept, PartNamed, StoredPart

#: Properties are about values; how long a loaded machine takes is no failure.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ABSENT = Conditions(if_none_match=("*",))


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bucket(clock: Clock) -> Bucket:
    """R2's rules, all of them."""
    return Bucket(Rules.r2(), clock=clock)


@contextmanager
def refusal(code: str, status: int) -> Iterator[pytest.ExceptionInfo[Refused]]:
    """Expect this refusal and no other."""
    with pytest.raises(Refused) as caught:
        yield caught
    assert (caught.value.code, caught.value.status) == (code, status)


def put(bucket: Bucket, key: str, data: bytes, conditions: Conditions | None = None, **metadata: str) -> str:
    kept = Kept({}, metadata)
    return bucket.put(key, Body.of(data), kept=kept, conditions=conditions or Conditions()).etag


def sent(bucket: Bucket, key: str, upload_id: str, sizes: list[int]) -> list[PartNamed]:
    """Upload parts of these sizes, zeros all of them."""
    parts = [
        bucket.put_part(key, upload_id, number, Body.of(Blob.zeros(size))) for number, size in enumerate(sizes, start=1)
    ]
    return [PartNamed(part.number, part.etag) for part in parts]


# -- whole objects -------------------------------------------------------------------------------------------


def test_etag_is_the_md5(bucket: Bucket) -> None:
    """An object written whole has the MD5 of its bytes as ETag."""
    assert put(bucket, "a", b"hello") == hashlib.md5(b"hello").hexdigest()
    assert bucket.get("a").blob.read() == b"hello"


def test_absent_key(bucket: Bucket) -> None:
    """Reading what is not there is NoSuchKey, deleting it is no error."""
    with refusal("NoSuchKey", 404):
        bucket.get("a")
    bucket.delete(["a"])


def test_second_write_within_a_second_is_pushed_back(bucket: Bucket, clock: Clock) -> None:
    """R2 takes one write per key and second; what it pushes back changed nothing, and other keys do not mind."""
    put(bucket, "a", b"1")
    clock.now += 0.9
    with refusal("TooManyRequests", 429):
        put(bucket, "a", b"2")
    put(bucket, "b", b"1")
    assert bucket.get("a").blob.read() == b"1"
    clock.now += 0.2
    put(bucket, "a", b"2")
    assert bucket.get("a").blob.read() == b"2"


def test_lenient_rules_take_any_number_of_writes(clock: Clock) -> None:
    """The lenient rules have no pause between writes."""
    bucket = Bucket(Rules.lenient(), clock=clock)
    put(bucket, "a", b"1")
    put(bucket, "a", b"2")
    assert bucket.get("a").blob.read() == b"2"


def test_deleting_is_no_write(bucket: Bucket) -> None:
    """A delete right after a write passes, and the key can not be written again within the second."""
    put(bucket, "a", b"1")
    bucket.delete(["a"])
    with refusal("TooManyRequests", 429):
        put(bucket, "a", b"2")


@pytest.mark.parametrize("size", [1024, 1025])
def test_key_length_is_counted_in_bytes(bucket: Bucket, size: int) -> None:
    """A key has at most 1,024 bytes of UTF-8."""
    key = "é" * 100 + "k" * (size - 200)
    if size == 1024:
        put(bucket, key, b"")
        assert bucket.keys() == [key]
    else:
        with refusal("InvalidObjectName", 400):
            put(bucket, key, b"")


def test_two_spellings_are_one_key(bucket: Bucket, clock: Clock) -> None:
    """Canonically equal keys are one object, and a listing shows the spelling last written."""
    composed, decomposed = "\u00fc.bin", "u\u0308.bin"
    put(bucket, composed, b"1")
    clock.now += 1
    put(bucket, decomposed, b"2")
    assert bucket.keys() == [decomposed]
    assert bucket.get(composed).blob.read() == b"2"
    bucket.delete([composed])
    assert bucket.keys() == []


@pytest.mark.parametrize(("extra", "fits"), [(0, True), (1, False)])
def test_metadata_limit(bucket: Bucket, extra: int, fits: bool) -> None:
    """Names and values of metadata have at most 8,192 bytes together."""
    value = "v" * (8192 - len("name") + extra)
    if fits:
        put(bucket, "a", b"", name=value)
    else:
        with refusal("MetadataTooLarge", 400):
            put(bucket, "a", b"", name=value)


def test_object_size_limit(clock: Clock) -> None:
    """A body above the limit of a single write is EntityTooLarge."""
    bucket = Bucket(Rules(max_part_size=10), clock=clock)
    put(bucket, "a", b"x" * 10)
    with refusal("EntityTooLarge", 400):
        put(bucket, "b", b"x" * 11)


def test_real_limits() -> None:
    """The limits are those of R2's documentation."""
    rules = Rules.r2()
    assert rules.max_part_size == 5 * 1024 * MIB - 5 * MIB
    assert rules.max_object_size == 5 * 1024 * 1024 * MIB - 5 * 1024 * MIB
    assert (rules.min_part_size, rules.max_parts, rules.page_size) == (5 * MIB, 10_000, 1000)


# -- conditions ----------------------------------------------------------------------------------------------


def test_create_only(bucket: Bucket, clock: Clock) -> None:
    """``If-None-Match: *`` writes an absent key once."""
    put(bucket, "a", b"1", ABSENT)
    clock.now += 5
    with refusal("PreconditionFailed", 412):
        put(bucket, "a", b"2", ABSENT)
    assert bucket.get("a").blob.read() == b"1"
    bucket.delete(["a"])
    put(bucket, "a", b"3", ABSENT)


def test_pushed_back_before_the_condition_is_looked_at(bucket: Bucket) -> None:
    """Within the second, even a write whose condition fails is answered with 429."""
    put(bucket, "a", b"1", ABSENT)
    with refusal("TooManyRequests", 429):
        put(bucket, "a", b"2", ABSENT)


def test_compare_and_swap(bucket: Bucket, clock: Clock) -> None:
    """``If-Match`` needs the ETag that is there, and fails for an absent key."""
    for absent in ("x", "*"):
        with refusal("PreconditionFailed", 412):
            put(bucket, "a", b"1", Conditions(if_match=(absent,)))
    etag = put(bucket, "a", b"1")
    clock.now += 1
    with refusal("PreconditionFailed", 412):
        put(bucket, "a", b"2", Conditions(if_match=("x",)))
    put(bucket, "a", b"2", Conditions(if_match=("x", etag)))
    clock.now += 1
    with refusal("PreconditionFailed", 412):
        put(bucket, "a", b"3", Conditions(if_none_match=("x", hashlib.md5(b"2").hexdigest())))


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"if-match": '"{etag}"'}, None),
        ({"if-match": '"no", W/"{etag}"'}, None),
        ({"if-match": "{etag}"}, None),
        ({"if-match": "*"}, None),
        ({"if-match": '"no"'}, "PreconditionFailed"),
        ({"if-none-match": '"{etag}"'}, "NotModified"),
        ({"if-none-match": "*"}, "NotModified"),
        ({"if-none-match": '"no"'}, None),
        ({"if-modified-since": "Tue, 14 Nov 2023 22:13:20 GMT"}, "NotModified"),
        ({"if-modified-since": "Tue, 14 Nov 2023 22:13:19 GMT"}, None),
        ({"if-unmodified-since": "Tue, 14 Nov 2023 22:13:20 GMT"}, None),
        ({"if-unmodified-since": "Tue, 14 Nov 2023 22:13:19 GMT"}, "PreconditionFailed"),
        ({"if-unmodified-since": "yesterday"}, None),
        ({"if-match": '"{etag}"', "if-unmodified-since": "Tue, 14 Nov 2023 22:13:19 GMT"}, None),
        ({"if-match": '"no"', "if-none-match": '"{etag}"'}, "PreconditionFailed"),
    ],
)
def test_conditional_read(bucket: Bucket, clock: Clock, headers: dict[str, str], code: str | None) -> None:
    """The four conditional headers of a read follow RFC 9110, at the granularity of seconds."""
    clock.now += 0.5
    etag = put(bucket, "a", b"1")
    conditions = Conditions.parse({name: value.format(etag=etag) for name, value in headers.items()})
    if code is None:
        assert bucket.get("a", conditions=conditions).etag == etag
    else:
        with refusal(code, {"NotModified": 304, "PreconditionFailed": 412}[code]):
            bucket.get("a", conditions=conditions)


@pytest.mark.parametrize(
    ("mode", "on_put", "on_complete"),
    [
        (Conditional.HONOURED, 412, 412),
        (Conditional.IGNORED, None, None),
        (Conditional.PUT_ONLY, 412, None),
        (Conditional.REFUSED, 501, 501),
        (Conditional.NOT_MODIFIED, 304, 304),
    ],
)
def test_stores_treat_conditions_differently(
    clock: Clock, mode: Conditional, on_put: int | None, on_complete: int | None
) -> None:
    """A condition that fails is refused, refused otherwise, or ignored, as the rules say."""
    bucket = Bucket(replace(Rules.lenient(), conditions=mode), clock=clock)
    bucket.place("a", b"old")
    upload = bucket.create_upload("a")
    parts = sent(bucket, "a", upload.upload_id, [1])

    def status(func: object) -> int | None:
        assert callable(func)
        try:
            func()
        except Refused as error:
            return error.status
        return None

    assert status(lambda: put(bucket, "a", b"new", ABSENT)) == on_put
    assert status(lambda: bucket.complete("a", upload.upload_id, parts, conditions=ABSENT)) == on_complete


# -- multipart -----------------------------------------------------------------------------------------------


def test_multipart_etag(bucket: Bucket) -> None:
    """A part's ETag is its MD5, the object's the MD5 of those and their number."""
    upload_id = bucket.create_upload("a", kept=Kept({}, {"q": "1"})).upload_id
    parts = sent(bucket, "a", upload_id, [5 * MIB, 5 * MIB, 7])
    stored = bucket.complete("a", upload_id, parts[::-1])
    digests = b"".join(bytes.fromhex(part.etag) for part in parts)
    assert parts[2].etag == hashlib.md5(bytes(7)).hexdigest()
    assert stored.etag == hashlib.md5(digests).hexdigest() + "-3"
    assert (stored.size, stored.part_sizes, stored.kept.metadata) == (
        10 * MIB + 7,
        (5 * MIB, 5 * MIB, 7),
        {"q": "1"},
    )


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ([0], None),
        ([1], None),
        ([6 * MIB], None),
        ([5 * MIB, 0], None),
        ([5 * MIB, 5 * MIB], None),
        ([6 * MIB, 6 * MIB, 5 * MIB], None),
        ([5 * MIB, 6 * MIB, 5 * MIB], "InvalidPart"),
        ([6 * MIB, 5 * MIB, 5 * MIB], "InvalidPart"),
        ([5 * MIB, 5 * MIB + 1], "InvalidPart"),
        ([5 * MIB - 1, 1], "EntityTooSmall"),
        ([5 * MIB, 1, 1], "EntityTooSmall"),
    ],
)
def test_part_sizes_are_compared_at_complete(bucket: Bucket, sizes: list[int], code: str | None) -> None:
    """All parts but the last have one size of at least 5 MiB, the last is no longer; a refusal keeps the upload."""
    upload_id = bucket.create_upload("a").upload_id
    parts = sent(bucket, "a", upload_id, sizes)
    if code is None:
        assert bucket.complete("a", upload_id, parts).size == sum(sizes)
        return
    with refusal(code, 400) as caught:
        bucket.complete("a", upload_id, parts)
    if code == "InvalidPart":
        assert caught.value.message == "All non-trailing parts must have the same length."
    assert [upload.upload_id for upload in bucket.open_uploads()] == [upload_id]
    assert bucket.keys() == []


def test_other_stores_take_uneven_parts(clock: Clock) -> None:
    """The rule of equal parts can be switched off, the least size remains."""
    bucket = Bucket(Rules(equal_parts=False), clock=clock)
    upload_id = bucket.create_upload("a").upload_id
    assert bucket.complete("a", upload_id, sent(bucket, "a", upload_id, [5 * MIB, 6 * MIB])).size == 11 * MIB


@pytest.mark.parametrize("number", [0, -1, 10_001])
def test_part_number_out_of_range(bucket: Bucket, number: int) -> None:
    """Part numbers are 1 to 10,000."""
    upload_id = bucket.create_upload("a").upload_id
    with refusal("InvalidArgument", 400):
        bucket.put_part("a", upload_id, number, Body.of(b"x"))
    bucket.put_part("a", upload_id, 10_000, Body.of(b"x"))


def test_parts_named_wrongly(bucket: Bucket) -> None:
    """Complete refuses no parts, unknown ones, wrong ETags and duplicates, and the upload stays usable."""
    upload_id = bucket.create_upload("a").upload_id
    (part,) = sent(bucket, "a", upload_id, [3])
    with refusal("MalformedXML", 400):
        bucket.complete("a", upload_id, [])
    for wrong in ([PartNamed(2, part.etag)], [PartNamed(1, "0" * 32)], [part, part]):
        with refusal("InvalidPart", 400):
            bucket.complete("a", upload_id, wrong)
    assert bucket.complete("a", upload_id, [part]).size == 3


def test_part_sent_twice(bucket: Bucket) -> None:
    """The last body of a part number counts, and parts that Complete does not name are dropped."""
    upload_id = bucket.create_upload("a").upload_id
    bucket.put_part("a", upload_id, 1, Body.of(b"first"))
    part = bucket.put_part("a", upload_id, 1, Body.of(b"second"))
    bucket.put_part("a", upload_id, 2, Body.of(b"dropped"))
    assert bucket.complete("a", upload_id, [PartNamed(1, part.etag)]).blob.read() == b"second"


def test_upload_is_gone(bucket: Bucket) -> None:
    """An upload that was completed, aborted or belongs to another key is NoSuchUpload; ended ones may be aborted again."""
    done = bucket.create_upload("a").upload_id
    bucket.complete("a", done, sent(bucket, "a", done, [1]))
    aborted = bucket.create_upload("b").upload_id
    bucket.abort("b", aborted)
    other = bucket.create_upload("c").upload_id
    for key, upload_id in (("a", done), ("b", aborted), ("a", other), ("a", "never")):
        with refusal("NoSuchUpload", 404):
            bucket.put_part(key, upload_id, 1, Body.of(b"x"))
        with refusal("NoSuchUpload", 404):
            bucket.complete(key, upload_id, [PartNamed(1, "x")])
        with refusal("NoSuchUpload", 404):
            bucket.list_parts(key, upload_id)
    bucket.abort("a", done)
    bucket.abort("b", aborted)
    for key, upload_id in (("a", other), ("b", done), ("a", "never")):
        with refusal("NoSuchUpload", 404):
            bucket.abort(key, upload_id)
    assert [upload.key for upload in bucket.open_uploads()] == ["c"]


def test_failed_condition_at_complete_destroys_the_upload(bucket: Bucket, clock: Clock) -> None:
    """When the condition of Complete fails, the upload is gone and the object there is untouched."""
    put(bucket, "a", b"first")
    clock.now += 1
    upload_id = bucket.create_upload("a").upload_id
    parts = sent(bucket, "a", upload_id, [3])
    with refusal("PreconditionFailed", 412):
        bucket.complete("a", upload_id, parts, conditions=ABSENT)
    with refusal("NoSuchUpload", 404):
        bucket.complete("a", upload_id, parts)
    assert bucket.get("a").blob.read() == b"first"


def test_complete_is_a_write(bucket: Bucket, clock: Clock) -> None:
    """Completing within a second of another write is pushed back and keeps the upload."""
    upload_id = bucket.create_upload("a").upload_id
    parts = sent(bucket, "a", upload_id, [3])
    put(bucket, "a", b"x")
    with refusal("TooManyRequests", 429):
        bucket.complete("a", upload_id, parts, conditions=ABSENT)
    clock.now += 1
    assert bucket.complete("a", upload_id, parts).size == 3


def test_uploads_end_after_seven_days(bucket: Bucket, clock: Clock) -> None:
    """An upload that nobody finished is aborted by the bucket's own rule."""
    upload_id = bucket.create_upload("a").upload_id
    clock.now += 7 * 86_400
    assert len(bucket.open_uploads()) == 1
    clock.now += 1
    with refusal("NoSuchUpload", 404):
        bucket.put_part("a", upload_id, 1, Body.of(b"x"))


def test_parts_and_uploads_are_listed_in_pages(clock: Clock) -> None:
    """Listings of parts and of uploads go on after a marker, in order."""
    bucket = Bucket(replace(Rules.lenient(), page_size=2), clock=clock)
    upload_id = bucket.create_upload("p/a").upload_id
    for number in (5, 1, 3):
        bucket.put_part("p/a", upload_id, number, Body.of(b"x"))
    parts, truncated = bucket.list_parts("p/a", upload_id)
    assert ([part.number for part in parts], truncated) == ([1, 3], True)
    parts, truncated = bucket.list_parts("p/a", upload_id, after=3)
    assert ([part.number for part in parts], truncated) == ([5], False)
    second = bucket.create_upload("p/a").upload_id
    third = bucket.create_upload("p/b").upload_id
    bucket.create_upload("other")
    uploads, truncated = bucket.list_uploads("p/")
    assert ([upload.upload_id for upload in uploads], truncated) == ([upload_id, second], True)
    uploads, truncated = bucket.list_uploads("p/", after=("p/a", second))
    assert ([upload.upload_id for upload in uploads], truncated) == ([third], False)


# -- checksums -----------------------------------------------------------------------------------------------


def test_crc64nvme_check_value() -> None:
    """The published check value of CRC-64/NVME for ``123456789``."""
    assert base64.b64decode(checksum_of("crc64nvme", Blob([b"123456789"]))).hex() == "ae8b14860a799888"


def received(headers: dict[str, str], data: bytes, *, sha256: bytes | None = None, verify: bool = True) -> Body:
    reader = BodyReader(Announced.parse(headers, sha256=sha256), BlobWriter(), verify=verify)
    for at in range(0, len(data), 3):
        reader.write(data[at : at + 3])
    return reader.finish()


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_checksum_header_is_verified(algorithm: str) -> None:
    """Every checksum R2 knows is kept when it is right and BadDigest when it is wrong."""
    name = f"x-amz-checksum-{algorithm}"
    right, wrong = (checksum_of(algorithm, Blob([data])) for data in (b"right body", b"wrong body"))
    assert received({name: right}, b"right body").checksums == {algorithm: right}
    with refusal("BadDigest", 400):
        received({name: wrong}, b"right body")
    assert received({name: wrong}, b"right body", verify=False).blob.read() == b"right body"


def test_content_md5_and_signed_hash_are_verified() -> None:
    """Content-MD5 and the literal ``x-amz-content-sha256`` must be those of the body."""
    md5 = base64.b64encode(hashlib.md5(b"body").digest()).decode()
    assert received({"content-md5": md5}, b"body", sha256=hashlib.sha256(b"body").digest()).checksums == {}
    with refusal("BadDigest", 400):
        received({"content-md5": md5}, b"other")
    with refusal("XAmzContentSHA256Mismatch", 400):
        received({}, b"other", sha256=hashlib.sha256(b"body").digest())


@pytest.mark.parametrize("value", ["", "?", "AAAA", "A" * 24])
def test_malformed_digest(value: str) -> None:
    """A digest that is no base64 of the right length is InvalidDigest."""
    with refusal("InvalidDigest", 400):
        Announced.parse({"content-md5": value})
    with refusal("InvalidDigest", 400):
        Announced.parse({"x-amz-checksum-sha256": value})


def test_only_one_checksum_at_a_time() -> None:
    """R2 takes one checksum; Content-MD5 beside another counts as two."""
    crc = checksum_of("crc32", Blob([b""]))
    sha = checksum_of("sha256", Blob([b""]))
    md5 = base64.b64encode(hashlib.md5(b"").digest()).decode()
    for headers in (
        {"x-amz-checksum-crc32": crc, "x-amz-checksum-sha256": sha},
        {"x-amz-checksum-crc32": crc, "content-md5": md5},
    ):
        with refusal("InvalidRequest", 400):
            Announced.parse(headers)
    Announced.parse({"x-amz-checksum-crc32": crc, "x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-mode": "x"})
    with refusal("NotImplemented", 501):
        Announced.parse({"x-amz-checksum-xxhash3": "AAAAAAAAAAA="})


def checked_part(bucket: Bucket, upload_id: str, number: int, data: bytes, algorithm: str) -> StoredPart:
    body = replace(Body.of(data), checksums={algorithm: checksum_of(algorithm, Blob([data]))})
    return bucket.put_part("a", upload_id, number, body)


def test_checksums_of_multipart_objects(clock: Clock) -> None:
    """CRC64NVME covers the whole object, SHA-256 the parts' own checksums; another algorithm's part is refused."""
    bucket = Bucket(Rules.lenient(), clock=clock)
    upload_id = bucket.create_upload("a", algorithm="crc64nvme").upload_id
    parts = [checked_part(bucket, upload_id, number, data, "crc64nvme") for number, data in enumerate([b"ab", b"c"], 1)]
    with refusal("InvalidRequest", 400):
        checked_part(bucket, upload_id, 3, b"d", "sha256")
    named = [PartNamed(part.number, part.etag) for part in parts]
    with refusal("BadDigest", 400):
        bucket.complete("a", upload_id, named, checksums={"crc64nvme": checksum_of("crc64nvme", Blob([b"xyz"]))})
    whole = checksum_of("crc64nvme", Blob([b"abc"]))
    assert bucket.complete("a", upload_id, named, checksums={"crc64nvme": whole}).checksums == {"crc64nvme": whole}

    upload_id = bucket.create_upload("a", algorithm="sha256").upload_id
    parts = [checked_part(bucket, upload_id, number, data, "sha256") for number, data in enumerate([b"ab", b"c"], 1)]
    of_parts = hashlib.sha256(hashlib.sha256(b"ab").digest() + hashlib.sha256(b"c").digest()).digest()
    stored = bucket.complete("a", upload_id, [PartNamed(part.number, part.etag) for part in parts])
    assert stored.checksums == {"sha256": base64.b64encode(of_parts).decode() + "-2"}
    with refusal("InvalidRequest", 400):
        bucket.create_upload("a", algorithm="xxhash")


def test_some_stores_want_checksums_repeated_at_complete(clock: Clock) -> None:
    """With that rule a part must be named with the checksum it came with; a wrong one is refused in any case."""
    bucket = Bucket(replace(Rules.lenient(), complete_repeats_checksums=True), clock=clock)
    upload_id = bucket.create_upload("a", algorithm="crc32").upload_id
    part = checked_part(bucket, upload_id, 1, b"ab", "crc32")
    with refusal("InvalidRequest", 400):
        bucket.complete("a", upload_id, [PartNamed(1, part.etag)])
    with refusal("InvalidPart", 400):
        bucket.complete("a", upload_id, [PartNamed(1, part.etag, {"crc32": "AAAAAA=="})])
    assert bucket.complete("a", upload_id, [PartNamed(1, part.etag, part.body.checksums)]).size == 2


# -- listings ------------------------------------------------------------------------------------------------

names = st.text(alphabet="ab/\u00e9\u65e5\U0001f600", min_size=1, max_size=6)


@unhurried
@given(
    keys=st.sets(names, max_size=25),
    prefix=st.sampled_from(["", "a", "a/", "é"]),
    delimiter=st.sampled_from(["", "/"]),
    page_size=st.integers(1, 7),
)
@example(keys={"a/b", "a/c", "a0", "b/x/y"}, prefix="", delimiter="/", page_size=1)
def test_pages_add_up_to_the_whole_listing(keys: set[str], prefix: str, delimiter: str, page_size: int) -> None:
    """Whatever the page size, pages joined are all keys and folders below the prefix, in the order of UTF-8 bytes."""
    bucket = Bucket(replace(Rules.lenient(), page_size=page_size), clock=Clock())
    for key in keys:
        bucket.place(key, b"")
    found: list[str] = []
    token: str | None = None
    while True:
        page, objects = bucket.list_page(prefix, delimiter=delimiter, token=token)
        assert len(page.keys) + len(page.folders) <= page_size
        on_page = [stored.key for stored in objects] + [folder.decode() for folder in page.folders]
        found += sorted(on_page, key=str.encode)
        if (token := page.token) is None:
            break
    below = [key for key in keys if key.startswith(prefix)]
    if delimiter:
        rest = [(key, key[len(prefix) :].partition("/")) for key in below]
        below = list({prefix + head + "/" if slash else key for key, (head, slash, _) in rest})
    assert found == sorted(below, key=str.encode)


def test_start_after_and_tokens(clock: Clock) -> None:
    """A listing begins after ``start_after``, and a token that is none of ours is refused."""
    bucket = Bucket(Rules.lenient(), clock=clock)
    for key in ("a", "b", "c"):
        bucket.place(key, b"")
    page, _ = bucket.list_page(start_after="a")
    assert page.keys == (b"b", b"c")
    page, _ = bucket.list_page(limit=0)
    assert (page.keys, page.truncated, page.token) == ((), True, None)
    for token in ("junk", "???", ""):
        with refusal("InvalidArgument", 400):
            bucket.list_page(token=token)


@pytest.mark.parametrize("count", [0, 1001])
def test_delete_objects_takes_1_to_1000_keys(bucket: Bucket, count: int) -> None:
    """Fewer or more keys in one request are MalformedXML."""
    bucket.delete(["a"] * 1000, operation="DeleteObjects")
    with refusal("MalformedXML", 400):
        bucket.delete(["a"] * count, operation="DeleteObjects")


# -- ranges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "size", "expected"),
    [
        ("bytes=0-0", 5, (0, 1)),
        ("bytes=2-3", 5, (2, 4)),
        ("bytes=3-99", 5, (3, 5)),
        ("bytes=1-", 5, (1, 5)),
        ("bytes=-2", 5, (3, 5)),
        ("bytes=-99", 5, (0, 5)),
        ("bytes=5-9", 5, "InvalidRange"),
        ("bytes=5-", 5, "InvalidRange"),
        ("bytes=-0", 5, "InvalidRange"),
        ("bytes=0-0", 0, "InvalidRange"),
        ("bytes=0-", 0, "InvalidRange"),
        ("bytes=-1", 0, "InvalidRange"),
        ("bytes=3-2", 5, "InvalidArgument"),
        ("bytes=0-1,3-4", 5, "InvalidArgument"),
        ("bytes=", 5, "InvalidArgument"),
        ("bytes=-", 5, "InvalidArgument"),
        ("bytes=a-b", 5, "InvalidArgument"),
        ("bytes=\u0661-\u0662", 5, "InvalidArgument"),
        ("items=0-1", 5, "InvalidArgument"),
    ],
)
def test_range_rules(header: str, size: int, expected: tuple[int, int] | str) -> None:
    """One range, clamped at the end; outside is 416, malformed, inverted or several are 400."""
    if isinstance(expected, tuple):
        assert RangeAsked.parse(header).of(size) == expected
    else:
        with refusal(expected, {"InvalidRange": 416, "InvalidArgument": 400}[expected]):
            RangeAsked.parse(header).of(size)


# -- permissions, damage, bytes ------------------------------------------------------------------------------


def test_operations_can_be_switched_off(clock: Clock) -> None:
    """Forbidden operations are 403, missing ones 501."""
    rules = replace(Rules.object_token(), missing=frozenset({"ListParts"}))
    bucket = Bucket(rules, clock=clock)
    upload_id = bucket.create_upload("a").upload_id
    with refusal("AccessDenied", 403):
        bucket.list_uploads()
    with refusal("AccessDenied", 403):
        bucket.permit("HeadBucket")
    with refusal("NotImplemented", 501):
        bucket.list_parts("a", upload_id)


@pytest.mark.parametrize("at", [0, 2, -1])
def test_damage_at_rest(bucket: Bucket, at: int) -> None:
    """A corrupted object differs in one byte and keeps its ETag and size."""
    etag = put(bucket, "a", b"hello")
    bucket.corrupt("a", at=at)
    stored = bucket.get("a")
    pairs = zip(stored.blob.read(), b"hello", strict=True)
    differing = [index for index, (now, then) in enumerate(pairs) if now != then]
    assert (differing, stored.etag) == ([at % 5], etag)


@unhurried
@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 60), st.integers(0, 60), st.integers(1, 8))
def test_blob_is_its_pieces_joined(pieces: list[bytes], start: int, stop: int, block_size: int) -> None:
    """Any slice of a blob, in blocks of any size, is that slice of the joined bytes."""
    blob = Blob.join([Blob([piece]) for piece in pieces])
    whole = b"".join(pieces)
    blocks = [bytes(block) for block in blob.blocks(start, stop, block_size)]
    assert b"".join(blocks) == whole[start:stop]
    assert all(0 < len(block) <= block_size for block in blocks)


def test_large_bodies_are_spooled(tmp_path: Path) -> None:
    """Bodies above the limit go to a file, which is removed with the last blob that holds it."""
    data = bytes(range(256)) * (3 * MIB // 256)
    writer = BlobWriter(spool_dir=tmp_path, spool_above=MIB)
    for at in range(0, len(data), 70_001):
        writer.write(memoryview(data)[at : at + 70_001])
    joined = Blob.join([writer.finish(), Blob([b"tail"])])
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == len(data)
    del writer
    assert joined.read() == data + b"tail"
    del joined
    assert list(tmp_path.iterdir()) == []


def test_zeros_take_no_memory() -> None:
    """A blob of zeros of any size can be cut into ranges."""
    blob = Blob.zeros(4 << 40)
    assert blob.read(2 << 40, (2 << 40) + 5) == bytes(5)


@unhurried
@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r\n\x00", exclude_categories=["C", "Z"])))
def test_metadata_travels_in_ascii(value: str) -> None:
    """A value of metadata is ASCII on the wire and read back as it was."""
    on_wire = encoded(value)
    assert on_wire.isascii()
    if not value.isascii():
        assert decoded(on_wire) == value


# -- signatures ----------------------------------------------------------------------------------------------

KEYS = Credentials("AKID", "SECRET")
NOW = datetime.now(UTC).timestamp()


def signed(path: str, *, method: str = "GET", secret: str = "SECRET", **headers: str) -> Head:
    """A request as botocore signs it: an opinion of what SigV4 is that is not our own."""
    sha = headers.setdefault("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    url = f"http://host.example{path}"
    request = AWSRequest(method=method, url=url, headers={**headers, "Host": "host.example"})

    class Signer(S3SigV4Auth):  # type: ignore[misc]
        def payload(self, request: object) -> str:
            return sha

    Signer(BotoCredentials("AKID", secret), "s3", "auto").add_auth(request)
    raw_path, _, query = path.partition("?")
    return Head(method, raw_path, query, [(name.lower(), str(value)) for name, value in request.headers.items()])


def changed(head: Head, name: str, value: str | None) -> Head:
    kept = [(key, old) for key, old in head.headers if key != name]
    return replace(head, headers=kept if value is None else [*kept, (name, value)])


@unhurried
@given(st.text(min_size=1, max_size=20).filter(lambda key: key not in (".", "..")), st.text(max_size=10))
@example("a b+c%25&=é€😀.txt", "x=y&z +")
def test_what_botocore_signs_is_verified(key: str, prefix: str) -> None:
    """Any key and query that botocore signs is accepted, and refused with another secret."""
    try:
        path = f"/bucket/{quote(key, safe='-_.~')}?list-type=2&prefix={quote(prefix, safe='-_.~')}"
    except UnicodeEncodeError:
        return
    assert verify(signed(path), KEYS, now=NOW) is None
    with refusal("SignatureDoesNotMatch", 403):
        verify(signed(path, secret="other"), KEYS, now=NOW)


def test_literal_hash_is_returned() -> None:
    """A literal SHA-256 in the headers is what the body must have."""
    sha = hashlib.sha256(b"body").hexdigest()
    assert verify(signed("/b/k", **{"x-amz-content-sha256": sha}), KEYS, now=NOW) == bytes.fromhex(sha)


@pytest.mark.parametrize(
    ("name", "value", "code", "status"),
    [
        ("authorization", None, "InvalidArgument", 400),
        ("authorization", "AWS AKID:sig", "InvalidRequest", 400),
        ("authorization", "AWS4-HMAC-SHA256 Credential=AKID/x, SignedHeaders=h, Signature=0", "InvalidArgument", 400),
        ("x-amz-content-sha256", None, "InvalidRequest", 400),
        ("x-amz-content-sha256", "e" * 64, "SignatureDoesNotMatch", 403),
        ("x-amz-date", None, "InvalidArgument", 400),
        ("x-amz-date", "Tue, 14 Nov 2023 22:13:20 GMT", "InvalidArgument", 400),
        ("host", "elsewhere.example", "SignatureDoesNotMatch", 403),
        ("x-amz-security-token", "junk", "InvalidArgument", 400),
    ],
)
def test_broken_authentication(name: str, value: str | None, code: str, status: int) -> None:
    """Each part of the header authentication is checked, with R2's own answers."""
    with refusal(code, status):
        verify(changed(signed("/b/k"), name, value), KEYS, now=NOW)


@pytest.mark.parametrize(
    ("old", "new", "code", "status"),
    [
        ("Credential=AKID/", "Credential=NOBODY/", "Unauthorized", 401),
        ("/s3/aws4_request", "/sqs/aws4_request", "InvalidArgument", 400),
        ("/aws4_request", "/aws5_request", "InvalidArgument", 400),
        ("AKID/2", "AKID/1", "InvalidArgument", 400),
        ("SignedHeaders=host;", "SignedHeaders=", "Unauthorized", 401),
    ],
)
def test_broken_credential_scope(old: str, new: str, code: str, status: int) -> None:
    """An unknown key id is 401 Unauthorized; a scope that is no S3 scope is refused by name."""
    head = signed("/b/k")
    with refusal(code, status):
        verify(changed(head, "authorization", (head.header("authorization") or "").replace(old, new)), KEYS, now=NOW)


@pytest.mark.parametrize(("skew", "fits"), [(890, True), (-890, True), (910, False), (-910, False)])
def test_clock_skew(skew: float, fits: bool) -> None:
    """Fifteen minutes of difference are the limit, in both directions."""
    head = signed("/b/k")
    now = datetime.now(UTC).timestamp() + skew
    if fits:
        verify(head, KEYS, now=now)
    else:
        with refusal("RequestTimeTooSkewed", 403):
            verify(head, KEYS, now=now)


@pytest.mark.parametrize(
    "payload",
    ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"],
)
def test_streaming_signatures_are_not_implemented(payload: str) -> None:
    """Streaming payloads are 501, another word than a hash is refused."""
    with refusal("NotImplemented", 501):
        verify(signed("/b/k", **{"x-amz-content-sha256": payload}), KEYS, now=NOW)
    with refusal("InvalidRequest", 400):
        verify(signed("/b/k", **{"x-amz-content-sha256": "anything"}), KEYS, now=NOW)


def test_session_token_is_checked_when_there_is_one() -> None:
    """Temporary credentials need their token, and nothing shows it."""
    temporary = Credentials("AKID", "SECRET", "TOKEN")
    verify(signed("/b/k", **{"x-amz-security-token": "TOKEN"}), temporary, now=NOW)
    with refusal("Unauthorized", 401):
        verify(signed("/b/k", **{"x-amz-security-token": "OTHER"}), temporary, now=NOW)
    with refusal("Unauthorized", 401):
        verify(signed("/b/k"), temporary, now=NOW)
    assert "SECRET" not in repr(temporary)
    assert "TOKEN" not in repr(temporary)
