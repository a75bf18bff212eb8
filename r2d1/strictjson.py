"""JSON as r2d1 writes it: strict, canonical, and lossless for whatever a trainer's sidecar held."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from r2d1.errors import FormatError

#: Python refuses to convert longer decimal integers; such a number is kept as text.
_LONGEST_INT = 4300
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse(raw: bytes) -> Any:
    """Read JSON leniently (NaN, Infinity and a byte order mark are accepted); ``FormatError`` if it is none."""
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_int=_parse_int)
    except (ValueError, RecursionError) as exc:
        raise FormatError(f"not JSON: {exc}") from exc


def _parse_int(text: str) -> int | str:
    return int(text) if len(text) <= _LONGEST_INT else text


def parse_object(raw: bytes) -> dict[str, Any]:
    """Read a JSON object; ``FormatError`` if it is anything else."""
    value = parse(raw)
    if not isinstance(value, dict):
        raise FormatError(f"expected a JSON object, found {type(value).__name__}")
    return value


def clean(value: Any, at: str = "", lost: list[str] | None = None) -> Any:
    """``value`` without what JSON does not have: ``null`` for NaN and infinities, U+FFFD for lone surrogates.

    The dotted names of what became ``null`` are added to ``lost``.
    """
    if isinstance(value, float) and not math.isfinite(value):
        if lost is not None:
            lost.append(at or "(the value itself)")
        return None
    if isinstance(value, str):
        return _clean_text(value)
    if isinstance(value, dict):
        return {_clean_text(k): clean(v, f"{at}.{k}" if at else str(k), lost) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(item, f"{at}[{n}]", lost) for n, item in enumerate(value)]
    return value


def _clean_text(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def dump(value: Any) -> str:
    """Canonical text of a clean value: sorted keys, no spaces, UTF-8 characters as they are."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def encode(value: Any) -> bytes:
    """``dump`` as UTF-8 bytes."""
    return dump(value).encode()
