"""The S3 double over real sockets: R2's answers, scripted faults, the log; asked by boto3, aioboto3 and by hand."""

from __future__ import annotations

import base64
import gc
import hashlib
import http.client
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import aioboto3
import boto3
import pytest
from aiobotocore.config import AioConfig
from awscrt.checksums import crc64nvme
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from botocore.handlers import add_expect_header
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from r2d1.testing import (
    Answer,
    Call,
    CutReply,
    CutRequest,
    Delay,
    Fault,
    FlipReply,
    FlipRequest,
    Gate,
    Hold,
    HoldReply,
    Hook,
    RequestRecord,
    Reset,
    Rewrite,
    Rules,
    S3Double,
    Stall,
    Swallow,
    Trickle,
    When,
)

MIB = 1 << 20
XMLNS = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@dataclass(frozen=True)
class Answered:
    """What came back for one request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        return ElementTree.fromstring(self.body).findtext("Code") or ""


@dataclass
class Caller:
    """Asks the double by hand, signed by botocore's signer, on one connection that is kept as long as it lasts."""

    double: S3Double
    access_key: str = ""
    secret_key: str = ""
    token: str | None = None
    context: ssl.SSLContext | None = None
    _connection: http.client.HTTPConnection | None = None

    def signed(self, method: str, path: str, headers: dict[str, str]) -> dict[str, str]:
        payload = headers.setdefault("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        request = AWSRequest(method=method, url=self.double.url + path, headers=headers)

        class Signer(S3SigV4Auth):  # type: ignore[misc]
            def payload(self, request: object) -> str:
                return payload

        keys = (self.access_key or self.double.access_key, self.secret_key or self.double.secret_key)
        Signer(Credentials(*keys, self.token), "s3", "auto").add_auth(request)
        return {name: str(value) for name, value in request.headers.items()}

    def path(self, key: str, query: str = "") -> str:
        return f"/{self.double.bucket}/{quote(key)}" + (f"?{query}" if query else "")

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answered:
        """One request; header names are given with ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send(method, path, body, self.signed(method, path, named))

    def send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answered:
        connection = self._connected()
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        data = response.read()
        return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, data)

    def put(self, key: str, body: bytes = b"", **headers: str) -> Answered:
        return self.ask("PUT", self.path(key), body, **headers)

    def get(self, key: str, **headers: str) -> Answered:
        return self.ask("GET", self.path(key), None, **headers)

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host = urlsplit(self.double.url).netloc
            if self.context is not None:
                self._connection = http.client.HTTPSConnection(host, timeout=30, context=self.context)
            else:
                self._connection = http.client.HTTPConnection(host, timeout=30)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture
def double() -> Iterator[S3Double]:
    """An R2 without the pause between writes and with parts of any size."""
    with S3Double(rules=Rules.lenient()) as running:
        yield running


@pytest.fixture
def caller(double: S3Double) -> Iterator[Caller]:
    asking = Caller(double)
    yield asking
    asking.close()


def boto(double: S3Double, **config: Any) -> Any:
    """A boto3 client without retries, and without the pause for a 100 that R2 never sends."""
    config.setdefault("request_checksum_calculation", "when_required")
    config.setdefault("response_checksum_validation", "when_required")
    client = boto3.client(
        "s3",
        endpoint_url=double.url,
        aws_access_key_id=double.access_key,
        aws_secret_access_key=double.secret_key,
        region_name="auto",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, **config),
    )
    client.meta.events.unregister("before-call.s3", add_expect_header)
    return client


@pytest.fixture
def client(double: S3Double) -> Iterator[Any]:
    made = boto(double)
    yield made
    made.close()


# -- libraries -----------------------------------------------------------------------------------------------


def test_boto3_writes_reads_lists_and_deletes(double: S3Double, client: Any) -> None:
    """The usual calls of boto3 work, with names that need care."""
    key = "a b+c%25&=é€😀.txt"
    put = client.put_object(Bucket=double.bucket, Key=key, Body=b"hello", Metadata={"n": "1"}, CacheControl="no-cache")
    assert put["ETag"] == f'"{hashlib.md5(b"hello").hexdigest()}"'
    got = client.get_object(Bucket=double.bucket, Key=key)
    assert (got["Body"].read(), got["Metadata"], got["CacheControl"]) == (b"hello", {"n": "1"}, "no-cache")
    head = client.head_object(Bucket=double.bucket, Key=key)
    assert (head["ContentLength"], head["ETag"]) == (5, put["ETag"])
    assert [found["Key"] for found in client.list_objects_v2(Bucket=double.bucket)["Contents"]] == [key]
    deleted = client.delete_objects(
        Bucket=double.bucket, Delete={"Objects": [{"Key": key}, {"Key": "none"}], "Quiet": True}
    )
    assert [found["Key"] for found in deleted["Deleted"]] == [key, "none"]
    assert double.keys() == []
    assert client.head_bucket(Bucket=double.bucket)["BucketRegion"] == "auto"
    assert [found["Name"] for found in client.list_buckets()["Buckets"]] == [double.bucket]


def test_boto3_multipart(double: S3Double, client: Any) -> None:
    """A multipart upload through boto3: created, listed in pages, completed, read by range and by part."""
    data = [os.urandom(1000), os.urandom(1000), b"tail"]
    where = {"Bucket": double.bucket, "Key": "big"}
    upload_id = client.create_multipart_upload(**where, ChecksumAlgorithm="CRC64NVME")["UploadId"]
    parts = [
        {
            "PartNumber": number,
            "ETag": client.upload_part(**where, UploadId=upload_id, PartNumber=number, Body=body)["ETag"],
        }
        for number, body in enumerate(data, start=1)
    ]
    assert double.open_uploads == 1
    assert [found["UploadId"] for found in client.list_multipart_uploads(Bucket=double.bucket)["Uploads"]] == [
        upload_id
    ]
    page = client.list_parts(**where, UploadId=upload_id, MaxParts=2)
    rest = client.list_parts(**where, UploadId=upload_id, PartNumberMarker=page["NextPartNumberMarker"])
    assert [part["Size"] for part in page["Parts"] + rest["Parts"]] == [1000, 1000, 4]
    finish = {**where, "UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
    with pytest.raises(ClientError, match="BadDigest"):
        client.complete_multipart_upload(**finish, ChecksumCRC64NVME="AAAAAAAAAAA=")
    whole = base64.b64encode(crc64nvme(b"".join(data)).to_bytes(8, "big")).decode()
    done = client.complete_multipart_upload(**finish, ChecksumCRC64NVME=whole)
    assert done["ETag"].endswith('-3"')
    assert done["ChecksumCRC64NVME"] == whole
    assert double.get("big") == b"".join(data)
    assert client.get_object(**where, Range="bytes=998-1001")["Body"].read() == b"".join(data)[998:1002]
    second = client.get_object(**where, PartNumber=2)
    assert (second["Body"].read(), second["PartsCount"]) == (data[1], 3)
    assert double.open_uploads == 0


def test_boto3_pages() -> None:
    """Paginators go through pages of objects and of folders to the end."""
    with S3Double(rules=replace(Rules.lenient(), page_size=7)) as double:
        paging = boto(double)
        for number in range(25):
            double.put(f"pg/{number:03}/é &", b"x")
        pages = paging.get_paginator("list_objects_v2").paginate(Bucket=double.bucket, Prefix="pg/")
        assert [found["Key"] for page in pages for found in page["Contents"]] == double.keys()
        pages = paging.get_paginator("list_objects_v2").paginate(Bucket=double.bucket, Prefix="pg/", Delimiter="/")
        assert sum(len(page["CommonPrefixes"]) for page in pages) == 25
        after = paging.list_objects_v2(Bucket=double.bucket, StartAfter="pg/023/é &")
        assert [found["Key"] for found in after["Contents"]] == ["pg/024/é &"]
        old = paging.get_paginator("list_objects").paginate(Bucket=double.bucket)
        assert [found["Key"] for page in old for found in page["Contents"]] == double.keys()
        paging.close()


def test_newest_boto3_defaults_need_a_header_not_a_trailer(double: S3Double) -> None:
    """Over plain http boto3's default CRC32 goes in a header, which R2 verifies and returns."""
    eager = boto(double, request_checksum_calculation="when_supported")
    put = eager.put_object(Bucket=double.bucket, Key="a", Body=b"hello")
    assert put["ChecksumCRC32"] == "NhCmhg=="
    head = eager.head_object(Bucket=double.bucket, Key="a", ChecksumMode="ENABLED")
    assert head["ChecksumCRC32"] == "NhCmhg=="
    with pytest.raises(ClientError, match="BadDigest"):
        eager.put_object(Bucket=double.bucket, Key="a", Body=b"other", ChecksumCRC32="NhCmhg==")
    eager.close()


async def test_aioboto3(double: S3Double) -> None:
    """An asynchronous client ships and reads as well, many requests at once."""
    session = aioboto3.Session(aws_access_key_id=double.access_key, aws_secret_access_key=double.secret_key)
    config = AioConfig(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    async with session.client("s3", endpoint_url=double.url, region_name="auto", config=config) as client:
        client.meta.events.unregister("before-call.s3", add_expect_header)
        await client.put_object(Bucket=double.bucket, Key="a/b", Body=b"x" * MIB)
        got = await client.get_object(Bucket=double.bucket, Key="a/b", Range="bytes=5-14")
        assert await got["Body"].read() == b"x" * 10
        with pytest.raises(ClientError, match="NoSuchKey"):
            await client.get_object(Bucket=double.bucket, Key="none")


# -- R2's answers --------------------------------------------------------------------------------------------


def test_error_documents_are_as_r2_writes_them(caller: Caller) -> None:
    """No xmlns, no RequestId; the trace id is cf-ray; a HEAD has no body and says only the status."""
    answered = caller.get("none")
    assert (answered.status, answered.code) == (404, "NoSuchKey")
    assert [child.tag for child in ElementTree.fromstring(answered.body)] == ["Code", "Message"]
    assert b"xmlns" not in answered.body
    assert answered.headers["content-type"] == "application/xml"
    assert answered.headers["cf-ray"]
    head = caller.ask("HEAD", caller.path("none"))
    assert (head.status, head.body, head.headers.get("content-length")) == (404, b"", None)
    listing = caller.ask("GET", caller.path("", "list-type=2"))
    assert ElementTree.fromstring(listing.body).tag == f"{XMLNS}ListBucketResult"


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({}, 200),
        ({"range": "bytes=1-2"}, 206),
        ({"range": "bytes=-2"}, 206),
        ({"range": "bytes=3-99"}, 206),
        ({"range": "bytes=5-"}, 416),
        ({"range": "bytes=-0"}, 416),
        ({"range": "bytes=2-1"}, 400),
        ({"range": "bytes=0-1,3-4"}, 400),
        ({"if_none_match": '"5d41402abc4b2a76b9719d911017c592"'}, 304),
        ({"if_match": '"nope"'}, 412),
    ],
)
def test_ranges_and_conditions_by_get_and_head(
    double: S3Double, caller: Caller, header: dict[str, str], status: int
) -> None:
    """GET and HEAD agree on the status; 206 says where the bytes lie, HEAD has none."""
    double.put("a", b"hello")
    got, head = caller.get("a", **header), caller.ask("HEAD", caller.path("a"), None, **header)
    assert (got.status, head.status, head.body) == (status, status, b"")
    if status == 206:
        start, _, last = got.headers["content-range"].removeprefix("bytes ").removesuffix("/5").partition("-")
        assert got.body == b"hello"[int(start) : int(last) + 1]
        assert head.headers["content-range"] == got.headers["content-range"]
        assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.body))
    if status == 304:
        assert (got.body, got.headers["etag"]) == (b"", header["if_none_match"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-amz-tagging": "a=b"}, 501),
        ({"x-amz-grant-read": "id=x"}, 501),
        ({"x-amz-acl": "weird"}, 501),
        ({"x-amz-acl": "public-read"}, 200),
        ({"x-amz-server-side-encryption": "aws:kms"}, 501),
        ({"x-amz-server-side-encryption": "AES256"}, 200),
        ({"x-amz-server-side-encryption-aws-kms-key-id": "x"}, 501),
        ({"x-amz-server-side-encryption-customer-algorithm": "AES256"}, 501),
        ({"x-amz-object-lock-mode": "GOVERNANCE"}, 501),
        ({"x-amz-website-redirect-location": "/x"}, 501),
        ({"x-amz-expected-bucket-owner": "x"}, 501),
        ({"x-amz-request-payer": "requester"}, 501),
        ({"x-amz-trailer": "x-amz-checksum-crc32"}, 501),
        ({"content-encoding": "aws-chunked"}, 501),
        ({"content-encoding": "gzip"}, 200),
        ({"x-amz-copy-source": "/b/k"}, 501),
        ({"x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER"}, 501),
        ({"x-amz-storage-class": "STANDARD_IA"}, 200),
        ({"x-amz-storage-class": "GLACIER"}, 400),
        ({"x-amz-something-new": "x"}, 200),
        ({"x-amz-sdk-checksum-algorithm": "CRC32"}, 200),
    ],
)
def test_headers_that_r2_lacks_are_not_implemented(
    double: S3Double, caller: Caller, headers: dict[str, str], status: int
) -> None:
    """What R2 does not implement is 501 and stores nothing; other x-amz headers are ignored."""
    path = caller.path("a")
    answered = caller.send("PUT", path, b"body", caller.signed("PUT", path, dict(headers)))
    assert answered.status == status
    assert double.keys() == (["a"] if status == 200 else [])
    if status == 501:
        assert answered.code == "NotImplemented"


