"""Observers: lines that people can read, lines that machines can read, and a bar that cleans up after itself."""

from __future__ import annotations

import io
import json

import pytest

from r2d1 import events, observers
from r2d1.events import BytesMoved, Committed, Notice, PullFinished, PullStarted, Retried, ShipFailed, ShipStarted
from r2d1.observers import Bar, JsonLines, PlainLines, counted, describe, size

STARTED = ShipStarted("job", "chk_1", 1, 2, 4096)
MOVED = BytesMoved("job", "chk_1", "a.bin", "up", 1024)
DONE = Committed("job", "chk_1", 1, "jobs/job/chk_1", 4096, 4096, 0.5)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def every_event() -> list[events.Event]:
    """One event of each kind there is."""
    made = {"str": "text", "int": 3, "float": 1.5, "bool": True}
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]
    filled = [kind(**{name: made[str(t)] for name, t in kind.__annotations__.items()}) for kind in kinds]
    return [Notice("warning", "text") if isinstance(event, Notice) else event for event in filled]


@pytest.mark.parametrize("event", every_event(), ids=lambda event: type(event).__name__)
def test_every_event_can_be_told_by_every_observer(event):
    """No kind of event makes an observer fail, and what it prints is whole lines."""
    for make in (PlainLines, JsonLines, Bar):
        out = io.StringIO()
        observer = make(out)
        observer(event)
        observer.close()
        if make is not Bar:
            assert out.getvalue() == "" or out.getvalue().endswith("\n")


def test_failures_are_errors_and_owed_rows_warnings():
    """The level goes with the event."""
    assert describe(ShipFailed("job", "chk_1", "why", "later"))[0] == "error"
    assert describe(events.RowOwed("job", "chk_1", "why"))[0] == "warning"
    assert describe(STARTED)[0] == "info"
    assert describe(MOVED) is None


def test_plain_progress_is_slow():
    """One line in ten seconds, with how far it is and how fast."""
    out, clock = io.StringIO(), Clock()
    tell = PlainLines(out, clock=clock)
    tell(STARTED)
    for _ in range(3):
        tell(MOVED)
    clock.now += 10
    tell(MOVED)
    tell(DONE)
    assert out.getvalue().splitlines() == [
        "[r2d1] chk_1: shipping epoch 1, 2 files, 4.0 KiB",
        "[r2d1] chk_1: 4.0 KiB of 4.0 KiB (100 %), 409.6 B/s".replace("409.6 B", "410 B"),
        "[r2d1] chk_1: epoch 1 is in the bucket at jobs/job/chk_1 (4.0 KiB in 0.5 s)",
    ]


def test_many_retries_are_counted():
    """Within a second one line is told, the next one says how many were not."""
    out, clock = io.StringIO(), Clock()
    tell = PlainLines(out, clock=clock)
    for _ in range(5):
        tell(Retried("GetObject", "key", 1, 0.5, "503"))
    clock.now += 1
    tell(Retried("GetObject", "key", 2, 0.5, "503"))
    first, second = out.getvalue().splitlines()
    assert first == "[r2d1] attempt 1 failed, trying again in 0.5 s: 503"
    assert second.endswith("(and 4 more since the last such line)")


def test_quiet_leaves_warnings_and_errors():
    """Plain and JSON alike."""
    for make in (PlainLines, JsonLines):
        out = io.StringIO()
        tell = make(out, quiet=True)
        for event in (STARTED, MOVED, DONE, Notice("info", "a"), Notice("warning", "b")):
            tell(event)
        tell(ShipFailed("job", "chk_1", "why", "later"))
        tell.close()
        assert len(out.getvalue().splitlines()) == 2


def test_json_sums_the_bytes_that_move():
    """One line a second and transfer; what was counted is told before the end, and nothing is lost."""
    out, clock = io.StringIO(), Clock()
    tell = JsonLines(out, clock=clock, wall_clock=lambda: 1.23456)
    tell(STARTED)
    for _ in range(3):
        tell(MOVED)
    clock.now += 1
    tell(MOVED)
    tell(MOVED)
    tell(DONE)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["ShipStarted", "BytesMoved", "BytesMoved", "Committed"]
    assert [line["count"] for line in lines if line["event"] == "BytesMoved"] == [4096, 1024]
    assert {line["at"] for line in lines} == {1.235}
    assert lines[1] == {
        "event": "BytesMoved", "at": 1.235, "job_id": "job", "name": "chk_1", "direction": "up", "count": 4096
    }  # fmt: skip


def test_json_is_ascii_and_has_no_lone_surrogates():
    """A path that is not UTF-8 does not break the reader."""
    out = io.StringIO()
    JsonLines(out)(Notice("info", "w\udcff ü"))
    assert out.getvalue().isascii()
    assert json.loads(out.getvalue())["text"] == "w\ufffd ü"


def test_the_bar_is_wiped():
    """Whether a transfer ends, fails or is given up, no bar stands afterwards."""
    for last in (DONE, ShipFailed("job", "chk_1", "why", "later"), None):
        out = io.StringIO()
        tell = Bar(out)
        tell(STARTED)
        tell(MOVED)
        if last:
            tell(last)
        tell.close()
        assert "chk_1:" in out.getvalue()
        assert out.getvalue().rstrip("\n").endswith(("\r", "s)", "later)"))
        assert tell._bars == {}


def test_a_transfer_that_starts_again_has_one_bar():
    """A checkpoint that was superseded starts anew under its name."""
    tell = Bar(io.StringIO())
    tell(STARTED)
    tell(STARTED)
    assert len(tell._bars) == 1
    tell.close()


def test_transfers_that_never_end_are_bounded():
    """Names are forgotten at some time, the newest stay."""
    tell = Bar(io.StringIO())
    for number in range(200):
        tell(PullStarted("uri", f"chk_{number}", 1, 10))
    assert len(tell._bars) == 64
    assert "chk_199" in tell._bars
    tell(PullFinished("uri", "chk_199", "dir", False, 10, 10, 1.0))
    assert "chk_199" not in tell._bars
    tell.close()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 2**30, "5.0 GiB"),
        (3 * 2**40, "3.0 TiB"),
        (2**60, "1048576.0 TiB"),
    ],
)
def test_sizes(count, text):
    """Bytes for people."""
    assert size(count) == text


def test_counts():
    """One file, two files."""
    assert (counted(1, "file"), counted(2, "file"), counted(0, "file")) == ("1 file", "2 files", "0 files")


def test_the_log_gets_what_is_worth_a_line(caplog):
    """Levels are the logger's."""
    with caplog.at_level("DEBUG", logger="r2d1"):
        for event in (STARTED, MOVED, ShipFailed("job", "chk_1", "why", "later")):
            observers.to_log(event)
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
