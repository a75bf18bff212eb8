"""The canonical form of JSON (RFC 8785), which is what gets hashed and signed."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

from r2d1.datasets.fields import DocumentError


def canonical(value: Any, document: str) -> bytes:
    """The RFC 8785 form of a JSON value; ``DocumentError`` naming ``document`` for what has none."""
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeError, RecursionError) as exc:
        raise DocumentError(document, [f"has no canonical form (RFC 8785): {exc}"]) from exc


def canonical_sha256(value: Any, document: str) -> str:
    """SHA-256 of the canonical form, in hexadecimal."""
    return hashlib.sha256(canonical(value, document)).hexdigest()