def test_refused_subresources_and_parameters(caller: Caller) -> None:
    """Operations and list parameters R2 has no answer for are 501, unknown routes 404, a wrong bucket 404."""
    assert caller.ask("GET", caller.path("a", "tagging=")).status == 501
    assert caller.ask("PUT", caller.path("")).status == 501
    assert b"PutBucketCors" in caller.ask("PUT", caller.path("", "cors=")).body
    assert caller.ask("GET", caller.path("", "list-type=2&unknown=1")).status == 501
    assert caller.ask("GET", caller.path("", "list-type=2&encoding-type=xml")).status == 501
    assert caller.ask("PATCH", caller.path("a")).code == "RouteNotFound"
    assert caller.ask("GET", "/elsewhere/a").code == "NoSuchBucket"
    assert caller.ask("GET", caller.path("", "list-type=2&max-keys=-1")).code == "InvalidMaxKeys"
    assert caller.ask("PUT", caller.path("a", "partNumber=x&uploadId=y"), b"").code == "InvalidArgument"
    assert caller.ask("PUT", caller.path("a", f"partNumber={'9' * 5000}&uploadId=y"), b"").code == "InvalidArgument"
    assert caller.ask("PUT", caller.path("a", "partNumber=1&uploadId=y"), b"").code == "NoSuchUpload"


