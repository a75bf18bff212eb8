"""How a command ends: its result on stdout, one last line that says done or failed, and the exit code."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TextIO

import click

from r2d1 import errors, strictjson


class Exit(IntEnum):
    """The exit codes, which scripts rely on."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOTHING = 3
    STOPPED = 4
    INTERRUPTED = 130


_WORDS = {Exit.DONE: "done", Exit.STOPPED: "stopped", Exit.INTERRUPTED: "interrupted"}
#: The hint for work that was left: every command can be run again.
GO_ON = "Run the same command again: it goes on where it stopped"
_USAGE_ERRORS = (errors.ConfigError, errors.UriError, errors.NameRefused)

_SECRETS = "`r2d1 secrets`"
_DISK = "Look at the disk that holds the journal; it may be deleted, which only costs time"

#: One hint a kind of error, for those that carry none of their own; the first kind that fits counts.
_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.ConfigError, f"{_SECRETS} shows which settings were found and where"),
    (errors.UriError, "The forms are r2://jobs/<id>/latest, r2://jobs/<id>/<name> and r2://<any/prefix>"),
    (errors.NameRefused, "Choose a name that the rules allow"),
    (errors.LockHeld, "Stop the other courier, or leave this directory to it"),
    (errors.FlushTimeout, GO_ON),
    (errors.FlushError, "Mend what is named and run the command again; what is in the bucket is not sent again"),
    (errors.CheckpointError, "Mend the folder or its sidecar and run the command again"),
    (errors.MissingObjects, "Pull another checkpoint by name, or ship this one again"),
    (errors.IntegrityError, "`r2d1 rm` it and ship it again, or pull another one by name"),
    (errors.CheckpointGone, "Pull the one that is newest now"),
    (errors.NoSpace, "Free some space, or pull to another disk"),
    (errors.UnsafeDestination, "Look at what lies in the destination, or choose another --dest"),
    (errors.FormatError, "A newer r2d1 may have written it: upgrade, or look at the key that is named"),
    (errors.RemoteError, "Run the command again; what was done is not done twice"),
    (errors.R2D1Error, "Mend what is named and run the command again"),
    (OSError, "Mend what the operating system refused and run the command again"),
)
#: The same for datasets, whose errors say themselves what to do about what was given.
_DATASET_HINTS: tuple[tuple[type[BaseException], str], ...] = (
    (errors.NoSpace, f"Free some space. {GO_ON}"),
    (errors.ConfigError, ""),
    (errors.FormatError, "Mend what is named and run the command again"),
    (errors.RemoteError, "Run the command again; what was done is not done twice"),
    (errors.R2D1Error, ""),
    (OSError, "Mend what the operating system refused and run the command again"),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a command has to say at its end.

    ``lines`` are its result for people, ``fields`` the same for machines, ``summary`` what was done in one line.
    Where it was not done, ``why`` and ``hint`` make the last line and ``details`` stand before it.
    """

    lines: Sequence[str] = ()
    fields: Mapping[str, object] = field(default_factory=dict)
    summary: str = ""
    code: Exit = Exit.DONE
    details: Sequence[str] = ()
    why: str = ""
    hint: str = ""


def of_error(error: Exception, *, verbose: bool = False, command: str = "") -> Result:
    """The result of a ``command`` that failed. A traceback is printed with ``verbose``, or when the error is a bug."""
    hints = _DATASET_HINTS if command.startswith("r2d1 datasets ") else _HINTS
    is_known = isinstance(error, errors.R2D1Error | OSError) or type(error).__module__ == "sqlite3"
    if verbose or not is_known:
        traceback.print_exception(error)
    text = str(error) or type(error).__name__
    own = getattr(error, "hint", "") if isinstance(error, errors.R2D1Error) else ""
    hint = own or next((hint for kind, hint in hints if isinstance(error, kind)), _DISK)
    first, *rest = text.removesuffix(f". {hint}").splitlines()  # what the last line would say once more
    if rest and isinstance(error, errors.ConfigError) and _SECRETS in rest[-1]:
        said = rest.pop()
        hint = said[0].upper() + said[1:]  # the error ends with what the last line would say once more
    why = f"{first.rstrip(' :')} (listed above)" if rest else first
    if not is_known:
        why, hint = f"unexpected {type(error).__name__}: {why}", "This is a bug in r2d1: report it with the traceback"
    return Result(
        code=Exit.USAGE if isinstance(error, _USAGE_ERRORS) else Exit.FAILED,
        details=[first, *rest] if rest else [],
        why=why,
        hint=hint,
        fields={"error": text},
    )


def of_signal(number: int) -> Result:
    """The result of a command that a signal stopped at once."""
    name = signal.Signals(number).name
    code = Exit.INTERRUPTED if number == signal.SIGINT else Exit.STOPPED
    return Result(code=code, why=f"stopped by {name} before the work was done", hint=GO_ON)


def command_of(ctx: click.Context | None) -> str:
    """``"r2d1 watch"``, however the program was called."""
    names: list[str] = []
    while ctx is not None and ctx.parent is not None:
        names.insert(0, ctx.command.name or "")
        ctx = ctx.parent
    return " ".join(["r2d1", *names])


def conclude(command: str, result: Result, *, as_json: bool = False, quiet: bool = False) -> Exit:
    """Print a result and return its exit code. With ``as_json`` the last line of stdout is one JSON object."""
    if as_json:
        _print([json.dumps(_for_machines(command, result))], sys.stdout)
        return result.code
    _print(result.lines, sys.stdout)
    _print(result.details, sys.stderr)
    if (last := _last_line(command, result)) and not (quiet and result.code is Exit.DONE):
        _print([last], sys.stderr)
    return result.code


def _for_machines(command: str, result: Result) -> dict[str, object]:
    said: dict[str, object] = {
        "status": "done" if result.code is Exit.DONE else "failed",
        "exit_code": int(result.code),
        "command": command.removeprefix("r2d1").strip(),
    }
    if result.code is not Exit.DONE:
        said |= {"error": result.why, "hint": result.hint}
    cleaned = strictjson.clean(dict(result.fields))
    assert isinstance(cleaned, dict)
    return said | cleaned


def _last_line(command: str, result: Result) -> str:
    word = _WORDS.get(result.code, "failed")
    if result.code is Exit.DONE:
        return f"{command}: {word}: {result.summary}" if result.summary else ""
    why = result.why.rstrip(".")
    return f"{command}: {word}: {why}" + (f"{'' if why.endswith('?') else '.'} {result.hint}" if result.hint else "")


def _print(lines: Sequence[str], out: TextIO) -> None:
    """Write lines whatever names they hold: what UTF-8 cannot hold is shown escaped."""
    for line in lines:
        print(line.encode("utf-8", "backslashreplace").decode(), file=out)
    out.flush()
