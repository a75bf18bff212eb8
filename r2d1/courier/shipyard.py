"""The queue of checkpoints that may be shipped, and what becomes of each: done, failed, parked or settled anew."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio

from r2d1 import keys
from r2d1.courier.deliver import Delivery, deliver
from r2d1.courier.folder import Entry, Folder, Phase
from r2d1.courier.payer import Payer
from r2d1.courier.report import Shipped
from r2d1.courier.snapshot import let_go, pin, record_original, unpin
from r2d1.errors import CheckpointError, Closed, FormatError, NameRefused, R2D1Error, RemoteError, Superseded
from r2d1.events import Teller, log
from r2d1.journal import Journal
from r2d1.keys import CheckpointKeys
from r2d1.manifest import Manifest
from r2d1.tasks import in_thread
from r2d1.transfer.lane import Lane

_PARK_S, _LONGEST_PARK_S = 30.0, 900.0
_REMEMBERED = 1000
_TOLD = 20  # names in one notice


@dataclass(slots=True)
class Shipyard:
    """Ships what the watched directories enqueue. ``shipped`` are the last thousand commits."""

    lane: Lane
    payer: Payer | None
    rng: random.Random
    changed: Callable[[], None]
    queue: list[tuple[Folder, Entry]] = field(default_factory=list)
    shipped: deque[Shipped] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    already: int = 0
    last_commit_at: float | None = None
    _work: anyio.Event = field(default_factory=anyio.Event)

    @property
    def tell(self) -> Teller:
        return self.lane.tell

    def enqueue(self, folder: Folder, entries: Sequence[Entry]) -> None:
        """Have checkpoints shipped in their turn; ``status`` lists what waits."""
        self.queue.extend((folder, entry) for entry in entries)
        self.queue.sort(key=_turn)
        if folder.options.newest_first:
            first, *passed = [entry.name for of, entry in self.queue if of is folder]
            if passed:
                names = ", ".join(passed[:_TOLD]) + (f" and {len(passed) - _TOLD} more" if passed[_TOLD:] else "")
                self.tell.notice("info", f"{first}: goes first; waiting behind it: {names}")
        self._work.set()
        self.changed()

    async def run(self) -> None:
        """Ship what is queued, for ever; several of these run side by side."""
        while True:
            while not self.queue:
                if self._work.is_set():  # one event for all who wait: a new one of each would leave the others asleep
                    self._work = anyio.Event()
                await self._work.wait()
            folder, entry = self.queue.pop(0)
            if entry.phase is not Phase.QUEUED or folder.journal is None:
                continue
            entry.phase = Phase.SHIPPING
            try:
                await self._ship(folder, entry)
            finally:
                if entry.phase is Phase.SHIPPING:
                    entry.phase = Phase.WAITING
                folder.rouse()
                self.changed()

    async def _ship(self, folder: Folder, entry: Entry) -> None:
        try:
            shipped, manifest = await self._deliver(folder, entry)
        except Superseded as exc:
            self.tell.notice("warning", f"{exc}; settling it anew")
            entry.since, entry.next_look = anyio.current_time(), 0.0
        except (CheckpointError, FormatError, NameRefused) as exc:
            folder.fail(entry, str(exc))
        except RemoteError as exc:
            slow = _LONGEST_PARK_S if not exc.transient else min(_LONGEST_PARK_S, _PARK_S * 2**entry.failures)
            await folder.park(entry, str(exc), slow)
        except (R2D1Error, OSError) as exc:
            await folder.park(entry, str(exc), _LONGEST_PARK_S)
        except Exception as exc:
            log.exception("shipping %s failed in a way r2d1 does not know; please report it", folder.label(entry))
            await folder.park(entry, f"{type(exc).__name__}: {exc}", _LONGEST_PARK_S)
        else:
            if self.payer is not None and shipped.is_new:
                await self.payer.owe(folder, shipped.name, manifest, shipped.prefix)
            self.note(shipped)
            folder.done(entry)

    async def _deliver(self, folder: Folder, entry: Entry) -> tuple[Shipped, Manifest | None]:
        local = entry.local
        assert local is not None
        journal, of = journal_of(folder), CheckpointKeys(folder.job_id, keys.check_name(entry.name))
        if folder.options.snapshot is None:
            return await deliver(Delivery(self.lane, journal, folder.scope, of, local, self.rng))
        async with folder.pinning:
            pinned = await in_thread(pin, local)
        try:
            result = await deliver(Delivery(self.lane, journal, folder.scope, of, pinned, self.rng, is_pinned=True))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await in_thread(let_go, pinned.folder, local.folder)
            raise
        await in_thread(unpin, pinned.folder)
        await in_thread(record_original, journal, folder.scope, of.name, local, pinned)
        return result

    def note(self, shipped: Shipped) -> None:
        """Count a checkpoint that the bucket has."""
        if shipped.is_new:
            self.shipped.append(shipped)
            self.last_commit_at = time.time()
        else:
            self.already += 1


def journal_of(folder: Folder) -> Journal:
    """The folder's journal; ``Closed`` when the directory went away."""
    if folder.journal is None:
        raise Closed(f"{folder.path}: the directory went away")
    return folder.journal


def _turn(item: tuple[Folder, Entry]) -> tuple[int, str]:
    """In order of epochs, or newest first where the watch asked for that."""
    folder, entry = item
    epoch = entry.local.sidecar.epoch if entry.local else 0
    return (-epoch if folder.options.newest_first else epoch), entry.stem