def test_max_keys_is_clamped_and_echoed(double: S3Double, caller: Caller) -> None:
    """More than a page may be asked for; a page comes, and the number asked for is said again."""
    for number in range(3):
        double.put(f"k{number}", b"")
    root = ElementTree.fromstring(caller.ask("GET", caller.path("", "list-type=2&max-keys=5000")).body)
    assert (root.findtext(f"{XMLNS}MaxKeys"), root.findtext(f"{XMLNS}KeyCount")) == ("5000", "3")
    root = ElementTree.fromstring(caller.ask("GET", caller.path("", "list-type=2&max-keys=0")).body)
    assert (root.findtext(f"{XMLNS}KeyCount"), root.findtext(f"{XMLNS}IsTruncated")) == ("0", "true")


def test_credentials_are_checked(double: S3Double, caller: Caller) -> None:
    """Unknown key 401, wrong secret 403, no signature 400, a token where none belongs 400; nothing is stored."""
    cases = [
        (Caller(double, access_key="nobody"), 401, "Unauthorized"),
        (Caller(double, secret_key="wrong"), 403, "SignatureDoesNotMatch"),
        (Caller(double, token="stray"), 400, "InvalidArgument"),
    ]
    for other, status, code in cases:
        answered = other.put("a", b"x")
        assert (answered.status, answered.code) == (status, code)
        other.close()
    answered = caller.send("PUT", caller.path("a"), b"x", {})
    assert (answered.status, answered.code) == (400, "InvalidArgument")
    assert caller.send("GET", caller.path("a", "X-Amz-Credential=x"), None, {}).status == 501
    assert double.keys() == []


