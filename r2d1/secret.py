"""Secret: a text that never shows itself by accident, and the masking of values for people."""

from __future__ import annotations

from typing import NoReturn

#: Shown in place of a value, or of its middle.
STARS = "****"

#: Shorter values are hidden whole; of longer ones the first and last ``SHOWN`` characters may be seen.
MASK_WHOLE_BELOW = 20
SHOWN = 4


def mask(value: str) -> str:
    """What people may see of a value: nothing, or the first and last four characters of one of 20 or more."""
    if not value:
        return ""
    if len(value) < MASK_WHOLE_BELOW:
        return STARS
    return f"{value[:SHOWN]}{STARS}{value[-SHOWN:]}"


class Secret:
    """A text that ``repr``, ``str``, ``format``, tracebacks and pickles never give away.

    ``reveal`` gives the text to the one place that sends it; ``masked`` gives what people may see.
    Secrets are immutable, compare by their text and may be hashed.
    """

    __slots__ = ("_text",)
    _text: str

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a Secret holds text, not {type(text).__name__}")
        object.__setattr__(self, "_text", text)

    def reveal(self) -> str:
        """The text itself; never log it, never put it into an error or an event."""
        return self._text

    def masked(self) -> str:
        """The text as ``mask`` shows it."""
        return mask(self._text)

    def __repr__(self) -> str:
        return f"Secret({STARS})"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Secret does not change")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Secret does not change")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Secret is not pickled: read the settings again in the other process (Settings.from_env)")
