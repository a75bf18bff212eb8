"""JSON as r2d1 writes it: strict, canonical, and lossless for whatever a trainer's sidecar held."""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from r2d1.errors import FormatError

#: Deeper documents are refused, so that no walk over one can exhaust the stack.
MAX_DEPTH = 200
#: Python can be set to refuse longer decimal integers (never shorter ones); such a number is kept as its digits.
_LONGEST_INT = 640
_INT_TOP = 10**_LONGEST_INT
_PIECE = 500
_SURROGATE = re.compile("[\ud800-\udfff]")


class Digits(str):
    """An integer too long for Python's own conversion, as its decimal text; ``clean`` makes a number of it again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Literal:
    """Text that is JSON already."""

    text: str


def parse(raw: bytes) -> Any:
    """Read JSON leniently (NaN, Infinity and a byte order mark are accepted); ``FormatError`` if it is none."""
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_int=_parse_int)
    except (ValueError, RecursionError) as exc:
        raise FormatError(f"not JSON: {exc}") from exc
    if _is_deep(value):
        raise FormatError(f"JSON nested more than {MAX_DEPTH} levels deep")
    return value


def _parse_int(text: str) -> int | Digits:
    return int(text) if len(text) <= _LONGEST_INT else Digits(text)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for outer in level for item in _items(outer) if isinstance(item, (dict, list))]
        if not level:
            return False
    return True


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def parse_object(raw: bytes) -> dict[str, Any]:
    """Read a JSON object; ``FormatError`` if it is anything else."""
    value = parse(raw)
    if not isinstance(value, dict):
        raise FormatError(f"expected a JSON object, found {type(value).__name__}")
    return value


def as_finite(value: object) -> float | None:
    """A JSON number as a float; None for anything else, and for what no float can hold."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def clean(value: Any, *, lost: list[str] | None = None, other: Callable[[Any], Any] | None = None) -> Any:
    """``value`` ready for ``dump``: ``null`` for NaN and infinities, U+FFFD for lone surrogates, integers exact.

    The dotted names of what became ``null`` are added to ``lost``. ``other`` turns objects that JSON has no form
    for into ones it has. ``FormatError`` when the value is nested too deep.
    """
    try:
        return _clean(value, "", [] if lost is None else lost, other)
    except RecursionError as exc:
        raise FormatError(f"nested more than {MAX_DEPTH} levels deep") from exc


def _clean(value: Any, at: str, lost: list[str], other: Callable[[Any], Any] | None) -> Any:
    if isinstance(value, dict):
        named = {_clean_text(_name(key)): item for key, item in value.items()}
        return {key: _clean(item, f"{at}.{key}" if at else key, lost, other) for key, item in named.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item, f"{at}[{n}]", lost, other) for n, item in enumerate(value)]
    if isinstance(value, str):
        return _Literal(str(value)) if isinstance(value, Digits) else _clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(at or "(the value itself)")
        return None
    if isinstance(value, int) and not -_INT_TOP < value < _INT_TOP:
        return _Literal(_digits(value))
    is_plain = value is None or isinstance(value, (bool, int, float, _Literal))
    return value if is_plain or other is None else _clean(other(value), at, lost, other)


def _name(key: object) -> str:
    """A mapping's key as ``json`` names it."""
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return _digits(key)
    return json.dumps(key) if key is None or isinstance(key, (bool, float)) else str(key)


def _clean_text(text: str) -> str:
    return _SURROGATE.sub("\ufffd", text)


def _digits(value: int) -> str:
    """The decimal digits of an integer of any size, converted in pieces short enough for Python."""
    left, pieces = abs(value), list[str]()
    while left:
        left, piece = divmod(left, 10**_PIECE)
        pieces.append(f"{piece:0{_PIECE}d}")
    return ("-" if value < 0 else "") + ("".join(reversed(pieces)).lstrip("0") or "0")


def dump(value: Any, *, is_pretty: bool = False) -> str:
    """Canonical text of a clean value: sorted keys, no spaces, UTF-8 characters as they are.

    ``is_pretty`` is for files that people read: indented, keys in the order given. ``FormatError`` when the
    value is nested too deep.
    """
    literals: list[str] = []
    mark = secrets.token_hex(16)

    def stand_in(item: object) -> str:
        if not isinstance(item, _Literal):
            raise TypeError(f"{type(item).__name__} is not JSON")
        literals.append(item.text)
        return f"{mark}{len(literals) - 1}"

    style: dict[str, Any] = {"indent": 2} if is_pretty else {"sort_keys": True, "separators": (",", ":")}
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=stand_in, **style)
    except RecursionError as exc:
        raise FormatError(f"nested more than {MAX_DEPTH} levels deep") from exc
    return re.sub(f'"{mark}([0-9]+)"', lambda found: literals[int(found[1])], text) if literals else text


def encode(value: Any) -> bytes:
    """``dump`` as UTF-8 bytes."""
    return dump(value).encode()
