"""JSON documents read strictly: every malformed field is gathered before one error names them all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from r2d1.errors import FormatError

#: Beyond this an integer is not exact in every JSON reader (RFC 8259 §6, RFC 7493 §2.2).
MAX_INTEGER = 2**53 - 1

#: How many problems an error text names, and how long each may be: a document can hold any number and any text.
_TOLD = 20
_LONGEST = 500

_HEX = frozenset("0123456789abcdef")


class DocumentError(FormatError):
    """A document has malformed fields; ``problems`` names each, one text a field. As a text, the first ones."""

    def __init__(self, document: str, problems: Iterable[str]) -> None:
        self.document = document
        self.problems = tuple(problems)
        super().__init__(document, self.problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.document, self.problems)

    def __str__(self) -> str:
        more = len(self.problems) - _TOLD
        told = "; ".join(map(_harmless, self.problems[:_TOLD])) + (f"; and {more} more" if more > 0 else "")
        return f"{self.document}: {told}"


def _harmless(text: str) -> str:
    """A problem as it may be printed: what has no shape of its own is escaped, what is very long is cut."""
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {shown(name)} occurs twice in one object")
        found[name] = value
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def load_object(data: bytes | str, document: str) -> dict[str, object]:
    """Parse JSON, text or UTF-8, that must be one object, with no key twice and no NaN.

    ``DocumentError`` names ``document``.
    """
    try:
        value = json.loads(
            data if isinstance(data, str) else data.decode(),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as exc:
        raise DocumentError(document, [f"is not readable as JSON: {exc}"]) from exc
    if not isinstance(value, dict):
        raise DocumentError(document, ["is not a JSON object"])
    return value


def is_hex(value: object, digits: int) -> bool:
    """Whether ``value`` is a text of exactly ``digits`` lower-case hexadecimal digits."""
    return isinstance(value, str) and len(value) == digits and _HEX.issuperset(value)


def shown(value: object) -> str:
    """A value for an error text: escaped, and cut when long."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:76]}..."


def _name(text: str) -> str:
    """A field's name in an error text: as it stands when that is harmless."""
    return text if len(text) <= 80 and text.isascii() and text.isprintable() else shown(text)


class Fields:
    """One JSON object under examination; its readers note what is wrong and go on with a stand-in.

    ``finish`` raises what they noted. Children share the list of their parent.
    """

    def __init__(self, document: str, value: Mapping[str, object], *, parent: Fields | None = None) -> None:
        self.document = document
        self.value = value
        self.path = ""
        self.problems: list[str] = [] if parent is None else parent.problems

    def note(self, name: str, text: str) -> None:
        """Record a problem of the field ``name``."""
        self.problems.append(f"{self.path}{_name(name)} {text}")

    def finish(self) -> None:
        """Raise ``DocumentError`` when anything was noted."""
        if self.problems:
            raise DocumentError(self.document, self.problems)

    def only(self, names: Iterable[str]) -> None:
        """Note every field that is not among ``names``."""
        for name in sorted(set(self.value) - set(names)):
            self.note(shown(name), "is not a field of this document")

    def raw(self, name: str) -> object:
        """The value as it stands; noted when the field is missing."""
        if name not in self.value:
            self.note(name, "is missing")
        return self.value.get(name)

    def integer(self, name: str, *, least: int = 0, most: int = MAX_INTEGER) -> int:
        """An integer from ``least`` to ``most``; a bool or a float is none."""
        value = self.raw(name)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        self._refuse(name, value, f"an integer from {least} to {most}")
        return least

    def text(self, name: str, *, empty: bool = False) -> str:
        """A text, not empty unless ``empty``."""
        value = self.raw(name)
        if isinstance(value, str) and (value or empty):
            return value
        self._refuse(name, value, "a text" if empty else "a text that is not empty")
        return ""

    def optional_text(self, name: str) -> str | None:
        """A text, or ``None`` when the field is null or missing."""
        return None if self.value.get(name) is None else self.text(name)

    def hexadecimal(self, name: str, digits: int = 64) -> str:
        """Exactly ``digits`` lower-case hexadecimal digits."""
        value = self.raw(name)
        if isinstance(value, str) and is_hex(value, digits):
            return value
        self._refuse(name, value, f"{digits} lower-case hexadecimal digits")
        return "0" * digits

    def items(self, name: str) -> Sequence[object]:
        """A JSON array."""
        value = self.raw(name)
        if isinstance(value, list):
            return value
        self._refuse(name, value, "an array")
        return []

    def texts(self, name: str, *, missing: bool = False) -> tuple[str, ...]:
        """An array of texts; ``missing`` lets an absent or null field stand for an empty one."""
        if missing and self.value.get(name) is None:
            return ()
        values = self.items(name)
        for at, value in enumerate(values):
            if not isinstance(value, str):
                self.note(f"{name}[{at}]", f"is {shown(value)}, not a text")
        return tuple(value for value in values if isinstance(value, str))

    def digests(self, name: str) -> tuple[str, ...]:
        """An array of SHA-256 hashes in hexadecimal."""
        values = self.items(name)
        for at, value in enumerate(values):
            if not is_hex(value, 64):
                self.note(f"{name}[{at}]", f"is {shown(value)}, not 64 lower-case hexadecimal digits")
        return tuple(value if isinstance(value, str) else "" for value in values)

    def child(self, name: str) -> Fields:
        """The object under ``name``, examined on its own with problems noted here.

        When it is none, that is noted, and nothing of what it lacks.
        """
        value = self.raw(name)
        if not isinstance(value, dict):
            self._refuse(name, value, "an object")
            return Fields(self.document, {})
        found = Fields(self.document, value, parent=self)
        found.path = f"{self.path}{_name(name)}."
        return found

    def _refuse(self, name: str, value: object, wanted: str) -> None:
        if name in self.value:
            self.note(name, f"is {shown(value)}, not {wanted}")
