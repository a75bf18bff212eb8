"""The listing documents of the S3 API, made from a bucket model."""

from __future__ import annotations

from collections.abc import Mapping

from r2d1.testing.bucket import Bucket
from r2d1.testing.documents import Element, encoder, iso_time
from r2d1.testing.operations import whole_number
from r2d1.testing.refusals import refused

Document = tuple[str, list[Element]]


def list_buckets(name: str) -> Document:
    """The one bucket there is."""
    bucket: Element = ("Bucket", [("Name", name), ("CreationDate", iso_time(0))])
    return "ListAllMyBucketsResult", [("Owner", [("ID", "owner"), ("DisplayName", "owner")]), ("Buckets", [bucket])]


def list_objects(model: Bucket, name: str, query: Mapping[str, str], *, operation: str) -> Document:
    """A page of ListObjectsV2, or of the older ListObjects. ``max-keys`` is clamped and echoed as asked."""
    encode = encoder(query.get("encoding-type"))
    is_v2 = operation == "ListObjectsV2"
    asked = _count(query.get("max-keys"), error="InvalidMaxKeys")
    start_after = query.get("start-after" if is_v2 else "marker", "")
    page, objects = model.list_page(
        query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        start_after=start_after,
        token=query.get("continuation-token") if is_v2 else None,
        limit=asked,
        operation=operation,
    )
    contents: list[Element] = [
        (
            "Contents",
            [
                ("Key", encode(stored.key)),
                ("Size", stored.size),
                ("LastModified", iso_time(stored.modified)),
                ("ETag", f'"{stored.etag}"'),
                ("StorageClass", "STANDARD"),
            ],
        )
        for stored in objects
    ]
    folders: list[Element] = [("CommonPrefixes", [("Prefix", encode(folder.decode()))]) for folder in page.folders]
    elements: list[Element] = [("Name", name), *contents, ("IsTruncated", page.truncated), *folders]
    elements += [("Prefix", encode(query.get("prefix", "")))]
    elements += [(title, encode(query[param])) for param, title in _ECHOED.items() if param in query]
    elements += [("MaxKeys", asked)]
    if is_v2:
        elements += [("KeyCount", len(contents) + len(folders))]
        elements += [("NextContinuationToken", page.token)] if page.token else []
    elif page.truncated and page.last is not None:
        elements += [("NextMarker", encode(page.last.decode()))]
    return "ListBucketResult", elements


_ECHOED = {
    "delimiter": "Delimiter",
    "start-after": "StartAfter",
    "marker": "Marker",
    "encoding-type": "EncodingType",
    "continuation-token": "ContinuationToken",
}


def list_parts(model: Bucket, name: str, key: str, query: Mapping[str, str]) -> Document:
    """A page of an open upload's parts."""
    upload_id = query.get("uploadId", "")
    after = _count(query.get("part-number-marker"), default=0)
    limit = _count(query.get("max-parts"))
    parts, truncated = model.list_parts(key, upload_id, after=after, limit=limit)
    rows: list[Element] = [
        (
            "Part",
            [
                ("PartNumber", part.number),
                ("LastModified", iso_time(part.modified)),
                ("ETag", f'"{part.etag}"'),
                ("Size", part.size),
                *((f"Checksum{algorithm.upper()}", value) for algorithm, value in part.body.checksums.items()),
            ],
        )
        for part in parts
    ]
    following: list[Element] = [("NextPartNumberMarker", parts[-1].number)] if truncated and parts else []
    return "ListPartsResult", [
        ("Bucket", name),
        ("Key", key),
        ("UploadId", upload_id),
        ("PartNumberMarker", after),
        *following,
        ("MaxParts", limit),
        ("IsTruncated", truncated),
        *rows,
    ]


def list_uploads(model: Bucket, name: str, query: Mapping[str, str]) -> Document:
    """A page of the bucket's open uploads."""
    encode = encoder(query.get("encoding-type"))
    prefix, limit = query.get("prefix", ""), _count(query.get("max-uploads"))
    marker = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
    uploads, truncated = model.list_uploads(prefix, after=marker, limit=limit)
    rows: list[Element] = [
        (
            "Upload",
            [
                ("Key", encode(upload.key)),
                ("UploadId", upload.upload_id),
                ("Initiated", iso_time(upload.started)),
                ("StorageClass", "STANDARD"),
            ],
        )
        for upload in uploads
    ]
    following: list[Element] = []
    if truncated and uploads:
        following = [("NextKeyMarker", encode(uploads[-1].key)), ("NextUploadIdMarker", uploads[-1].upload_id)]
    return "ListMultipartUploadsResult", [
        ("Bucket", name),
        ("KeyMarker", encode(marker[0])),
        ("UploadIdMarker", marker[1]),
        *following,
        ("MaxUploads", limit),
        ("IsTruncated", truncated),
        ("Prefix", encode(prefix)),
        *rows,
    ]


def _count(text: str | None, *, default: int = 1000, error: str = "InvalidArgument") -> int:
    """A number of things asked for, not negative."""
    if text is None:
        return default
    number = whole_number(text)
    if number is None:
        raise refused(error)
    return number
