"""Requests of the data plane with botocore's parameter names and signature, and its answers in botocore's words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import h11
from botocore.auth import UNSIGNED_PAYLOAD, S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.parsers import create_parser

from r2d1 import __version__
from r2d1.objects.r2_client import REGION
from r2d1.objects.wire_exchange import Heard

if TYPE_CHECKING:
    from r2d1.settings import Settings

_HEADERS = {
    "CacheControl": "Cache-Control",
    "ChecksumCRC64NVME": "x-amz-checksum-crc64nvme",
    "ContentMD5": "Content-MD5",
    "ContentType": "Content-Type",
    "IfMatch": "If-Match",
    "IfNoneMatch": "If-None-Match",
    "Range": "Range",
}
_QUERY = {"PartNumber": "partNumber", "UploadId": "uploadId"}

#: An S3 answer in botocore's words, as ``r2_shapes`` reads it.
Answer = dict[str, Any]


class Signer:
    """Requests with a SigV4 signature by botocore: the body's hash is declared, or it goes unsigned."""

    def __init__(self, settings: Settings) -> None:
        assert settings.access_key is not None
        assert settings.secret_key is not None
        token = settings.session_token.reveal() if settings.session_token else None
        credentials = ReadOnlyCredentials(settings.access_key, settings.secret_key.reveal(), token)
        self._auth = _DeclaredAuth(credentials, "s3", REGION)

    def sign(
        self, method: str, base: str, params: Mapping[str, Any], *, size: int | None, sha256: str | None
    ) -> h11.Request:
        url = urlsplit(f"{base}/{quote(params['Key'], safe='/~')}")
        query = urlencode({_QUERY[name]: params[name] for name in sorted(_QUERY) if name in params})
        headers = {_HEADERS[name]: str(value) for name, value in params.items() if name in _HEADERS}
        headers |= {f"x-amz-meta-{name}": value for name, value in params.get("Metadata", {}).items()}
        request = AWSRequest(method, f"{url.geturl()}?{query}" if query else url.geturl(), headers)
        request.context["sha256"] = sha256
        self._auth.add_auth(request)
        unsigned = {"Host": url.netloc, "User-Agent": f"r2d1/{__version__}", "Accept-Encoding": "identity"}
        if size is not None:
            unsigned["Content-Length"] = str(size)
        target = f"{url.path}?{query}" if query else url.path
        return h11.Request(method=method, target=target, headers=[*unsigned.items(), *request.headers.items()])


class _DeclaredAuth(S3SigV4Auth):  # type: ignore[misc]
    def payload(self, request: AWSRequest) -> str:
        declared: str | None = request.context["sha256"]
        return declared or str(UNSIGNED_PAYLOAD)


def answer_of(heard: Heard) -> Answer:
    headers = heard.headers
    modified = headers.get("last-modified")
    prefix = "x-amz-meta-"
    return {
        "ContentLength": headers.get("content-length"),
        "ContentRange": headers.get("content-range"),
        "ChecksumCRC64NVME": headers.get("x-amz-checksum-crc64nvme"),
        "ETag": headers.get("etag"),
        "LastModified": _moment(modified),
        "Metadata": {name[len(prefix) :]: value for name, value in headers.items() if name.startswith(prefix)},
        "ResponseMetadata": {"HTTPStatusCode": heard.status},
    }


def _moment(text: str | None) -> datetime | None:
    """None for a date that cannot be read: nothing that was asked for depends on it."""
    try:
        return parsedate_to_datetime(text) if text else None
    except (ValueError, TypeError, OverflowError):
        return None


def error_of(heard: Heard) -> dict[str, Any]:
    """What a refusal says, as botocore's ``ClientError.response``. Raises botocore's ``ResponseParserError``."""
    answer = {"status_code": heard.status, "headers": heard.headers, "body": heard.body}
    parsed: dict[str, Any] = create_parser("rest-xml").parse(answer, None)
    return parsed
