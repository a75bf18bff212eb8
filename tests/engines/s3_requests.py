"""S3 requests whose answers are compared from server to server: the same steps, in the same order, everywhere."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from awscrt.checksums import crc64nvme

from tests.engines.servers import BUCKET, KEY
from tests.engines.signed import Key, Reply, ask

MIB = 1 << 20
_PART = bytes(5 * MIB)
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"
#: Headers of which the value is told, and of which only whether they are there.
_TOLD = ("accept-ranges", "cache-control", "content-disposition", "content-range", "content-type")
_COUNTED = ("last-modified",)


@dataclass(slots=True)
class Talk:
    """A conversation with one server: every call is a request, its answer described under the request's name."""

    endpoint: str
    key: Key = KEY
    answers: dict[str, str] = field(default_factory=dict)

    def __call__(
        self,
        name: str,
        method: str,
        key: str = "",
        *,
        body: bytes | Iterable[bytes] = b"",
        bucket: str = BUCKET,
        unsigned: bool = False,
        **asked: Any,
    ) -> Reply:
        path = f"/{bucket}" + (f"/{key}" if key else "")
        try:
            reply = ask(self.endpoint, method, path, key=None if unsigned else self.key, body=body, **asked)
        except OSError as exc:
            reply = Reply(0, {}, b"")
            self.answers[name] = f"no answer ({type(exc).__name__})"
            return reply
        self.answers[name] = described(method, reply, body if isinstance(body, bytes) else b"")
        return reply

    def quietly(self, method: str, key: str, *, body: bytes = b"", **asked: Any) -> Reply:
        """A step that only prepares the next one."""
        return ask(self.endpoint, method, f"/{BUCKET}/{key}", key=self.key, body=body, **asked)


def described(method: str, reply: Reply, sent: bytes) -> str:
    """An answer in words that do not change from run to run: status, code, the headers that matter, what is listed."""
    facts = [_error_code(reply) or "", *_headers(method, reply, sent), *_document(reply)]
    return " ".join([str(reply.status), *filter(None, facts)])


def _error_code(reply: Reply) -> str | None:
    if reply.status < 300 and b"<Error>" not in reply.body[:200]:
        return None
    found = re.search(rb"<Code>([^<]+)</Code>", reply.body)
    return found[1].decode() if found else None


def _headers(method: str, reply: Reply, sent: bytes) -> Iterable[str]:
    headers = reply.headers
    if "etag" in headers and reply.status < 300:
        yield f"etag={_etag_kind(headers['etag'], sent, reply.body if method == 'GET' else None)}"
    if method in ("GET", "HEAD") and reply.status < 300:
        if "content-length" in headers and "etag" in headers:
            yield f"length={headers['content-length']}"
        yield from (f"{name}={headers[name]!r}" for name in _TOLD if name in headers and not _is_document(reply))
        yield from (f"{name}" for name in _COUNTED if name in headers)
    for name in sorted(headers):
        if name.startswith("x-amz-meta-"):
            yield f"{name.removeprefix('x-amz-')}={headers[name]}"
        if name.startswith("x-amz-checksum-") and name != "x-amz-checksum-type":
            yield name.removeprefix("x-amz-")


def _etag_kind(etag: str, sent: bytes, got: bytes | None) -> str:
    if not etag.startswith('"'):
        return "unquoted"
    bare = etag.strip('"')
    if re.fullmatch(r"[0-9a-f]{32}-\d+", bare):
        return f"md5-{bare.partition('-')[2]}"
    known = [hashlib.md5(data).hexdigest() for data in (sent, got) if data is not None]
    return "md5" if bare in known or (not sent and got is None and re.fullmatch(r"[0-9a-f]{32}", bare)) else "other"


def _is_document(reply: Reply) -> bool:
    return reply.body.startswith((b"<?xml", b"<List", b"<Complete", b"<Delete", b"<Error"))


