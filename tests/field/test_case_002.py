"""Field case 2: the queue of events overflows and the trigger is lost. Any event is a whole scan, so none is missed."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.checkpoints import write_checkpoint
from tests.cli.shell import started
from tests.remote_ends import bodies_sent

STEPS = range(1, 6)


def queue_length() -> int:
    """How many events wait at most; the kernel's own word where there is one."""
    told = Path("/proc/sys/fs/inotify/max_queued_events")
    return int(told.read_text()) if told.exists() else 16_384


def test_more_events_than_the_queue_holds(s3, tmp_path):
    """A courier that is stopped misses the events of 5 checkpoints, all beyond its queue; it ships each once.

    The periodic scan is an hour away: the events that were kept must do.
    """
    watched = tmp_path / "w"
    watched.mkdir()
    options = ("--job-id", "job", "--poll-every", "3600")
    with started("watch", "w", *options, env=s3.env(), home=tmp_path) as child:
        child.wait_for("watching")
        child.send(signal.SIGSTOP)
        for number in range(queue_length() // 2 + 1):  # each is made, opened and closed
            (watched / f"log-{number:05d}").touch()
        for step in STEPS:
            write_checkpoint(watched, f"chk_{step}", step, {"a.bin": b"%d" % step})
        child.send(signal.SIGCONT)
        for step in STEPS:
            child.wait_for(f"chk_{step}: epoch {step} is in the bucket")
        child.send(signal.SIGTERM)
        assert child.end().exit_code == 0
    assert s3.keys("jobs/job/.r2d1/heads/") == [f"jobs/job/.r2d1/heads/chk_{step}.json" for step in STEPS]
    sent = [record.key for record in bodies_sent(s3)]
    assert len(sent) == len(set(sent)) == 3 * len(STEPS)
