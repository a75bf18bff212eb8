"""What a check found, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a check ended. ``NOTE`` tells something that is no failure, ``SKIPPED`` why nothing was checked."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a diagnosis. ``hint`` says what to do; ``paste`` is text to be put somewhere as it is."""

    check: str
    status: Status
    text: str
    hint: str = ""
    paste: str = ""

    @property
    def line(self) -> str:
        """The finding in one line."""
        return f"{self.status:<8}{self.check}: {self.text}" + (f". {self.hint}" if self.hint else "")


def failed(check: str, text: str, hint: str = "") -> Finding:
    """A failed check; the hint is not said twice when the text ends with it."""
    return Finding(check, Status.FAILED, text.removesuffix(f". {hint}") if hint else text, hint)