def _document(reply: Reply) -> Iterable[str]:
    """What a listing or a deletion tells."""
    if reply.status >= 300 or not _is_document(reply):
        return
    try:
        root = ET.fromstring(reply.body)
    except ET.ParseError:
        yield "unreadable XML"
        return
    plain = root.tag.removeprefix(_XML)
    if root.tag == plain:
        yield "(no namespace)"
    if plain in ("ListBucketResult", "DeleteResult", "ListPartsResult", "ListMultipartUploadsResult"):
        yield from _listed(root)
    if plain == "CompleteMultipartUploadResult" and (etag := root.findtext(f"{_XML}ETag")):
        yield f"etag={_etag_kind(etag, b'', None)}"


def _listed(root: ET.Element) -> Iterable[str]:
    """Keys and common prefixes in their order, then the facts by name."""
    facts = {}
    for element in root.iter():
        tag = element.tag.removeprefix(_XML)
        if tag == "Key" and root.tag.endswith("ListPartsResult"):
            continue
        if tag == "Key" or (tag == "Prefix" and element not in root):
            yield _shortened(element.text or "")
        elif tag in ("MaxKeys", "KeyCount", "IsTruncated", "EncodingType", "Code"):
            facts[tag] = element.text
        elif tag == "PartNumber":
            yield f"part {element.text}"
    yield from (f"{name}={facts[name]}" for name in sorted(facts) if facts[name] is not None)


def _shortened(key: str) -> str:
    return key.removeprefix("answers/").removeprefix("answers%2F").removeprefix("list/").removeprefix("list%2F")


# -- the steps ---------------------------------------------------------------------------------------------


def signing(talk: Talk) -> None:
    """Who may ask, and what a signature covers."""
    talk.quietly("PUT", "answers/s", body=b"hello")
    talk("GET unsigned", "GET", "answers/s", unsigned=True)
    stranger = replace(talk, key=Key("f" * 32, talk.key.secret_key))
    stranger("GET with an unknown access key", "GET", "answers/s")
    forger = replace(talk, key=Key(talk.key.access_key, "0" * 64))
    forger("GET with a wrong secret", "GET", "answers/s")
    forger("PUT with a wrong secret", "PUT", "answers/s", body=b"x")
    talk("GET signed 20 minutes ago", "GET", "answers/s", age_s=1200)
    talk("PUT, body not the signed one", "PUT", "answers/s2", body=b"x", payload=hashlib.sha256(b"y").hexdigest())
    talk("PUT, body unsigned", "PUT", "answers/s3", body=b"x", payload="UNSIGNED-PAYLOAD")
    chunked = b"1;chunk-signature=" + b"0" * 64 + b"\r\nx\r\n0;chunk-signature=" + b"0" * 64 + b"\r\n\r\n"
    talk(
        "PUT, aws-chunked with a streaming signature",
        "PUT",
        "answers/s4",
        body=chunked,
        payload="STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        headers={"Content-Encoding": "aws-chunked", "x-amz-decoded-content-length": "1"},
    )
    talk(
        "PUT, aws-chunked with a trailing checksum",
        "PUT",
        "answers/s5",
        body=b"1\r\nx\r\n0\r\nx-amz-checksum-crc32:jNxBbQ==\r\n\r\n",
        payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        headers={
            "Content-Encoding": "aws-chunked",
            "x-amz-decoded-content-length": "1",
            "x-amz-trailer": "x-amz-checksum-crc32",
        },
    )
    talk("GET with a session token nobody gave", "GET", "answers/s", headers={"x-amz-security-token": "junk"})
    talk("GET from an unknown bucket", "GET", "answers/s", bucket="nobody-s-bucket")
    talk("PUT into an unknown bucket", "PUT", "answers/s", bucket="nobody-s-bucket", body=b"x")