def test_clock_skew_is_refused() -> None:
    """A client whose clock is 20 minutes off is told so."""
    with S3Double(clock=lambda: time.time() + 1200) as ahead:
        late = Caller(ahead)
        answered = late.get("a")
        assert answered.code == "RequestTimeTooSkewed"
        told = parsedate_to_datetime(answered.headers["date"]).timestamp()
        assert int(ahead.requests[-1].at) <= told <= ahead.model.clock()
        assert told > time.time() + 900
        late.close()


def test_temporary_credentials() -> None:
    """A session token is needed when one was set, and a new key pair replaces the old one."""
    with S3Double(session_token="token-1") as double:
        without, having = Caller(double), Caller(double, token="token-1")
        assert without.get("a").status == 401
        assert having.get("a").status == 404
        assert double.env()["R2D1_SESSION_TOKEN"] == "token-1"
        old = (double.access_key, double.secret_key)
        double.rotate("new-key", "new-secret")
        expired = Caller(double, *old)
        assert expired.get("a").status == 401
        assert without.get("a").status == 404
        for asking in (without, having, expired):
            asking.close()


def test_bodies_are_verified(double: S3Double, caller: Caller) -> None:
    """A literal hash, Content-MD5 or checksum that is not the body's is refused; UNSIGNED-PAYLOAD is accepted."""
    sha, md5 = hashlib.sha256(b"body"), base64.b64encode(hashlib.md5(b"body").digest()).decode()
    assert caller.put("a", b"other", x_amz_content_sha256=sha.hexdigest()).code == "XAmzContentSHA256Mismatch"
    assert caller.put("a", b"other", content_md5=md5).code == "BadDigest"
    assert caller.put("a", b"other", content_md5="junk").code == "InvalidDigest"
    checksum = base64.b64encode(sha.digest()).decode()
    assert caller.put("a", b"other", x_amz_checksum_sha256=checksum).code == "BadDigest"
    assert caller.put("a", b"body", x_amz_checksum_sha256=checksum, content_md5=md5).code == "InvalidRequest"
    assert double.keys() == []
    answered = caller.put("a", b"body", x_amz_checksum_sha256=checksum, x_amz_content_sha256=sha.hexdigest())
    assert answered.headers["x-amz-checksum-sha256"] == checksum
    assert "x-amz-checksum-sha256" not in caller.get("a").headers
    assert caller.get("a", x_amz_checksum_mode="ENABLED").headers["x-amz-checksum-sha256"] == checksum


def test_metadata_goes_through(caller: Caller) -> None:
    """Metadata comes back in lower case, encoded values decoded when stored, and too much of it is refused."""
    caller.put("a", b"", X_Amz_Meta_Plain="Value", x_amz_meta_word="=?UTF-8?B?w7w=?=")
    headers = caller.get("a").headers
    assert headers["x-amz-meta-plain"] == "Value"
    assert caller.double.model.get("a").kept.metadata["word"] == "ü"
    assert headers["x-amz-meta-word"].startswith("=?utf-8?")
    assert caller.put("a", b"", x_amz_meta_big="x" * 8190).code == "MetadataTooLarge"


def test_strict_rules_hold_over_the_socket() -> None:
    """R2's own rules: one write a second, parts of 5 MiB, equal parts, each with its answer."""
    with S3Double() as strict:
        caller = Caller(strict)
        assert caller.put("a", b"1").status == 200
        assert (caller.put("a", b"2").status, strict.get("a")) == (429, b"1")
        created = caller.ask("POST", caller.path("m", "uploads="), b"")
        upload_id = ElementTree.fromstring(created.body).findtext(f"{XMLNS}UploadId") or ""
        etags = [
            caller.ask("PUT", caller.path("m", f"partNumber={number}&uploadId={quote(upload_id, safe='')}"), body)
            for number, body in ((1, bytes(5 * MIB)), (2, bytes(5 * MIB + 1)))
        ]
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{answered.headers['etag']}</ETag></Part>"
            for number, answered in enumerate(etags, start=1)
        )
        document = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        answered = caller.ask("POST", caller.path("m", f"uploadId={quote(upload_id, safe='')}"), document)
        assert (answered.status, answered.code) == (400, "InvalidPart")
        assert b"All non-trailing parts must have the same length." in answered.body
        junk = caller.ask("POST", caller.path("m", f"uploadId={quote(upload_id, safe='')}"), b"<nonsense")
        assert junk.code == "MalformedXML"
        caller.close()


def test_delete_objects_checks_its_document(double: S3Double, caller: Caller) -> None:
    """No key, more than 1,000 keys, a strange Quiet or another document are MalformedXML and delete nothing."""
    double.put("a", b"")
    one = "<Object><Key>a</Key></Object>"
    for inner in ("", "<Object></Object>", one * 1001, f"{one}<Quiet>perhaps</Quiet>"):
        document = f"<Delete>{inner}</Delete>".encode()
        assert caller.ask("POST", caller.path("", "delete="), document).code == "MalformedXML"
    for document in (b"", b"<Other/>"):
        assert caller.ask("POST", caller.path("", "delete="), document).code == "MalformedXML"
    assert double.keys() == ["a"]


