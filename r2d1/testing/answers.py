"""S3 requests answered from a bucket model, without a socket: admitted by their head, answered with their body."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cached_property

from r2d1.testing.blob import Blob
from r2d1.testing.bodies import CHECKSUM_HEADER, Announced, Body
from r2d1.testing.bucket import Bucket
from r2d1.testing.conditions import Conditions, RangeAsked
from r2d1.testing.documents import Content, Element, document, error_document, parse_complete, parse_delete
from r2d1.testing.listings import list_buckets, list_objects, list_parts, list_uploads
from r2d1.testing.metadata import kept_headers, parse_kept
from r2d1.testing.operations import WITH_BODY, Target, operation_of, screen, whole_number
from r2d1.testing.refusals import Refused, refused
from r2d1.testing.sigv4 import Credentials, Head, access_key_of, verify
from r2d1.testing.stored import StoredObject

#: Most bytes of an XML document in a request: 10,000 parts with checksums fit well.
MAX_DOCUMENT = 8 << 20


@dataclass(frozen=True, slots=True)
class Reply:
    """Status, headers and the bytes ``start`` to ``stop`` of ``blob``. ``code`` is the S3 error code, if it is one."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    blob: Blob = field(default_factory=Blob)
    start: int = 0
    stop: int | None = None
    code: str = ""

    @property
    def size(self) -> int:
        return (self.blob.size if self.stop is None else self.stop) - self.start

    def blocks(self, block_size: int) -> Iterator[bytes | memoryview]:
        return self.blob.blocks(self.start, self.stop, block_size)

    @classmethod
    def of_error(cls, error: Refused) -> Reply:
        """The error as R2 words it; 304 has no body."""
        if error.status == 304:
            return cls(304, error.fields, code=error.code)
        return cls(error.status, {"Content-Type": "application/xml"}, Blob([error_document(error)]), code=error.code)

    @classmethod
    def of_document(cls, root: str, content: Content) -> Reply:
        return cls(200, {"Content-Type": "application/xml"}, Blob([document(root, content)]))