def objects(talk: Talk) -> None:
    """Whole objects."""
    kept = {
        "Content-Type": "text/plain",
        "Cache-Control": "no-cache",
        "x-amz-meta-sha256": "ab" * 8,
        "x-amz-meta-Two-Words": "x y",
    }
    talk("PUT", "PUT", "answers/o", body=b"hello", headers=kept)
    talk("GET", "GET", "answers/o")
    talk("HEAD", "HEAD", "answers/o")
    talk("PUT of no bytes", "PUT", "answers/empty")
    talk("GET of no bytes", "GET", "answers/empty")
    talk("GET what is absent", "GET", "answers/absent")
    talk("HEAD what is absent", "HEAD", "answers/absent")
    talk("DELETE", "DELETE", "answers/o")
    talk("DELETE what is absent", "DELETE", "answers/o")
    talk("PUT without a length (chunked)", "PUT", "answers/chunked", body=iter([b"hello"]))
    talk("PUT, key of 1,024 bytes", "PUT", _key_of(1024), body=b"x")
    talk("PUT, key of 1,025 bytes", "PUT", _key_of(1025), body=b"x")
    talk("PUT, key of one long segment", "PUT", "answers/" + "k" * 900, body=b"x")
    odd = "answers/a b+c%20d=é日😀#?&;"
    talk("PUT, odd key", "PUT", odd, body=b"odd")
    talk("GET, odd key", "GET", odd)
    talk.quietly("PUT", "answers/nfd/e\u0301", body=b"nfd")
    talk("GET by NFC what was PUT by NFD", "GET", "answers/nfd/\u00e9")
    talk("PUT, key with `//`", "PUT", "answers//double", body=b"x")
    talk("PUT, key beside a folder of its name", "PUT", "answers/nfd", body=b"x")


def headers(talk: Talk) -> None:
    """Headers that are kept, refused or ignored."""
    for size in (2_000, 3_000, 9_000):
        value = {"x-amz-meta-long": "v" * size}
        talk(f"PUT, {size:,} bytes of metadata", "PUT", "answers/h", body=b"x", headers=value)
    for name, value in (
        ("x-amz-foo", "bar"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-acl", "private"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-server-side-encryption", "aws:kms"),
        ("x-amz-storage-class", "GLACIER"),
        ("x-amz-object-lock-mode", "GOVERNANCE"),
        ("x-amz-expected-bucket-owner", "1" * 12),
    ):
        talk(f"PUT, {name}: {value}", "PUT", "answers/h", body=b"x", headers={name: value})
    talk("GET ?acl", "GET", "answers/h", query={"acl": ""})
    talk("GET ?tagging", "GET", "answers/h", query={"tagging": ""})


def conditions(talk: Talk) -> None:
    """If-Match and If-None-Match."""
    etag = talk.quietly("PUT", "answers/c", body=b"one").headers.get("etag", "")
    other = f'"{hashlib.md5(b"other").hexdigest()}"'
    talk("PUT If-None-Match: *, absent", "PUT", "answers/c-new", body=b"x", headers={"If-None-Match": "*"})
    talk("PUT If-None-Match: *, there", "PUT", "answers/c", body=b"x", headers={"If-None-Match": "*"})
    talk("PUT If-Match, another ETag", "PUT", "answers/c", body=b"x", headers={"If-Match": other})
    talk("PUT If-Match, absent", "PUT", "answers/c-absent", body=b"x", headers={"If-Match": other})
    talk("PUT If-Match, its ETag", "PUT", "answers/c", body=b"two", headers={"If-Match": etag})
    etag = talk.quietly("HEAD", "answers/c").headers.get("etag", "")
    talk("GET If-Match, its ETag", "GET", "answers/c", headers={"If-Match": etag})
    talk("GET If-Match, another ETag", "GET", "answers/c", headers={"If-Match": other})
    talk("GET a range If-Match, another ETag", "GET", "answers/c", headers={"If-Match": other, "Range": "bytes=0-1"})
    talk("GET If-None-Match, its ETag", "GET", "answers/c", headers={"If-None-Match": etag})
    talk("HEAD If-None-Match, its ETag", "HEAD", "answers/c", headers={"If-None-Match": etag})
    talk("HEAD If-Match, another ETag", "HEAD", "answers/c", headers={"If-Match": other})
    talk("GET If-Match, absent", "GET", "answers/c-absent-2", headers={"If-Match": other})


