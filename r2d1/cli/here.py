"""What a watched directory and its journal show, without making a journal where there is none."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from r2d1.cli.running import Session, opened_store
from r2d1.courier.preview import Preview, not_shipped
from r2d1.journal import Done, Journal, Parked, scope_of
from r2d1.localstate import state_directory
from r2d1.tasks import in_thread
from r2d1.transfer.lane import Lane

#: What ``localstate.held`` writes into a lock.
_WRITTEN = re.compile(r"process ([0-9]+) on (.*)")


@dataclass(frozen=True, slots=True)
class Holder:
    """Whether a courier holds a directory; ``is_held`` is None where its lock cannot be tried.

    ``by`` is who wrote itself down when it took the directory, which counts only while it is held.
    """

    is_held: bool | None = False
    pid: int | None = None
    by: str = ""

    def __str__(self) -> str:
        if self.is_held is None:
            return "cannot be told, its lock cannot be tried"
        return f"{self.by or 'another process'} holds the directory" if self.is_held else "none is at work here"


@dataclass(frozen=True, slots=True)
class Here:
    """A directory: what its journal knows as done and owed, who works on it, and what lies there not shipped."""

    directory: Path
    rows_owed: tuple[str, ...] = ()
    ships_under_way: tuple[str, ...] = ()
    done: Mapping[str, Done] = field(default_factory=dict)
    parked: Mapping[str, Parked] = field(default_factory=dict)
    holder: Holder = Holder()
    not_shipped: tuple[Preview, ...] = ()


async def look_here(session: Session, directory: Path, job_id: str) -> Here:
    """Look at a directory with the eyes of a job's courier; the bucket is not asked."""
    directory = directory.absolute()
    async with opened_store(session) as store:  # for its name alone
        here = await in_thread(read_journal, directory, scope_of(store.where, job_id))
        left = await not_shipped(Lane(store, session.tell), directory, job_id, here.done, here.parked)
    return replace(here, not_shipped=tuple(left))


def read_journal(directory: Path, scope: str) -> Here:
    """What the journal of a directory says of one job, and who holds the directory. Blocks; makes no journal."""
    where, wal = state_directory(directory)
    holder = _holder(where / "courier.lock")
    if not (where / "journal.db").exists():
        return Here(directory, holder=holder)
    with closing(Journal(where, wal=wal)) as journal:
        return Here(
            directory,
            tuple(journal.owed(scope)),
            tuple(journal.names_under_way(scope)),
            journal.all_done(scope),
            journal.all_parked(scope),
            holder,
        )


def _holder(lock: Path) -> Holder:
    """Who holds a courier's lock.

    Only trying tells, and a courier that starts at that moment would be refused. So where the process that wrote
    itself down was one of this host and is gone, nothing is tried.
    """
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Holder()
    except OSError:  # another user's, or no file
        return Holder(None)
    try:
        by = os.pread(fd, 300, 0).decode(errors="replace").strip()
        match = _WRITTEN.fullmatch(by)
        pid = int(match[1]) if match else None
        if pid is not None and match is not None and match[2] == socket.gethostname() and not _is_alive(pid):
            return Holder()
        is_held = _is_taken(fd)
        return Holder(is_held, pid if is_held else None, by if is_held else "")
    finally:
        os.close(fd)  # and with it the lock, where it was free


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True  # somebody else's process, or a number to be believed no further: the lock tells
    return True


def _is_taken(fd: int) -> bool | None:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