def test_paths_are_decoded_once(double: S3Double, caller: Caller) -> None:
    """``%2520`` is the key ``%20``, ``+`` is a plus, and dots and double slashes stay."""
    for path, key in (("%2520", "%20"), ("a+b", "a+b"), ("x//y", "x//y"), ("x/../y", "x/../y"), ("x%2Fy", "x/y")):
        full = f"/{double.bucket}/{path}"
        assert caller.ask("PUT", full, b"1").status == 200
        assert double.get(key) == b"1"
        double.delete(key)
    assert caller.ask("PUT", f"/{double.bucket}/%ff", b"1").code == "InvalidObjectName"


# -- bodies and connections by hand ----------------------------------------------------------------------------


def raw_put(double: S3Double, caller: Caller, *, body: bytes, sent: bytes, **headers: str) -> socket.socket:
    """A connection on which a signed PUT was sent whose head announces ``body`` and whose bytes are ``sent``."""
    path = caller.path("raw")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    signed = caller.signed("PUT", path, named)
    lines = [f"PUT {path} HTTP/1.1", f"Host: {urlsplit(double.url).netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in signed.items()]
    wire = socket.create_connection(("127.0.0.1", urlsplit(double.url).port or 0), timeout=30)
    wire.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode() + sent)
    return wire


def everything(wire: socket.socket) -> bytes:
    """What comes back until the other side closes."""
    received = b""
    with wire:
        while block := wire.recv(65536):
            received += block
    return received


def test_no_100_continue(double: S3Double, caller: Caller) -> None:
    """R2 never answers ``Expect: 100-continue``: the first thing that comes is the final answer."""
    received = everything(raw_put(double, caller, body=b"body", sent=b"body", expect="100-continue"))
    assert received.startswith(b"HTTP/1.1 200")
    assert received.count(b"HTTP/1.1") == 1
    assert double.get("raw") == b"body"


def test_refusal_does_not_wait_for_an_expected_body(double: S3Double, caller: Caller) -> None:
    """A request that is refused by its head is answered although its body never comes."""
    wire = raw_put(double, caller, body=b"body", sent=b"", expect="100-continue", x_amz_tagging="a=b")
    assert everything(wire).startswith(b"HTTP/1.1 501")


def test_body_that_ends_early_stores_nothing(double: S3Double, caller: Caller) -> None:
    """A client that goes away in its body leaves no object, and the log says that no answer was given."""
    told = threading.Event()
    double.after_request = lambda record: told.set()
    raw_put(double, caller, body=b"x" * 1000, sent=b"x" * 10).close()
    assert told.wait(30)
    assert double.keys() == []
    assert [(record.operation, record.status) for record in double.requests] == [("PutObject", None)]


def test_length_is_needed(double: S3Double, caller: Caller) -> None:
    """A body of unknown length is 411 and stores nothing."""
    path = caller.path("a")
    connection = http.client.HTTPConnection(urlsplit(double.url).netloc, timeout=30)
    connection.request("PUT", path, body=iter([b"x"]), headers=caller.signed("PUT", path, {}), encode_chunked=True)
    response = connection.getresponse()
    assert (response.status, b"MissingContentLength" in response.read()) == (411, True)
    connection.close()
    assert double.keys() == []


# -- faults --------------------------------------------------------------------------------------------------


def test_when_selects_requests() -> None:
    """Method, operation, key glob, part and predicate must all match."""
    call = Call(1, 0.0, "PUT", "UploadPart", "jobs/run/a.bin", {}, {"x": "1"}, 3, 10, 1, "key")
    for when, expected in [
        (When(), True),
        (When(method="PUT", operation="UploadPart", key="jobs/*.bin", part=3), True),
        (When(method="GET"), False),
        (When(operation="PutObject"), False),
        (When(key="*.json"), False),
        (When(part=2), False),
        (When(matches=lambda call: call.headers["x"] == "1"), True),
        (When(matches=lambda call: call.size > 10), False),
    ]:
        assert when.is_for(call) is expected


def test_faults_count_their_requests(double: S3Double, caller: Caller) -> None:
    """``nth`` begins with that occurrence and ``times`` ends it; the first fault that is due fires."""
    double.faults.add(
        Fault(When(operation="GetObject", nth=2), Answer(500), times=2),
        Fault(When(operation="GetObject", nth=3), Answer(503, "SlowDown"), times=None),
    )
    double.put("a", b"x")
    assert [caller.get("a").status for _ in range(5)] == [200, 500, 500, 503, 503]
    assert double.faults.fired() == 4
    double.faults.clear()
    assert caller.get("a").status == 200


def test_scripted_answer(double: S3Double, caller: Caller) -> None:
    """A scripted refusal reads the body, changes nothing and carries what was asked for."""
    double.faults.add(Fault(When(), Answer(503, "SlowDown", retry_after=5, headers={"x-extra": "1"})))
    answered = caller.put("a", b"x" * 100)
    assert (answered.status, answered.code, answered.headers["retry-after"]) == (503, "SlowDown", "5")
    assert answered.headers["x-extra"] == "1"
    record = double.requests[-1]
    assert (record.received, record.status, record.code, record.fault) == (100, 503, "SlowDown", "Answer")
    double.faults.add(Fault(When(), Answer(502, body=b"<html>bad gateway</html>")))
    assert caller.get("a").body == b"<html>bad gateway</html>"
    assert double.keys() == []


def gone(caller: Caller, func: Callable[[], object]) -> None:
    """The call ends without an answer."""
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        func()
    caller.close()