def checks(talk: Talk) -> None:
    """Bodies that say what they are."""
    body = b"hello"
    right = {
        "Content-MD5": _b64(hashlib.md5(body).digest()),
        "x-amz-checksum-sha256": _b64(hashlib.sha256(body).digest()),
        "x-amz-checksum-crc64nvme": _b64(crc64nvme(body).to_bytes(8, "big")),
        "x-amz-checksum-crc32": "NhCmhg==",
    }
    for name, value in right.items():
        talk(f"PUT, right {name}", "PUT", "answers/k", body=body, headers={name: value})
        talk(f"PUT, wrong {name}", "PUT", "answers/k-wrong", body=b"other", headers={name: value})
        talk(f"PUT, {name} that is none", "PUT", "answers/k-none", body=body, headers={name: "none"})
    both = {name: right[name] for name in ("x-amz-checksum-sha256", "x-amz-checksum-crc32")}
    talk("PUT, two checksums", "PUT", "answers/k", body=body, headers=both)
    talk.quietly("PUT", "answers/k", body=body, headers={"x-amz-checksum-crc64nvme": right["x-amz-checksum-crc64nvme"]})
    talk("HEAD, x-amz-checksum-mode", "HEAD", "answers/k", headers={"x-amz-checksum-mode": "ENABLED"})


def ranges(talk: Talk) -> None:
    """Parts of objects."""
    talk.quietly("PUT", "answers/r", body=b"0123456789")
    talk.quietly("PUT", "answers/r-empty")
    for asked in ("0-3", "8-", "-3", "8-100", "-100", "10-", "10-11", "-0", "3-1", "a-b", "0-1,4-5", ""):
        talk(f"GET bytes={asked} of 10", "GET", "answers/r", headers={"Range": f"bytes={asked}"})
    talk("GET bytes=0-0 of 0", "GET", "answers/r-empty", headers={"Range": "bytes=0-0"})
    talk("GET bytes=-1 of 0", "GET", "answers/r-empty", headers={"Range": "bytes=-1"})
    talk("HEAD bytes=0-3 of 10", "HEAD", "answers/r", headers={"Range": "bytes=0-3"})
    talk("GET lines=0-3 of 10", "GET", "answers/r", headers={"Range": "lines=0-3"})


def listings(talk: Talk) -> None:
    """ListObjects, ListObjectsV2, DeleteObjects, and the bucket itself."""
    for name in ("a", "a-b", "d/x", "d/y", "é b"):
        talk.quietly("PUT", f"answers/list/{name}", body=b"x")
    v2 = {"list-type": "2", "prefix": "answers/list/"}

    def listed(name: str, **more: str) -> Reply:
        return talk(name, "GET", query={**v2, **{key.replace("_", "-"): value for key, value in more.items()}})

    listed("list")
    listed("list, delimiter", delimiter="/")
    listed("list, start-after", start_after="answers/list/a-b")
    first = listed("list, max-keys=2", max_keys="2")
    token = re.search(rb"<NextContinuationToken>([^<]+)<", first.body)
    if token:
        listed("list, the next page", max_keys="2", continuation_token=token[1].decode().replace("&#x3D;", "="))
    listed("list, encoding-type=url", encoding_type="url")
    listed("list, max-keys=0", max_keys="0")
    listed("list, max-keys=1001", max_keys="1001")
    listed("list, max-keys=-1", max_keys="-1")
    listed("list, max-keys=many", max_keys="many")
    listed("list, a token that is none", continuation_token="none")
    listed("list, a parameter that is none", foo="bar")
    talk("list, version 1", "GET", query={"prefix": "answers/list/"})
    talk("list an unknown bucket", "GET", bucket="nobody-s-bucket", query={"list-type": "2"})
    talk("HeadBucket", "HEAD")
    talk("HeadBucket of an unknown bucket", "HEAD", bucket="nobody-s-bucket")
    talk("GetBucketLocation", "GET", query={"location": ""})
    _deletions(talk)


def _deletions(talk: Talk) -> None:
    def deletion(name: str, body: bytes, **md5: bool) -> None:
        checked = {"Content-MD5": _b64(hashlib.md5(body).digest())} if md5.get("md5", True) else {}
        talk(name, "POST", query={"delete": ""}, body=body, headers=checked)

    def keys(*names: str, quiet: bool = False) -> bytes:
        objects = "".join(f"<Object><Key>answers/list/{name}</Key></Object>" for name in names)
        return f"<Delete>{'<Quiet>true</Quiet>' if quiet else ''}{objects}</Delete>".encode()

    deletion("DeleteObjects, one there and one absent", keys("a", "absent"))
    deletion("DeleteObjects, quiet", keys("a-b", quiet=True))
    deletion("DeleteObjects without a checksum", keys("d/x"), md5=False)
    deletion("DeleteObjects, 1,001 keys", keys(*(f"n{number}" for number in range(1001))))
    deletion("DeleteObjects of none", keys())
    deletion("DeleteObjects, no XML", b"delete them all")


