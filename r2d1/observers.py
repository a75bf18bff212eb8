"""What to do with events: log lines, plain lines for containers, JSON lines for machines, a bar for a terminal."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from r2d1 import events, strictjson
from r2d1.events import Event, log

_LEVELS = {"info": 20, "warning": 30, "error": 40}
_LEVEL_OF: dict[type[Event], str] = {events.ShipFailed: "error", events.RowOwed: "warning"}
#: Transfers whose progress is kept at once; four checkpoints are shipped at a time.
_MOST_TRANSFERS = 64
_RETRY_LINE_EVERY_S = 1.0

Clock = Callable[[], float]


class ClosingObserver(Protocol):
    """An observer that has something to finish: a bar to wipe, counts to tell."""

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


def describe(event: Event) -> tuple[str, str] | None:
    """``(level, line)`` for events worth a line, None for the rest."""
    if isinstance(event, events.Notice):
        return event.level, event.text
    line = _line_of_ship(event) or _line_of_pull(event)
    return None if line is None else (_LEVEL_OF.get(type(event), "info"), line)


def _line_of_ship(event: Event) -> str | None:
    line = None
    match event:
        case events.WatchStarted(directory, job_id, backend, poll_every):
            line = f"watching {directory} for job {job_id} ({backend}, full scan every {poll_every:g} s)"
        case events.ShipStarted(_, name, epoch, files, total):
            line = f"{name}: shipping epoch {epoch}, {counted(files, 'file')}, {size(total)}"
        case events.Committed(_, name, epoch, prefix, total, _, seconds):
            line = f"{name}: epoch {epoch} is in the bucket at {prefix} ({size(total)} in {seconds:.1f} s)"
        case events.AlreadyThere(_, name, epoch):
            line = f"{name}: epoch {epoch} is in the bucket already, nothing sent"
        case events.ShipFailed(_, name, error, again):
            line = f"{name}: not shipped: {error} (tried again {again})"
        case events.RowOwed(_, name, error):
            line = f"{name}: its D1 row could not be written yet: {error}"
    return line


def _line_of_pull(event: Event) -> str | None:
    line = None
    match event:
        case events.Retried(_, _, attempt, delay, error):
            line = f"attempt {attempt} failed, trying again in {delay:.1f} s: {error}"
        case events.PullStarted(uri, name, files, total):
            line = f"{uri}: pulling {name}, {counted(files, 'file')}, {size(total)}"
        case events.PullFinished(_, name, directory, True):
            line = f"{name}: already on disk in {directory}"
        case events.PullFinished(_, name, directory, False, total, _, seconds):
            line = f"{name}: pulled to {directory} ({size(total)} in {seconds:.1f} s)"
    return line


def size(count: float) -> str:
    """Bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counted(count: int, noun: str) -> str:
    """``"1 file"``, ``"2 files"``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def to_log(event: Event) -> None:
    """Hand events to the logger ``r2d1``; what failed is a warning or an error there."""
    if (described := describe(event)) is not None:
        log.log(_LEVELS[described[0]], described[1])


@dataclasses.dataclass(slots=True)
class _Transfer:
    """How far one checkpoint (or prefix) is, in bytes."""

    total: int
    moved: int = 0


class _Transfers:
    """The transfers under way by name; bounded, as one that was superseded never says that it ended."""

    def __init__(self, ended: Callable[[str], None] | None = None) -> None:
        self._ended = ended
        self._by_name: OrderedDict[str, _Transfer] = OrderedDict()

    def note(self, event: Event) -> _Transfer | None:
        """Take what an event says of a transfer; returns the one whose bytes moved."""
        match event:
            case events.ShipStarted(_, name, _, _, total) | events.PullStarted(_, name, _, total):
                self._end(name)
                while len(self._by_name) >= _MOST_TRANSFERS:
                    self._end(next(iter(self._by_name)))
                self._by_name[name] = _Transfer(total)
            case events.BytesMoved(_, name, _, _, count) if (transfer := self._by_name.get(name)) is not None:
                transfer.moved += count
                return transfer
            case events.Committed(_, name) | events.AlreadyThere(_, name) | events.ShipFailed(_, name):
                self._end(name)
            case events.PullFinished(_, name):
                self._end(name)
        return None

    def _end(self, name: str) -> None:
        if self._by_name.pop(name, None) is not None and self._ended is not None:
            self._ended(name)

    def close(self) -> None:
        for name in list(self._by_name):
            self._end(name)


class PlainLines:
    """One line an event, and while bytes move one line every ``every_s`` seconds: readable in a container's log.

    Retries of a bad hour are counted rather than told one by one. ``quiet`` leaves warnings and errors.
    """

    def __init__(
        self, out: TextIO | None = None, *, every_s: float = 10.0, quiet: bool = False, clock: Clock = time.monotonic
    ) -> None:
        self._out = out or sys.stderr
        self._every_s, self._quiet, self._clock = every_s, quiet, clock
        self._transfers = _Transfers()
        self._moved = 0
        self._told_at = clock()
        self._retry_told_at = clock() - _RETRY_LINE_EVERY_S
        self._untold_retries = 0

    def __call__(self, event: Event) -> None:
        transfer = self._transfers.note(event)
        if isinstance(event, events.BytesMoved):
            self._progress(event, transfer)
        elif isinstance(event, events.Retried):
            self._retried(event)
        elif (described := describe(event)) is not None:
            self._print(*described)

    def close(self) -> None:
        """Nothing is kept back."""

    def _print(self, level: str, line: str) -> None:
        if not (self._quiet and level == "info"):
            print(f"[r2d1] {'' if level == 'info' else f'{level}: '}{line}", file=self._out, flush=True)

    def _progress(self, event: events.BytesMoved, transfer: _Transfer | None) -> None:
        self._moved += event.count
        now = self._clock()
        passed = now - self._told_at
        if passed < self._every_s:
            return
        rate = f"{size(self._moved / max(passed, 0.001))}/s"
        self._told_at, self._moved = now, 0
        done = ""
        if transfer is not None and transfer.total:
            share = 100 * transfer.moved / transfer.total
            done = f"{size(transfer.moved)} of {size(transfer.total)} ({share:.0f} %), "
        self._print("info", f"{event.name}: {done}{rate}")

    def _retried(self, event: events.Retried) -> None:
        now = self._clock()
        if now - self._retry_told_at < _RETRY_LINE_EVERY_S:
            self._untold_retries += 1
            return
        described = describe(event)
        more = f" (and {self._untold_retries} more since the last such line)" if self._untold_retries else ""
        self._retry_told_at, self._untold_retries = now, 0
        assert described is not None
        self._print(described[0], described[1] + more)


class JsonLines:
    """One JSON object an event: ``{"event": "Committed", "at": <seconds since 1970>, …}``.

    Bytes that move are summed: one ``BytesMoved`` a transfer and direction every ``every_s`` seconds, and the rest
    before the event that ends it. ``quiet`` leaves warnings and errors.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        *,
        every_s: float = 1.0,
        quiet: bool = False,
        clock: Clock = time.monotonic,
        wall_clock: Clock = time.time,
    ) -> None:
        self._out = out or sys.stderr
        self._every_s, self._quiet = every_s, quiet
        self._clock, self._wall_clock = clock, wall_clock
        self._kept: dict[tuple[str, str, str], int] = {}
        self._told_at = clock()

    def __call__(self, event: Event) -> None:
        if isinstance(event, events.BytesMoved):
            where = (event.job_id, event.name, event.direction)
            self._kept[where] = self._kept.get(where, 0) + event.count
            if self._clock() - self._told_at >= self._every_s:
                self._tell_moved()
            return
        self._tell_moved()
        described = describe(event)
        if not self._quiet or (described is not None and described[0] != "info"):
            self._print(type(event).__name__, dataclasses.asdict(event))

    def close(self) -> None:
        """Tell the bytes that were counted and not yet told."""
        self._tell_moved()

    def _tell_moved(self) -> None:
        kept, self._kept, self._told_at = self._kept, {}, self._clock()
        for (job_id, name, direction), count in kept.items():
            if not self._quiet:
                fields = {"job_id": job_id, "name": name, "direction": direction, "count": count}
                self._print("BytesMoved", fields)

    def _print(self, event: str, fields: dict[str, Any]) -> None:
        line = {"event": event, "at": round(self._wall_clock(), 3), **strictjson.clean(fields)}
        print(json.dumps(line), file=self._out, flush=True)


class Bar:
    """A progress bar a checkpoint on a terminal; other events appear as lines above it."""

    def __init__(self, out: TextIO | None = None) -> None:
        from tqdm import tqdm

        self._tqdm = tqdm
        self._out = out or sys.stderr
        self._bars: dict[str, tqdm[Any]] = {}
        self._transfers = _Transfers(ended=self._wipe)

    def __call__(self, event: Event) -> None:
        self._transfers.note(event)
        match event:
            case events.ShipStarted(_, name, _, _, total) | events.PullStarted(_, name, _, total):
                self._bars[name] = self._tqdm(
                    total=total, desc=name, unit="B", unit_scale=True, unit_divisor=1024, file=self._out, leave=False
                )
            case events.BytesMoved(_, name, _, _, count) if name in self._bars:
                self._bars[name].update(count)
            case _ if (described := describe(event)) is not None:
                level, line = described
                self._tqdm.write(f"[r2d1] {'' if level == 'info' else f'{level}: '}{line}", file=self._out)

    def close(self) -> None:
        """Wipe the bars that still stand."""
        self._transfers.close()

    def _wipe(self, name: str) -> None:
        self._bars.pop(name).close()
