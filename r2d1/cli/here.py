"""What a watched directory and its journal show, without making a journal where there is none."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Here:
    """A directory: what its journal knows as done and owed, and what lies there that is not shipped."""

    directory: Path
    rows_owed: tuple[str, ...] = ()
    ships_under_way: tuple[str, ...] = ()
    done: Mapping[str, Done] = field(default_factory=dict)
    not_shipped: tuple[Preview, ...] = ()


async def look_here(session: Session, directory: Path, job_id: str) -> Here:
    """Look at a directory with the eyes of a job's courier; the bucket is not asked."""
    directory = directory.absolute()
    async with opened_store(session) as store:  # for its name alone
        here, parked = await in_thread(_read_journal, directory, scope_of(store.where, job_id))
        left = await not_shipped(Lane(store, session.tell), directory, job_id, here.done, parked)
    return replace(here, not_shipped=tuple(left))


def _read_journal(directory: Path, scope: str) -> tuple[Here, Mapping[str, Parked]]:
    where, wal = state_directory(directory)
    if not (where / "journal.db").exists():
        return Here(directory), {}
    with closing(Journal(where, wal=wal)) as journal:
        owed, under_way = tuple(journal.owed(scope)), tuple(journal.names_under_way(scope))
        return Here(directory, owed, under_way, journal.all_done(scope)), journal.all_parked(scope)
