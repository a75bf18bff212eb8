"""What a verification found, as values and in words."""

from __future__ import annotations

from dataclasses import dataclass, field


def counted(count: int, noun: str) -> str:
    """``"1 shard"``, ``"2 shards"``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and the file it is wrong in (a name within the set's directory)."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was found, and what was and was not read. ``mode`` is ``"full"`` or ``"sample"``.

    ``unlisted`` are files in the directory that belong to no shard set: not read, and no problem.
    """

    directory: str
    mode: str
    problems: tuple[Problem, ...]
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    bytes_read: int
    bytes_total: int
    units_read: int
    units_total: int
    unlisted: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing that was read is wrong; in sample mode this says nothing of the rest."""
        return not self.problems

    def lines(self) -> list[str]:
        """The report in words, one line a fact; problems first."""
        found = [str(problem) for problem in self.problems]
        verdict = "no error found" if self.ok else counted(len(self.problems), "error")
        found.append(
            f"{self.mode} verification of {self.directory}: {verdict};"
            f" read {self.units_read} of {self.units_total} units, {self.bytes_read} of {self.bytes_total} bytes"
        )
        found += [f"checked: {text}" for text in self.checked]
        found += [f"not checked: {text}" for text in self.not_checked]
        found += [f"not part of the set, not read: {name}" for name in self.unlisted]
        return found


@dataclass(slots=True)
class Findings:
    """What a verification gathers on its way to the report."""

    problems: list[Problem] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    bytes_read: int = 0
    units_read: int = 0

    def note(self, file: str, text: str) -> None:
        """Record a problem."""
        self.problems.append(Problem(file, text))
