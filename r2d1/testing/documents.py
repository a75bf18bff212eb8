"""The XML documents of the S3 API: errors and results written, requests read.

R2's error documents carry no ``xmlns``, no ``RequestId`` and no ``HostId``; success documents carry S3's ``xmlns``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from r2d1.testing.bodies import ALGORITHMS
from r2d1.testing.operations import whole_number
from r2d1.testing.refusals import Refused, refused
from r2d1.testing.stored import PartNamed

XMLNS = "http://s3.amazonaws.com/doc/2006-03-01/"
_PROLOGUE = '<?xml version="1.0" encoding="UTF-8"?>'
_CHECKSUM_ELEMENTS = {f"Checksum{name.upper()}": name for name in ALGORITHMS}

#: What is inside an element: its text, or the elements within it.
Content = str | int | bool | list["Element"]
Element = tuple[str, Content]


def error_document(error: Refused) -> bytes:
    quotes = {"'": "&apos;", '"': "&quot;"}
    fields = {"Code": error.code, "Message": error.message, **error.fields}
    inner = "".join(f"<{name}>{escape(value, quotes)}</{name}>" for name, value in fields.items())
    return f"{_PROLOGUE}<Error>{inner}</Error>".encode("utf-8", "replace")


def document(root: str, content: Content) -> bytes:
    """A success document."""
    return f'{_PROLOGUE}<{root} xmlns="{XMLNS}">{_xml(content)}</{root}>'.encode()


def _xml(content: Content) -> str:
    if isinstance(content, list):
        return "".join(f"<{name}>{_xml(inner)}</{name}>" for name, inner in content)
    return str(content).lower() if isinstance(content, bool) else escape(str(content))


def iso_time(seconds: float) -> str:
    """``2026-01-31T12:00:00.123Z``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def encoder(encoding_type: str | None) -> Callable[[str], str]:
    """How names are written into a listing: percent-encoded, slashes too, when ``encoding-type=url`` was asked for."""
    return partial(quote, safe="") if encoding_type == "url" else str


def parse_complete(raw: bytes) -> list[PartNamed]:
    """Read a ``CompleteMultipartUpload`` document; ``MalformedXML`` when it is none."""
    parts = []
    for part in _children(raw, "CompleteMultipartUpload", "Part"):
        number, etag = whole_number(part.get("PartNumber")), part.get("ETag", "").strip('"')
        if number is None or not etag:
            raise refused("MalformedXML")
        checksums = {_CHECKSUM_ELEMENTS[name]: text for name, text in part.items() if name in _CHECKSUM_ELEMENTS}
        parts.append(PartNamed(number, etag, checksums))
    return parts


def parse_delete(raw: bytes) -> list[str]:
    """Read a ``Delete`` document; ``Quiet`` is checked and, as on R2, has no effect."""
    root = _root(raw, "Delete")
    quiet = [child.text for child in root if _name(child) == "Quiet"]
    keys = [item.get("Key") for item in _children(raw, "Delete", "Object")]
    if any(text not in ("true", "false") for text in quiet):
        raise refused("MalformedXML")
    found = [key for key in keys if key]
    if len(found) != len(keys):
        raise refused("MalformedXML")
    return found


def _children(raw: bytes, root: str, child: str) -> list[Mapping[str, str]]:
    elements = [element for element in _root(raw, root) if _name(element) == child]
    return [{_name(field): field.text or "" for field in element} for element in elements]


def _root(raw: bytes, name: str) -> ElementTree.Element:
    try:
        root = ElementTree.fromstring(raw)
    except ElementTree.ParseError:
        raise refused("MalformedXML") from None
    if _name(root) != name:
        raise refused("MalformedXML")
    return root


def _name(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
