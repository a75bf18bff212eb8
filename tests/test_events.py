"""The teller: one observer, whose own failures never reach a transfer."""

from __future__ import annotations

import logging

import pytest

from r2d1 import events
from r2d1.events import Notice, RowWritten, Teller

EVENT = RowWritten("job", "chk_1", 1)


def test_every_event_reaches_the_observer():
    """Events come in order, as they were told."""
    seen = []
    tell = Teller(seen.append)
    tell(EVENT)
    tell.notice("info", "text")
    assert seen == [EVENT, Notice("info", "text")]


def test_nobody_needs_to_listen():
    """Without an observer events go nowhere."""
    Teller(None)(EVENT)


def test_an_observer_that_fails_is_reported_once(caplog):
    """A broken progress bar does not stop an upload, and does not fill the log."""
    calls = []

    def broken(event):
        calls.append(event)
        raise ValueError("broken bar")

    tell = Teller(broken)
    with caplog.at_level(logging.ERROR, logger="r2d1"):
        for _ in range(3):
            tell(EVENT)
    assert len(calls) == 3
    (record,) = caplog.records
    assert "RowWritten" in record.getMessage()
    assert "broken bar" in record.exc_text


def test_being_stopped_is_no_failure_of_the_observer():
    """An interrupt in an observer is the user's."""

    def interrupted(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Teller(interrupted)(EVENT)


def test_a_notice_that_is_told_once():
    """The same cause is told the first time only; others are told, and what has no name always is."""
    seen = []
    tell = Teller(seen.append)
    for text, once in [("a", "x"), ("b", "x"), ("c", "y"), ("d", None), ("d", None)]:
        tell.notice("warning", text, once=once)
    assert [event.text for event in seen] == ["a", "c", "d", "d"]


def test_what_is_remembered_is_bounded():
    """A courier that runs for years does not grow by its notices."""
    tell = Teller(None)
    for n in range(10_100):
        tell.notice("info", "x", once=str(n))
    assert len(tell._said) == 10_000


def test_events_are_frozen():
    """What one observer gets, another one gets."""
    with pytest.raises(AttributeError):
        EVENT.name = "other"
    assert all(issubclass(kind, events.Event) for kind in (Notice, RowWritten))
