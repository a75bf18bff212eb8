"""Headers kept with an object: read from a request, written into a reply.

Source: https://developers.cloudflare.com/r2/api/s3/extensions/ (names read back in lower case; values may be
RFC 2047-encoded and are decoded when stored, encoded again when read).
"""

from __future__ import annotations

from collections.abc import Mapping
from email.errors import HeaderParseError
from email.header import Header, decode_header, make_header

from r2d1.testing.stored import Kept

META = "x-amz-meta-"
_SYSTEM = ("cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires")


def parse_kept(headers: Mapping[str, str]) -> Kept:
    """What R2 keeps of a write's headers."""
    system = {name: headers[name] for name in _SYSTEM if name in headers}
    system.setdefault("content-type", "application/octet-stream")
    metadata = {name.removeprefix(META): decoded(value) for name, value in headers.items() if name.startswith(META)}
    return Kept(system, metadata)


def kept_headers(kept: Kept) -> dict[str, str]:
    """The same as headers of a reply; a name that is not ASCII is dropped and counted."""
    shown = {name: value for name, value in kept.metadata.items() if name.isascii()}
    headers = {**kept.headers, **{META + name: encoded(value) for name, value in shown.items()}}
    missing = len(kept.metadata) - len(shown)
    return {**headers, "x-amz-missing-meta": str(missing)} if missing else headers


def decoded(value: str) -> str:
    """Text of a header value that may be RFC 2047-encoded."""
    if "=?" not in value:
        return value
    try:
        return str(make_header(decode_header(value)))
    except (HeaderParseError, LookupError, UnicodeDecodeError):
        return value


def encoded(value: str) -> str:
    """A header value in ASCII."""
    return value if value.isascii() else Header(value, "utf-8", maxlinelen=1 << 20).encode()
