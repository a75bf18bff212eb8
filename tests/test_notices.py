"""What the settings have to say: each thing once, and to a blocking caller's log once a process."""

from __future__ import annotations

import logging
import random

import pytest

from r2d1 import Courier, Fetcher, Settings, remote, sync
from r2d1.events import Event, Notice, Teller
from r2d1.testing import S3Double

HALF = {"R2D1_API_TOKEN": "token-0123456789-abcdef"}


def settings_of(s3: S3Double, more: dict[str, str]) -> Settings:
    return Settings.from_env(environ={**s3.env(), **more})


@pytest.mark.parametrize(("given", "told"), [({}, ("info", "R2-only mode")), (HALF, ("warning", "D1 is not used"))])
async def test_that_there_is_no_d1_is_said_once(s3, given, told):
    """With half of what it needs in the words of the settings, which name what is missing."""
    events: list[Event] = []
    async with remote.opened(settings_of(s3, given), tell=Teller(events.append), rng=random.Random()):
        (notice,) = [event for event in events if isinstance(event, Notice)]
    assert (notice.level, notice.text[: len(told[1])]) == told
    assert "R2D1_D1_DATABASE_ID" in notice.text


@pytest.mark.parametrize("given", [{}, HALF])
def test_the_blocking_doors_say_it_once_a_process(s3, tmp_path, caplog, monkeypatch, given):
    """However many are made, and however often one that is not entered opens anew."""
    monkeypatch.setattr(sync._loop, "told", set())  # other tests of this process may have told it
    caplog.set_level(logging.INFO, "r2d1")
    settings = settings_of(s3, given)
    for _ in range(2):
        fetcher = Fetcher(settings)
        for _ in range(2):
            fetcher.pull("r2://jobs/none/latest", tmp_path)
        with Courier(settings) as courier:
            courier.flush()
    assert len([text for text in caplog.messages if "D1" in text]) == 1


def test_an_observer_of_ones_own_is_told_for_each_door(s3, tmp_path):
    """It belongs to that door, and does not know what the log was told."""
    settings = settings_of(s3, HALF)
    for _ in range(2):
        told: list[Event] = []
        fetcher = Fetcher(settings, observer=told.append)
        for _ in range(2):
            fetcher.pull("r2://jobs/none/latest", tmp_path)
        assert len([event for event in told if isinstance(event, Notice) and "D1 is not used" in event.text]) == 1