def multipart(talk: Talk) -> None:
    """Uploads in parts. Every request that may spoil an upload has one of its own."""
    upload = _Upload(talk, "answers/m")
    upload.create("CreateMultipartUpload", headers={"x-amz-meta-rank": "0", "Content-Type": "text/plain"})
    upload.part("UploadPart", 1, _PART)
    upload.part("UploadPart, last", 2, b"last")
    upload.list_parts("ListParts")
    talk("ListMultipartUploads", "GET", query={"uploads": "", "prefix": "answers/m"})
    upload.complete("Complete", upload.parts)
    talk("HEAD, made of parts", "HEAD", "answers/m")
    talk("GET a range, made of parts", "GET", "answers/m", headers={"Range": f"bytes={5 * MIB - 1}-{5 * MIB + 1}"})
    upload.complete("Complete once more", upload.parts)
    upload.part("UploadPart after Complete", 3, b"x", keep=False)
    upload.abort("Abort after Complete")
    _begun(talk, "m0").part("UploadPart, number 0", 0, b"x")
    _begun(talk, "m1").part("UploadPart, number 10,001", 10_001, b"x")
    md5 = {"Content-MD5": _b64(hashlib.md5(b"other").digest())}
    _begun(talk, "m2").part("UploadPart, wrong Content-MD5", 1, b"x", keep=False, headers=md5)
    for number, (name, of) in enumerate(_BAD_COMPLETES.items()):
        bad = _begun(talk, f"bad{number}", _PART, b"last")
        bad.complete(name, of(bad.parts))
        bad.abort("")
    odd = _begun(talk, "odd", b"x")
    talk("Complete, no XML", "POST", odd.key, query={"uploadId": odd.id}, body=b"all of them")
    odd.abort("")
    unknown = _Upload(talk, "answers/m-unknown", "unknown-upload")
    unknown.part("UploadPart, unknown upload", 1, b"x", keep=False)
    unknown.complete("Complete, unknown upload", [(1, "0" * 32)])
    unknown.abort("Abort, unknown upload")
    unknown.list_parts("ListParts, unknown upload")


def multipart_rules(talk: Talk) -> None:
    """R2's rules for parts, and conditions on Complete."""
    for name, sizes in (
        ("Complete, a first part of 1 MiB", (MIB, 10)),
        ("Complete, unequal parts", (5 * MIB, 6 * MIB, 10)),
        ("Complete, a last part larger than the others", (5 * MIB, 6 * MIB)),
        ("Complete, gaps in the numbers", (5 * MIB, 10)),
        ("Complete, no bytes in the last part", (5 * MIB, 0)),
    ):
        upload = _Upload(talk, f"answers/rules/{len(sizes)}-{sizes[0]}-{sizes[-1]}")
        upload.create()
        step = 3 if "gaps" in name else 1
        for at, size in enumerate(sizes):
            upload.part("", 1 + at * step, bytes(size))
        upload.complete(name, upload.parts)
        upload.abort("")
    there = _Upload(talk, "answers/rules/there")
    talk.quietly("PUT", there.key, body=b"old")
    there.create()
    there.part("", 1, b"new")
    there.complete("Complete If-None-Match: *, there", there.parts, headers={"If-None-Match": "*"})
    talk("HEAD after it", "HEAD", there.key)
    there.complete("Complete again without the condition", there.parts)
    gone = _begun(talk, "rules/gone", b"x")
    gone.abort("Abort")
    gone.part("UploadPart after Abort", 1, b"x", keep=False)
    gone.complete("Complete after Abort", gone.parts)
    gone.abort("Abort once more")
    twice = _begun(talk, "rules/twice", b"first")
    twice.parts.clear()
    twice.part("UploadPart again with other bytes", 1, b"second")
    twice.complete("Complete with the second", twice.parts)
    checked = {"x-amz-checksum-algorithm": "CRC64NVME", "x-amz-checksum-type": "FULL_OBJECT"}
    crc = _Upload(talk, "answers/rules/crc")
    crc.create("CreateMultipartUpload with CRC64NVME", headers=checked)
    value = {"x-amz-checksum-crc64nvme": _b64(crc64nvme(b"right").to_bytes(8, "big"))}
    crc.part("UploadPart, right CRC64NVME", 1, b"right", headers=value)
    crc.complete("Complete with CRC64NVME", crc.parts)
    wrong = _Upload(talk, "answers/rules/crc-wrong")
    wrong.create(headers=checked)
    wrong.part("UploadPart, wrong CRC64NVME", 1, b"wrong", keep=False, headers=value)