def test_reset_and_swallow(double: S3Double, caller: Caller) -> None:
    """A reset request had no effect, a swallowed reply had; neither is answered."""
    double.faults.add(Fault(When(key="reset"), Reset()), Fault(When(key="swallow"), Swallow()))
    gone(caller, lambda: caller.put("reset", b"x" * MIB))
    gone(caller, lambda: caller.put("swallow", b"x"))
    assert double.keys() == ["swallow"]
    assert [(record.key, record.status, record.fault) for record in double.requests] == [
        ("reset", None, "Reset"),
        ("swallow", None, "Swallow"),
    ]


def test_request_cut_in_its_body(double: S3Double, caller: Caller) -> None:
    """The connection is reset after some bytes of the body; nothing is stored."""
    double.faults.add(Fault(When(), CutRequest(after=1000)))
    gone(caller, lambda: caller.put("a", b"x" * 8 * MIB))
    assert double.keys() == []
    assert 1000 <= double.requests[-1].received < 8 * MIB


def test_reply_cut_in_its_body(double: S3Double, caller: Caller) -> None:
    """The head promises the whole body, exactly so many bytes come, then the connection ends."""
    data = os.urandom(3 * MIB)
    double.put("a", data)
    double.faults.add(Fault(When(nth=1), CutReply(after=2 * MIB + 5)))
    with pytest.raises(http.client.IncompleteRead) as caught:
        caller.get("a")
    assert caught.value.partial == data[: 2 * MIB + 5]
    assert double.requests[-1].sent == 2 * MIB + 5
    caller.close()
    assert caller.get("a").body == data
    double.faults.add(Fault(When(), CutReply()))
    with pytest.raises(http.client.IncompleteRead) as caught:
        caller.get("a")
    assert caught.value.partial == b""
    caller.close()


@pytest.mark.parametrize("at", [0, 300_000, -1])
def test_flipped_reply(double: S3Double, caller: Caller, at: int) -> None:
    """One byte of the answer is damaged, the object itself is not."""
    data = os.urandom(600_000)
    double.put("a", data)
    double.faults.add(Fault(When(), FlipReply(at=at)))
    damaged = caller.get("a").body
    assert [index for index in range(len(data)) if data[index] != damaged[index]] == [at % len(data)]
    assert caller.get("a").body == data


def test_flipped_request(double: S3Double, caller: Caller) -> None:
    """Damage on the wire is found by a check, passes without one, and after the check only the bytes tell."""
    data = os.urandom(MIB)
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    double.faults.add(
        Fault(When(key="checked"), FlipRequest(at=-1)),
        Fault(When(key="unchecked"), FlipRequest(at=70_000)),
        Fault(When(key="at-rest"), FlipRequest(at=5, after_check=True)),
    )
    assert caller.put("checked", data, content_md5=md5).code == "BadDigest"
    assert caller.put("unchecked", data).status == 200
    assert caller.put("at-rest", data, content_md5=md5).headers["etag"] == f'"{hashlib.md5(data).hexdigest()}"'
    assert double.keys() == ["at-rest", "unchecked"]
    for key, at in (("unchecked", 70_000), ("at-rest", 5)):
        stored = double.get(key)
        assert stored[at] == data[at] ^ 0xFF
        assert stored[:at] + stored[at + 1 :] == data[:at] + data[at + 1 :]


def test_body_that_is_believed() -> None:
    """A store that verifies nothing takes a damaged body, and its ETag tells."""
    with S3Double(rules=replace(Rules.lenient(), verify_bodies=False)) as double:
        caller = Caller(double)
        double.faults.add(Fault(When(), FlipRequest(at=0)))
        md5 = base64.b64encode(hashlib.md5(b"body").digest()).decode()
        answered = caller.put("a", b"body", content_md5=md5)
        assert (answered.status, double.get("a")) == (200, b"\x9dody")
        assert answered.headers["etag"] != f'"{hashlib.md5(b"body").hexdigest()}"'
        caller.close()


def in_thread(func: Callable[[], Answered]) -> tuple[threading.Thread, list[Answered]]:
    got: list[Answered] = []
    thread = threading.Thread(target=lambda: got.append(func()))
    thread.start()
    return thread, got


@pytest.mark.parametrize(("hold", "stored"), [(Hold, []), (HoldReply, ["a"])])
def test_gates_hold_requests(double: S3Double, caller: Caller, hold: Any, stored: list[str]) -> None:
    """A request waits before or after its operation until the gate is opened; what was done is told at once."""
    gate = Gate()
    double.faults.add(Fault(When(), hold(gate)))
    thread, got = in_thread(lambda: caller.put("a", b"x"))
    gate.arrived.wait_blocking()
    assert (double.keys(), [record.key for record in double.requests]) == (stored, stored)
    assert got == []
    gate.release()
    thread.join()
    assert (got[0].status, double.keys()) == (200, ["a"])


@pytest.mark.parametrize("after", [0, 5])
def test_stalled_reply(double: S3Double, caller: Caller, after: int) -> None:
    """Head and first bytes come, then nothing until the gate is opened."""
    double.put("a", b"hello world")
    gate = Gate()
    double.faults.add(Fault(When(), Stall(gate, after=after)))
    path = caller.path("a")
    connection = http.client.HTTPConnection(urlsplit(double.url).netloc, timeout=30)
    connection.request("GET", path, headers=caller.signed("GET", path, {}))
    response = connection.getresponse()
    assert response.read(after) == b"hello world"[:after]
    gate.arrived.wait_blocking()
    assert double.requests == []
    gate.release()
    assert response.read() == b"hello world"[after:]
    connection.close()


