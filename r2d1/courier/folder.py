"""One watched directory: its checkpoints and the phase each is in, from first sight to shipped or failed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

import anyio

from r2d1.checkpoint import Identity, LocalCheckpoint, Wait
from r2d1.courier.deleting import finish_deletions
from r2d1.courier.looking import OUTDATED, Seen, is_ours, look_at, settle
from r2d1.courier.snapshot import snapshots, take_up
from r2d1.errors import CheckpointError, FormatError, NameRefused, R2D1Error
from r2d1.events import ShipFailed, Teller
from r2d1.journal import Journal, Parked, state_of
from r2d1.localstate import held, state_directory
from r2d1.tasks import acquired, in_thread
from r2d1.transfer.lane import Lane

_MOST_FAILURES = 1000  # failed checkpoints that are remembered after they were deleted
_HURRY_S = 30.0  # most seconds until a refused checkpoint is tried again after another one was taken
_MOST_GONE = 1000  # shipped ones that the journal remembers after they were deleted


class Phase(StrEnum):
    WAITING = "waiting"  # not complete yet; looked at again soon
    STALE = "stale"  # the next version is being written; its sidecar will tell
    QUEUED = "queued"
    SHIPPING = "shipping"
    DONE = "done"
    FAILED = "failed"  # cannot be shipped as it is; tried again when it changes
    PARKED = "parked"  # the store would not take it; tried again by a slow timer
    IGNORED = "ignored"


#: Phases that a flush waits for.
UNFINISHED = (Phase.WAITING, Phase.QUEUED, Phase.SHIPPING)


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """How a directory is watched. Times are seconds; formats §3 explains ``ordered`` and ``settle_timeout``."""

    poll_every: float = 30.0
    ordered: bool = True
    settle_timeout: float = 60.0
    force_polling: bool = False
    newest_first: bool = False
    keep_local: int | None = None
    snapshot: str | None = None

    def __post_init__(self) -> None:
        if self.poll_every <= 0 or self.settle_timeout < 0:
            raise ValueError("poll_every must be above 0 seconds, settle_timeout not below 0")
        if self.keep_local is not None and self.keep_local < 1:
            raise ValueError(f"keep_local must be at least 1 (or None to keep all), not {self.keep_local}")
        if self.snapshot not in (None, "hardlink"):
            raise ValueError(f"snapshot must be None or 'hardlink', not {self.snapshot!r}")


@dataclass(slots=True)
class Entry:
    """One checkpoint of the directory. ``since`` is when its present state was first seen."""

    stem: str
    identity: Identity
    since: float
    phase: Phase = Phase.WAITING
    why: str = ""
    local: LocalCheckpoint | None = None
    next_look: float = 0.0
    looks: int = 0
    failures: int = 0
    state: str = ""
    is_outdated: bool = False

    @property
    def name(self) -> str:
        return self.local.name if self.local else self.stem


@dataclass(slots=True)
class Folder:
    """The state of one watched directory. ``enqueue`` is called with what may be shipped.

    ``is_crowded``: there may be more local checkpoints than ``keep_local``, and nobody has looked yet.
    """

    path: Path
    job_id: str
    scope: str
    options: WatchOptions
    lane: Lane
    enqueue: Callable[[Folder, Sequence[Entry]], None]
    changed: Callable[[], None]
    journal: Journal | None = None
    entries: dict[str, Entry] = field(default_factory=dict)
    parked: dict[str, Parked] = field(default_factory=dict)  # by name, as the journal has it
    heads: frozenset[str] | None = None
    root: tuple[int, int] | None = None
    bare: tuple[str, ...] = ()  # folders named like checkpoints, without a sidecar
    trouble: str | None = None  # why the directory cannot be followed at all
    wake: anyio.Event = field(default_factory=anyio.Event)
    scanning: anyio.Lock = field(default_factory=anyio.Lock)
    pinning: anyio.Lock = field(default_factory=anyio.Lock)  # held while anything is linked or put back
    is_crowded: bool = False
    crowd: anyio.Event = field(default_factory=anyio.Event)
    kept: dict[str, str] = field(default_factory=dict)  # by name, the states that the bucket does not hold
    _held_back: list[Entry] = field(default_factory=list)

    @property
    def tell(self) -> Teller:
        return self.lane.tell

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Journal]:
        """Hold the directory's lock and journal; ``LockHeld`` when another courier on this host has it."""
        where, wal = await in_thread(state_directory, self.path)
        async with acquired(lambda: Journal(where, wal=wal), Journal.close) as journal:
            with ExitStack() as lock:  # freed at once, come what may: by the kernel if need be
                await in_thread(lock.enter_context, held(where / "courier.lock", f"the directory {self.path}"))
                self.journal = journal
                try:
                    await in_thread(finish_deletions, self.path)
                    await self._take_up(journal, is_start=True)
                    await in_thread(self._forget_gone, journal)
                    self.parked = await in_thread(journal.all_parked, self.scope)
                    yield journal
                finally:
                    self.journal, self.is_crowded = None, False
                    with anyio.CancelScope(shield=True):
                        await in_thread(journal.close)  # before the next one gets the lock

    async def _take_up(self, journal: Journal, *, is_start: bool) -> None:
        """Put back what rotation took away while it was pinned and has not been shipped."""
        async with self.pinning:
            busy = {entry.stem for entry in self.entries.values() if entry.phase is Phase.SHIPPING}
            taken = await in_thread(partial(take_up, busy=busy, is_start=is_start), self.path, journal, self.scope)
        for name in taken.put_back:
            self.tell.notice("warning", f"{name} was taken away before it was shipped; its snapshot is put back")
        for trouble in taken.troubles:
            self.tell.notice("warning", trouble, once=trouble)

    def rouse(self) -> None:
        """Have the directory looked at now."""
        self.wake.set()

    async def scan(self, *, retry: bool = False) -> bool:
        """Look at every pair; False when the directory is gone or another one took its place."""
        async with self.scanning:
            if self.options.snapshot is not None and self.journal is not None:
                await self._take_up(self.journal, is_start=False)
            look = await in_thread(look_at, self.path, limiter=self.lane.disk)
            if look is None or self.journal is None or look.root != (self.root or look.root):
                return False
            self.root, self.bare = look.root, look.bare
            if self._forget_missing({seen.stem for seen in look.seen}):
                await in_thread(self._forget_gone, self.journal)
            try:
                for seen in look.seen:
                    await self._consider(seen, retry=retry)
            finally:
                self._let_go()
            if self.parked:
                here = {entry.name for seen in look.seen if (entry := self.entries.get(seen.stem)) is not None}
                await self._unpark(self.parked.keys() - here)
        self.changed()
        return True

    def _forget_missing(self, stems: set[str]) -> bool:
        """Drop what is gone from the disk; a checkpoint that was not shipped before is lost, and is said to be.

        True when one that was shipped is gone.
        """
        before = len(self.entries)
        for stem in [stem for stem in self.entries if stem not in stems]:
            entry = self.entries[stem]
            if entry.phase in (Phase.DONE, Phase.IGNORED):
                del self.entries[stem]
            elif entry.phase not in (Phase.SHIPPING, Phase.FAILED):
                self.fail(entry, "deleted from the disk before it was shipped", "when it is written again")
        is_shipped_gone = len(self.entries) < before
        gone = [stem for stem, entry in self.entries.items() if stem not in stems and entry.phase is Phase.FAILED]
        for stem in gone[: max(0, len(gone) - _MOST_FAILURES)]:
            del self.entries[stem]
        return is_shipped_gone

    def _forget_gone(self, journal: Journal) -> None:
        """Keep the journal of a job that rotates its checkpoints from growing for ever."""
        journal.forget_gone(self.path)
        journal.forget_gone(snapshots(self.path))
        if self.entries:  # else what is here has not been looked at yet
            journal.trim_done(self.scope, [entry.name for entry in self.entries.values()], keep=_MOST_GONE)

    async def _consider(self, seen: Seen, *, retry: bool) -> None:
        entry = self.entries.get(seen.stem)
        if entry is not None and entry.phase in (Phase.QUEUED, Phase.SHIPPING):
            entry.is_outdated |= entry.identity != seen.identity
            return  # what changes meanwhile is noticed before the head is written
        if entry is None or entry.identity != seen.identity:
            entry = self.entries[seen.stem] = Entry(seen.stem, seen.identity, anyio.current_time())
        elif entry.phase in (Phase.DONE, Phase.IGNORED) or (not retry and anyio.current_time() < entry.next_look):
            return
        await self._settle(entry)

    async def _settle(self, entry: Entry) -> None:
        folder = self.path / entry.stem
        if not await in_thread(is_ours, self.path, entry.stem):
            self._ignore(entry)
            return
        try:
            local, verdict = await settle(self.lane, folder, ordered=self.options.ordered)
        except FormatError as exc:
            self._wait(entry, Wait(str(exc)))
            return
        except (CheckpointError, NameRefused) as exc:
            self.fail(entry, str(exc))
            return
        entry.local = local
        if (twin := self._twin(entry)) is not None:
            self.fail(entry, f"{entry.stem}.json and {twin.stem}.json both claim the name {local.name!r}")
            self.fail(twin, f"{twin.stem}.json and {entry.stem}.json both claim the name {local.name!r}")
        elif isinstance(verdict, Wait):
            self._wait(entry, verdict)
        else:
            await self._ready(entry, local)

    def _ignore(self, entry: Entry) -> None:
        entry.phase = Phase.IGNORED
        self.tell.notice(
            "info",
            f"{self.path / entry.stem}: ignored; a checkpoint is called chk_* or slot_*, or its JSON has an 'epoch'",
            once=f"ignored {self.path}/{entry.stem}",
        )

    def _twin(self, entry: Entry) -> Entry | None:
        others = (other for other in self.entries.values() if other is not entry and other.phase is not Phase.IGNORED)
        return next((other for other in others if other.name == entry.name), None)

    async def _ready(self, entry: Entry, local: LocalCheckpoint) -> None:
        assert self.journal is not None
        state = state_of(local)
        if entry.phase is Phase.FAILED and entry.state == state:
            entry.next_look = anyio.current_time() + self.options.poll_every
            return  # nothing changed since it failed
        entry.state = state
        for warning in local.warnings:
            self.tell.notice("warning", f"{local.folder}: {warning}", once=f"{local.folder} {warning}")
        if (parked := self.parked.get(local.name)) is not None and parked.state != state_of(local, ctime=False):
            await self._unpark({local.name})
        done = await in_thread(self.journal.done, self.scope, local.name)
        if done is not None and done.state == entry.state and (self.heads is None or local.name in self.heads):
            entry.phase, entry.why = Phase.DONE, ""
            await self._unpark({local.name} & self.parked.keys())
            return
        if await in_thread(self.journal.is_outdated, self.scope, local.name, local):
            self._wait(entry, Wait(OUTDATED, is_stale=True))
            return
        entry.phase, entry.why = Phase.QUEUED, ""
        if self.options.newest_first:
            self._held_back.append(entry)  # which one is the newest is known when all were looked at
        else:
            self.enqueue(self, [entry])

    def _let_go(self) -> None:
        entries, self._held_back = self._held_back, []
        if entries:
            self.enqueue(self, entries)

    def _wait(self, entry: Entry, wait: Wait) -> None:
        """Look again soon; after ``settle_timeout`` it has failed, or is left to its next sidecar."""
        now = anyio.current_time()
        left = entry.since + self.options.settle_timeout - now
        if left <= 0 and not wait.is_stale:
            if entry.phase is not Phase.FAILED:
                self.fail(entry, f"not complete after {self.options.settle_timeout:g} s: {wait.reason}")
            entry.next_look = now + self.options.poll_every
            return
        if wait.is_stale and entry.phase is not Phase.STALE:
            self.tell.notice("info", f"{self.path / entry.stem}: {wait.reason}; waiting for its sidecar")
        entry.phase, entry.why = (Phase.STALE if wait.is_stale else Phase.WAITING), wait.reason
        entry.looks += 1
        pause = min(1.0, 0.05 * 2 ** min(entry.looks, 10))
        entry.next_look = now + (
            max(pause, self.options.poll_every) if wait.is_stale and left <= 0 else min(pause, max(left, 0.01))
        )

    def fail(
        self, entry: Entry, why: str, again: str = "when sidecar or folder changes, and at the next start"
    ) -> None:
        """It cannot be shipped as it is: say so once."""
        is_news = (entry.phase, entry.why) != (Phase.FAILED, why)
        entry.phase, entry.why, entry.next_look = Phase.FAILED, why, anyio.current_time() + self.options.poll_every
        if is_news:
            self.tell(ShipFailed(self.job_id, entry.name, why, again))
            self.changed()

    async def park(self, entry: Entry, why: str, seconds: float) -> None:
        """The store would not take it: try again after a pause. The journal keeps the reason for other eyes."""
        entry.failures += 1
        if entry.local is not None:
            await self.note_refusal(entry.local, why)  # first: when this is told, a process may end
        entry.phase, entry.why, entry.next_look = Phase.PARKED, why, anyio.current_time() + seconds
        self.tell(ShipFailed(self.job_id, entry.name, why, f"in {seconds:.0f} s"))
        self.changed()

    async def note_refusal(self, local: LocalCheckpoint, why: str) -> None:
        """A record an attempt, and only of those that failed: nothing that is shipped waits for it."""
        if self.journal is None:
            return
        name, state = local.name, state_of(local, ctime=False)
        before = self.parked.get(name)
        times = before.times + 1 if before is not None and before.state == state else 1
        parked = self.parked[name] = Parked(state, why, time.time(), times)
        try:
            await in_thread(self.journal.record_parked, self.scope, name, parked)
        except R2D1Error as exc:
            self.tell.notice("warning", f"{name}: why it is not shipped could not be noted: {exc}")

    async def _unpark(self, names: Collection[str]) -> None:
        """Forget why checkpoints were not taken that are shipped, were changed, or are gone."""
        if names and self.journal is not None:
            await in_thread(self.journal.forget_parked, self.scope, names)
            for name in names:
                self.parked.pop(name, None)

    def done(self, entry: Entry) -> None:
        self.parked.pop(entry.name, None)  # the journal dropped it with its new record
        entry.phase, entry.why, entry.failures = Phase.DONE, "", 0
        if entry.is_outdated:  # its next sidecar was seen meanwhile: a flush waits for that one too
            entry.phase, entry.next_look = Phase.WAITING, 0.0
        if self.heads is not None:
            self.heads |= {entry.name}
        self._hurry_parked()
        self.want_room()
        self.changed()

    def _hurry_parked(self) -> None:
        """The store has taken one: what it refused for long may go well now."""
        soon = anyio.current_time() + _HURRY_S
        for entry in self.entries.values():
            if entry.phase is Phase.PARKED:
                entry.next_look = min(entry.next_look, soon)

    def want_room(self) -> None:
        """Have room made, where ``keep_local`` asks for it."""
        if self.options.keep_local is not None and self.journal is not None:
            self.is_crowded = True
            self.crowd.set()

    def next_look(self) -> float:
        """Seconds until something must be looked at again, whatever events come."""
        now = anyio.current_time()
        due = [
            entry.next_look - now
            for entry in self.entries.values()
            if entry.phase in (Phase.WAITING, Phase.STALE, Phase.PARKED)
        ]
        return max(0.0, min([self.options.poll_every, *due]))

    def label(self, entry: Entry) -> str:
        return f"{self.job_id}/{entry.name}"