class Request:
    """A request's head, read: what it asks for, of what, under which conditions."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.method = head.method
        self.headers = {name: head.header(name) or "" for name, _ in head.headers}
        self.query = dict(head.query_pairs())
        self.access_key = access_key_of(head)
        self.target = Target("", "")
        self.operation = "Unknown"
        self.error: Refused | None = None
        try:
            self.target = Target.parse(head.path)
            self.operation = operation_of(head.method, self.target, self.query, self.headers)
        except Refused as error:
            self.error = error

    @property
    def key(self) -> str:
        return self.target.key

    @property
    def subject(self) -> str:
        """The key, or the prefix of a listing."""
        return self.query.get("prefix", "") if self.operation.startswith("List") and not self.key else self.key

    @cached_property
    def content_length(self) -> int | None:
        """Bytes of body announced; ``None`` when the request does not say."""
        return whole_number(self.headers.get("content-length"))

    @property
    def part_number(self) -> int | None:
        """``partNumber``, or ``None``; -1 for one that is no number."""
        if "partNumber" not in self.query:
            return None
        number = whole_number(self.query["partNumber"])
        return -1 if number is None else number


class Service:
    """The S3 API in front of one bucket."""

    def __init__(self, model: Bucket, name: str, credentials: Credentials) -> None:
        self.model = model
        self.name = name
        self.credentials = credentials
        self._answers: Mapping[str, Callable[[Request, Body], Reply]] = {
            "AbortMultipartUpload": self._abort,
            "CompleteMultipartUpload": self._complete,
            "CreateMultipartUpload": self._create,
            "DeleteObject": self._delete,
            "DeleteObjects": self._delete_many,
            "GetBucketLocation": self._bucket,
            "GetObject": self._get,
            "HeadBucket": self._bucket,
            "HeadObject": self._get,
            "ListBuckets": self._list,
            "ListMultipartUploads": self._list,
            "ListObjects": self._list,
            "ListObjectsV2": self._list,
            "ListParts": self._list,
            "PutObject": self._put,
            "UploadPart": self._put_part,
        }

    def admit(self, request: Request) -> Announced:
        """Everything that can be refused before the body is read, in R2's order; what the body must be."""
        sha256 = verify(request.head, self.credentials, now=self.model.clock())
        if request.error is not None:
            raise request.error
        if request.target.bucket not in ("", self.name):
            raise refused("NoSuchBucket")
        screen(request.operation, request.query, request.headers)
        self.model.permit(request.operation)
        if request.operation == "UploadPart":
            self.model.check_part_number(_number(request))
        if request.operation in WITH_BODY:
            self._check_length(request)
        if request.operation == "CompleteMultipartUpload":  # its checksum headers speak of the object
            return Announced(sha256=sha256)
        return Announced.parse(request.headers, sha256=sha256)

    def _check_length(self, request: Request) -> None:
        length = request.content_length
        if length is None or "transfer-encoding" in request.headers:
            raise refused("MissingContentLength")
        is_data = request.operation in ("PutObject", "UploadPart")
        if length > (self.model.rules.max_part_size if is_data else MAX_DOCUMENT):
            raise refused("EntityTooLarge")

    def answer(self, request: Request, body: Body) -> Reply:
        """Do what an admitted request asks for."""
        return self._answers[request.operation](request, body)

    def _put(self, request: Request, body: Body) -> Reply:
        stored = self.model.put(
            request.key, body, kept=parse_kept(request.headers), conditions=Conditions.parse(request.headers)
        )
        return Reply(200, {"ETag": f'"{stored.etag}"', **_checksums(stored.checksums)})

    def _get(self, request: Request, body: Body) -> Reply:
        asked = RangeAsked.parse(request.headers["range"]) if "range" in request.headers else None
        stored = self.model.get(request.key, conditions=Conditions.parse(request.headers), operation=request.operation)
        headers = object_headers(stored)
        if request.part_number is not None:
            span, headers["x-amz-mp-parts-count"] = _part_span(stored, request.part_number)
        elif asked is not None:
            span = asked.of(stored.size)
        else:
            if request.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
                headers |= _checksums(stored.checksums)
            return Reply(200, headers, stored.blob)
        headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{stored.size}"
        return Reply(206, headers, stored.blob, *span)

    def _delete(self, request: Request, body: Body) -> Reply:
        self.model.delete([request.key])
        return Reply(204)

    def _delete_many(self, request: Request, body: Body) -> Reply:
        keys = parse_delete(body.blob.read())
        self.model.delete(keys, operation="DeleteObjects")
        return Reply.of_document("DeleteResult", [("Deleted", [("Key", key)]) for key in keys])

    def _create(self, request: Request, body: Body) -> Reply:
        algorithm = request.headers.get("x-amz-checksum-algorithm")
        upload = self.model.create_upload(
            request.key,
            kept=parse_kept(request.headers),
            algorithm=algorithm.lower() if algorithm else None,
            conditions=Conditions.parse(request.headers),
        )
        return Reply.of_document(
            "InitiateMultipartUploadResult",
            [("Bucket", self.name), ("Key", request.key), ("UploadId", upload.upload_id)],
        )

    def _put_part(self, request: Request, body: Body) -> Reply:
        part = self.model.put_part(request.key, request.query.get("uploadId", ""), _number(request), body)
        return Reply(200, {"ETag": f'"{part.etag}"', **_checksums(part.body.checksums)})

    def _complete(self, request: Request, body: Body) -> Reply:
        stored = self.model.complete(
            request.key,
            request.query.get("uploadId", ""),
            parse_complete(body.blob.read()),
            conditions=Conditions.parse(request.headers),
            checksums=_whole_checksums(request.headers),
        )
        sums: list[Element] = [(f"Checksum{name.upper()}", value) for name, value in stored.checksums.items()]
        return Reply.of_document(
            "CompleteMultipartUploadResult",
            [
                ("Location", f"/{self.name}/{request.key}"),
                ("Bucket", self.name),
                ("Key", request.key),
                ("ETag", f'"{stored.etag}"'),
                *sums,
            ],
        )

    def _abort(self, request: Request, body: Body) -> Reply:
        self.model.abort(request.key, request.query.get("uploadId", ""))
        return Reply(204)

    def _bucket(self, request: Request, body: Body) -> Reply:
        if request.operation == "GetBucketLocation":
            return Reply.of_document("LocationConstraint", "auto")
        return Reply(200, {"x-amz-bucket-region": "auto"})

    def _list(self, request: Request, body: Body) -> Reply:
        model, name, query = self.model, self.name, request.query
        if request.operation == "ListBuckets":
            return Reply.of_document(*list_buckets(name))
        if request.operation == "ListParts":
            return Reply.of_document(*list_parts(model, name, request.key, query))
        if request.operation == "ListMultipartUploads":
            return Reply.of_document(*list_uploads(model, name, query))
        return Reply.of_document(*list_objects(model, name, query, operation=request.operation))


def object_headers(stored: StoredObject) -> dict[str, str]:
    """The headers of every good answer about an object."""
    return {
        **kept_headers(stored.kept),
        "ETag": f'"{stored.etag}"',
        "Last-Modified": formatdate(int(stored.modified), usegmt=True),
        "Accept-Ranges": "bytes",
    }


def _checksums(values: Mapping[str, str]) -> dict[str, str]:
    return {CHECKSUM_HEADER + name: value for name, value in values.items()}


def _whole_checksums(headers: Mapping[str, str]) -> dict[str, str]:
    """What a Complete request says of the object it makes."""
    return {
        name.removeprefix(CHECKSUM_HEADER): value
        for name, value in headers.items()
        if name.startswith(CHECKSUM_HEADER) and not name.endswith("-type")
    }


def _number(request: Request) -> int:
    """The part number of an UploadPart; one that is missing or no number is out of range."""
    return -1 if request.part_number is None else request.part_number


def _part_span(stored: StoredObject, number: int) -> tuple[tuple[int, int], str]:
    """Start and stop of a part of an object, and how many parts it has."""
    sizes = stored.part_sizes or (stored.size,)
    if not 1 <= number <= len(sizes):
        raise refused("InvalidArgument", f"Part number must be an integer between 1 and {len(sizes)}, inclusive.")
    start = sum(sizes[: number - 1])
    return (start, start + sizes[number - 1]), str(len(sizes))