def test_trickle_and_delay_take_their_time(double: S3Double, caller: Caller) -> None:
    """A trickled body and a delayed request take at least as long as scripted."""
    double.put("a", b"x" * 20)
    double.faults.add(Fault(When(), Trickle(bytes_per_s=200)), Fault(When(), Delay(0.1)))
    began = time.monotonic()
    assert caller.get("a").body == b"x" * 20
    assert time.monotonic() - began >= 0.09  # a loop's timer may be a tick early
    began = time.monotonic()
    caller.get("a")
    assert time.monotonic() - began >= 0.09  # a loop's timer may be a tick early


def test_throttle_limits_both_directions(double: S3Double, caller: Caller) -> None:
    """With a throttle, bytes up and down take at least their time."""
    double.throttle = 2_000_000
    began = time.monotonic()
    caller.put("a", b"x" * 100_000)
    caller.get("a")
    assert time.monotonic() - began >= 0.09  # a loop's timer may be a tick early


def test_rewritten_headers(double: S3Double, caller: Caller) -> None:
    """Headers of a reply can be changed, taken away, or computed from the request."""
    double.put("a", b"hello")
    double.faults.add(
        Fault(When(), Rewrite({"ETag": '"other"', "Accept-Ranges": None})),
        Fault(When(), Rewrite(lambda call: {"ETag": f'"{call.number}"'})),
    )
    first, second = caller.get("a"), caller.get("a")
    assert (first.headers["etag"], "accept-ranges" in first.headers) == ('"other"', False)
    assert second.headers["etag"] == '"2"'


def test_hooks_act_at_an_exact_request(double: S3Double, caller: Caller) -> None:
    """A hook swaps the object before the second range is read; another one sees an operation's result."""
    double.put("a", b"old")
    seen: list[RequestRecord] = []

    async def later(record: RequestRecord) -> None:
        seen.append(record)

    double.faults.add(
        Fault(When(operation="GetObject", nth=2), Hook(before=lambda call: double.put("a", b"new"))),
        Fault(When(operation="PutObject"), Hook(after=later)),
    )
    assert [caller.get("a").body for _ in range(2)] == [b"old", b"new"]
    caller.put("b", b"x")
    assert [(record.operation, record.status) for record in seen] == [("PutObject", 200)]


def test_connections_are_refused(double: S3Double, caller: Caller) -> None:
    """While nobody listens connections fail and open ones are cut; afterwards the same port serves again."""
    caller.put("a", b"x")
    url = double.url
    with double.refusing_connections():
        gone(caller, lambda: caller.get("a"))
        with pytest.raises(ConnectionRefusedError):
            caller.get("a")
        caller.close()
    assert (double.url, caller.get("a").body) == (url, b"x")
    double.drop_connections()
    gone(caller, lambda: caller.get("a"))
    assert caller.get("a").status == 200


# -- log, hooks, life ------------------------------------------------------------------------------------------


def test_requests_are_logged_and_counted(double: S3Double, caller: Caller) -> None:
    """Each request leaves a record with sizes, status and connection, and no signature."""
    caller.put("a", b"hello")
    caller.get("a", range="bytes=1-2")
    caller.ask("HEAD", caller.path("a"))
    caller.ask("GET", caller.path("", "list-type=2&prefix=jobs%2F"))
    records = double.requests
    assert [(r.number, r.operation, r.key, r.received, r.sent, r.status) for r in records[:3]] == [
        (1, "PutObject", "a", 5, 0, 200),
        (2, "GetObject", "a", 0, 2, 206),
        (3, "HeadObject", "a", 0, 0, 200),
    ]
    assert (records[3].operation, records[3].key) == ("ListObjectsV2", "jobs/")
    assert records[1].headers["range"] == "bytes=1-2"
    assert {record.connection for record in records} == {1}
    assert double.connections == 1
    assert (double.counts["PutObject"].received, double.counts["GetObject"].sent) == (5, 2)
    assert "Signature" not in repr(records)
    assert double.secret_key not in repr(records) + repr(double)
    double.log.clear()
    assert (double.requests, double.counts) == ([], {})


def test_the_log_is_bounded() -> None:
    """Only the newest requests are kept, all are counted."""
    with S3Double(keep_requests=3) as double:
        caller = Caller(double)
        for number in range(5):
            caller.get(f"k{number}")
        caller.close()
        assert [record.key for record in double.requests] == ["k2", "k3", "k4"]
        assert double.counts["GetObject"].requests == 5


def test_observer_sees_the_bucket_after_every_request() -> None:
    """The hook runs before a write's reply leaves, and sees exactly what that request did."""
    seen: list[tuple[str, list[str]]] = []
    with S3Double(rules=Rules.lenient()) as double:
        double.after_request = lambda record: seen.append((record.operation, double.keys()))
        caller = Caller(double)
        caller.put("a", b"1")
        assert seen == [("PutObject", ["a"])]
        caller.put("b", b"1")
        caller.ask("DELETE", caller.path("a"))
        assert seen == [("PutObject", ["a"]), ("PutObject", ["a", "b"]), ("DeleteObject", ["b"])]
        caller.close()


def test_what_an_observer_raises_is_not_lost() -> None:
    """A hook that fails cuts the request, and closing the double raises its error."""

    def fail(record: RequestRecord) -> None:
        raise AssertionError("a reader saw a blend")

    double = S3Double(after_request=fail).start()
    caller = Caller(double)
    gone(caller, lambda: caller.put("a", b"x"))
    double.after_request = None
    with pytest.raises(AssertionError, match="blend"):
        double.close()
    double.close()


