"""Progress of long work on stderr: a bar on a terminal, slow plain lines elsewhere, JSON lines for machines."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from r2d1.cli.common import Common
from r2d1.observers import size

if TYPE_CHECKING:
    from r2d1.datasets.workers import OnProgress, Progress

_LINE_EVERY_S = 10.0
_JSON_EVERY_S = 1.0


@contextmanager
def progress_of(common: Common) -> Iterator[OnProgress]:
    """What to call with each ``Progress``, from any thread."""
    if common.quiet:
        yield _nothing
    elif common.as_json or not sys.stderr.isatty():
        yield _Lines(as_json=common.as_json)
    else:
        bar = _Bar()
        try:
            yield bar
        finally:
            bar.close()


def _nothing(progress: Progress) -> None:
    """For those who want to read warnings and errors only."""


class _Lines:
    """At most one line in a while."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._every_s = _JSON_EVERY_S if as_json else _LINE_EVERY_S
        self._told_at = time.monotonic()
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        with self._lock:
            if now - self._told_at < self._every_s:
                return
            self._told_at = now
        print(self._line(progress), file=sys.stderr, flush=True)

    def _line(self, progress: Progress) -> str:
        if self._as_json:
            said = {"stage": progress.stage, "done": progress.done, "total": progress.total, "unit": progress.unit}
            return json.dumps({"event": "Progress", "at": round(time.time(), 3), **said})
        share = f" ({100 * progress.done / progress.total:.0f} %)" if progress.total else ""
        done, total = _counted(progress.done, progress), _counted(progress.total, progress)
        return f"[r2d1] {progress.stage}: {done} of {total}{share}"


def _counted(count: int, progress: Progress) -> str:
    return size(count) if progress.unit == "bytes" else f"{count} {progress.unit}"


class _Bar:
    """One bar, which begins anew with each stage."""

    def __init__(self) -> None:
        from tqdm import tqdm

        self._tqdm = tqdm
        self._stage = ""
        self._bar: Any = None
        self._lock = threading.Lock()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            if self._bar is None or progress.stage != self._stage:
                self._begin(progress)
            self._bar.total = progress.total
            self._bar.update(progress.done - self._bar.n)

    def _begin(self, progress: Progress) -> None:
        self._wipe()
        self._stage = progress.stage
        kind = {"unit": "B", "unit_scale": True, "unit_divisor": 1024} if progress.unit == "bytes" else {"unit": ""}
        self._bar = self._tqdm(total=progress.total, desc=progress.stage, file=sys.stderr, leave=False, **kind)

    def _wipe(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def close(self) -> None:
        """Wipe what still stands."""
        with self._lock:
            self._wipe()