@dataclass(slots=True)
class _Upload:
    """One multipart upload of a conversation; a step without a name is not recorded."""

    talk: Talk
    key: str
    id: str = ""
    parts: list[tuple[int, str]] = field(default_factory=list)

    def _ask(self, name: str, method: str, **asked: Any) -> Reply:
        return self.talk(name, method, self.key, **asked) if name else self.talk.quietly(method, self.key, **asked)

    def create(self, name: str = "", headers: Mapping[str, str] | None = None) -> None:
        reply = self._ask(name, "POST", query={"uploads": ""}, headers=headers)
        found = re.search(rb"<UploadId>([^<]+)<", reply.body)
        self.id = found[1].decode() if found else "none"

    def part(self, name: str, number: int, body: bytes, *, keep: bool = True, **asked: Any) -> None:
        query = {"partNumber": str(number), "uploadId": self.id}
        reply = self._ask(name, "PUT", query=query, body=body, **asked)
        if keep and reply.status == 200:
            self.parts.append((number, reply.headers.get("etag", "").strip('"')))

    def complete(self, name: str, parts: Iterable[tuple[int, str]], **asked: Any) -> None:
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etag}&quot;</ETag></Part>" for number, etag in parts
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        self._ask(name, "POST", query={"uploadId": self.id}, body=body, **asked)

    def list_parts(self, name: str) -> None:
        self._ask(name, "GET", query={"uploadId": self.id})

    def abort(self, name: str) -> None:
        self._ask(name, "DELETE", query={"uploadId": self.id})


def _begun(talk: Talk, name: str, *bodies: bytes) -> _Upload:
    """An upload with these parts, of which no step was recorded."""
    upload = _Upload(talk, f"answers/{name}")
    upload.create()
    for number, body in enumerate(bodies, start=1):
        upload.part("", number, body)
    return upload


#: Complete requests that R2 refuses or takes in its own way, made from the parts there are.
_BAD_COMPLETES: Mapping[str, Callable[[list[tuple[int, str]]], list[tuple[int, str]]]] = {
    "Complete, a part that is not there": lambda parts: [*parts, (7, "0" * 32)],
    "Complete, an ETag that is another": lambda parts: [(1, "0" * 32), parts[1]],
    "Complete, one part twice": lambda parts: [parts[0], parts[0]],
    "Complete, parts named last first": lambda parts: parts[::-1],
    "Complete, only the first part": lambda parts: parts[:1],
    "Complete of no parts": lambda _: [],
}


def _key_of(size: int) -> str:
    """A key of so many bytes, in segments that a file system can hold."""
    key = "answers/" + "k" * 200
    while len(key) < size:
        key += "/" + "k" * min(200, size - len(key) - 1)
    return key


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


#: Title of a table → the steps that fill it.
SCENES: Mapping[str, Callable[[Talk], None]] = {
    "Signing": signing,
    "Objects": objects,
    "Headers": headers,
    "Conditions": conditions,
    "Checks": checks,
    "Ranges": ranges,
    "Listings and deletions": listings,
    "Uploads in parts": multipart,
    "Rules for parts": multipart_rules,
}


def answers_of(endpoint: str, key: Key = KEY) -> dict[str, dict[str, str]]:
    """Every scene's answers by one server."""
    found = {}
    for title, scene in SCENES.items():
        talk = Talk(endpoint, key)
        scene(talk)
        found[title] = talk.answers
    return found