def test_double_stops_and_serves_again() -> None:
    """Closing ends the thread and what hangs, leaves no socket open, and a new start keeps port and objects."""
    gc.collect()
    before = threading.active_count()
    gate = Gate()
    double = S3Double(faults=[Fault(When(key="hung"), Hold(gate), times=None)]).start()
    url = double.url
    caller, hanging = Caller(double), Caller(double)
    assert caller.put("a", b"x").status == 200
    thread, got = in_thread(lambda: unanswered(hanging))
    gate.arrived.wait_blocking()
    double.close()
    thread.join()
    assert got == [Answered(0, {}, b"")]
    assert threading.active_count() == before
    caller.close()
    double.start()
    assert (double.url, caller.get("a").body) == (url, b"x")
    caller.close()
    double.close()
    gc.collect()


def unanswered(caller: Caller) -> Answered:
    """A request whose connection ends first."""
    try:
        return caller.put("hung", b"x")
    except (http.client.HTTPException, ConnectionError):
        return Answered(0, {}, b"")
    finally:
        caller.close()


def test_many_connections_at_once(double: S3Double) -> None:
    """Sixteen clients write and read at once, each body whole, each on a connection of its own."""

    def one(number: int) -> bool:
        caller = Caller(double)
        data = bytes([number]) * 200_000
        try:
            return caller.put(f"k{number}", data).status == 200 and caller.get(f"k{number}").body == data
        finally:
            caller.close()

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(16)))
    assert double.connections == 16
    assert double.counts["PutObject"].received == 16 * 200_000


def test_large_bodies_can_be_spooled(tmp_path: Path) -> None:
    """Bodies above the limit lie in a directory and not in memory, and go away with the double."""
    data = os.urandom(3 * MIB)
    with S3Double(rules=Rules.lenient(), spool_dir=tmp_path, spool_above=MIB) as double:
        caller = Caller(double)
        assert caller.put("a", data).status == 200
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) == len(data)
        assert caller.get("a", range="bytes=1000000-2000000").body == data[1_000_000:2_000_001]
        double.delete("a")
        caller.close()
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_environment_points_at_the_double(double: S3Double) -> None:
    """``env`` has what r2d1 reads to find the bucket."""
    assert double.env() == {
        "R2D1_R2_ENDPOINT_URL": double.url,
        "R2D1_R2_BUCKET": "checkpoints",
        "R2D1_R2_ACCESS_KEY": double.access_key,
        "R2D1_R2_SECRET_KEY": double.secret_key,
        "R2D1_R2_PUBLIC_BASE": double.public_url,
    }


def test_tls(tmp_path: Path) -> None:
    """With a certificate the double speaks TLS, and a cut works there as well."""
    certificate, key = self_signed(tmp_path)
    with S3Double(rules=Rules.lenient(), certfile=certificate, keyfile=key) as double:
        assert double.url.startswith("https://")
        assert double.env()["R2D1_CA_BUNDLE"] == str(certificate)
        caller = Caller(double, context=ssl.create_default_context(cafile=str(certificate)))
        assert caller.put("a", b"x" * MIB).status == 200
        assert caller.get("a").body == b"x" * MIB
        double.faults.add(Fault(When(), CutReply(after=10)))
        with pytest.raises((http.client.IncompleteRead, ssl.SSLError)):
            caller.get("a")
        caller.close()


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "double")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / "cert.pem", directory / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


# -- the public face -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status", "body", "content_range"),
    [
        ({}, 200, b"hello", None),
        ({"Range": "bytes=1-2"}, 206, b"el", "bytes 1-2/5"),
        ({"Range": "bytes=-99"}, 206, b"hello", "bytes 0-4/5"),
        ({"Range": "bytes=0-1,3-4"}, 200, b"hello", None),
        ({"Range": "lines=1"}, 200, b"hello", None),
        ({"Range": "bytes=9-"}, 416, None, "bytes */5"),
        ({"If-None-Match": '"5d41402abc4b2a76b9719d911017c592"'}, 304, b"", None),
    ],
)
def test_public_reads(
    double: S3Double,
    caller: Caller,
    headers: dict[str, str],
    status: int,
    body: bytes | None,
    content_range: str | None,
) -> None:
    """Anyone may read; ranges as a CDN treats them, which is not as the S3 endpoint does."""
    double.put("d/a b", b"hello")
    answered = caller.send("GET", "/public/d/a%20b", None, headers)
    assert (answered.status, answered.headers.get("content-range")) == (status, content_range)
    assert body is None or answered.body == body
    assert "access-control-allow-origin" not in answered.headers
    assert double.requests[-1].operation == "PublicGetObject"


def test_public_face_is_read_only_and_shares(double: S3Double, caller: Caller) -> None:
    """Errors are pages, writes are refused, CORS headers come when an origin asks."""
    missing = caller.send("GET", "/public/none", None, {})
    assert (missing.status, missing.headers["content-type"]) == (404, "text/html")
    assert caller.send("PUT", "/public/a", b"x", {}).status == 405
    assert double.keys() == []
    double.put("a", b"x")
    shared = caller.send("GET", "/public/a", None, {"Origin": "https://app.example"})
    assert shared.headers["access-control-allow-origin"] == "*"
    assert "Content-Range" in shared.headers["access-control-expose-headers"]
    asked = {"Origin": "https://app.example", "Access-Control-Request-Headers": "range"}
    preflight = caller.send("OPTIONS", "/public/a", None, asked)
    assert (preflight.status, preflight.headers["access-control-allow-headers"]) == (204, "range")
    with pytest.raises(ValueError, match="public"):
        S3Double(bucket="public")
