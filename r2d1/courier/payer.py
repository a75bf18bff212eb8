"""Rows owed to the catalog: written when it can be, kept in the journal until then, holding up nothing else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import anyio

from r2d1.catalog import Catalog
from r2d1.courier.folder import Folder
from r2d1.errors import R2D1Error
from r2d1.events import RowOwed, RowWritten, Teller
from r2d1.heads import read_head
from r2d1.keys import CheckpointKeys
from r2d1.manifest import Manifest
from r2d1.objects import ObjectStore
from r2d1.rows import settle_rows
from r2d1.tasks import in_thread, run_bounded

_BATCH = 50
_KEPT_MANIFESTS = 8
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0


@dataclass(slots=True)
class Payer:
    """Writes owed rows in the background, many in one request."""

    store: ObjectStore
    catalog: Catalog
    tell: Teller
    changed: Callable[[], None]
    owed: dict[str, tuple[Folder, set[str]]] = field(default_factory=dict)
    paying: tuple[str, ...] = ()  # owed and being written right now
    comparing: int = 0  # directories whose rows are being compared with their heads
    _is_tried: bool = True  # nothing owed, or the last attempt at what is owed failed
    _wake: anyio.Event = field(default_factory=anyio.Event)
    _known: OrderedDict[str, Manifest] = field(default_factory=OrderedDict)
    _told: dict[str, str] = field(default_factory=dict)  # why each row is owed, as it was told last

    async def owe(self, folder: Folder, name: str, manifest: Manifest | None = None, prefix: str = "") -> None:
        """Remember durably that a row must be written, and have it written soon."""
        if folder.journal is not None:
            await in_thread(folder.journal.owe, folder.scope, name)
        if manifest is not None:
            self._known[prefix] = manifest
            while len(self._known) > _KEPT_MANIFESTS:
                self._known.popitem(last=False)
        self._add(folder, [name])

    def _add(self, folder: Folder, names: Sequence[str]) -> None:
        self.owed.setdefault(f"{folder.scope} {folder.path}", (folder, set()))[1].update(names)
        self._is_tried = not self.names()
        self._wake.set()

    @property
    def is_settled(self) -> bool:
        """Whether every row that is known to be owed was at least tried."""
        return self._is_tried and not self.comparing

    def names(self) -> list[str]:
        """What is owed, as ``<job>/<name>``."""
        owed = {f"{folder.job_id}/{name}" for folder, names in self.owed.values() for name in names}
        return sorted(owed.union(self.paying))

    def hurry(self) -> None:
        """Try at once what is owed; ``is_settled`` turns true when that attempt is over."""
        self._is_tried = not self.names()
        self._wake.set()

    async def run(self) -> None:
        """Pay for ever. A catalog that fails is asked again after a pause that doubles up to five minutes."""
        pause = _FIRST_PAUSE_S
        while True:
            if self.names():
                is_paid = await self._pay_all()
                pause = _FIRST_PAUSE_S if is_paid else min(_LONGEST_PAUSE_S, pause * 2)
            if self._wake.is_set():
                self._wake = anyio.Event()
                continue
            self._is_tried = True
            self.changed()
            with anyio.move_on_after(pause if self.names() else None):
                await self._wake.wait()
            self._wake = anyio.Event()

    async def _pay_all(self) -> bool:
        """Pay one batch of every directory; False when the catalog or the store failed."""
        for folder, names in list(self.owed.values()):
            batch = sorted(names)[:_BATCH]
            names.difference_update(batch)  # before the await: what is owed again meanwhile must stay owed
            self.paying = tuple(f"{folder.job_id}/{name}" for name in batch)
            try:
                await self._pay(folder, batch, names)
            except R2D1Error as error:
                names.update(batch)
                self._tell_owed(folder.job_id, batch, str(error))
                return False
            except BaseException:
                names.update(batch)
                raise
            else:
                for name in batch:
                    self._told.pop(f"{folder.job_id}/{name}", None)
            finally:
                self.paying = ()
            if names:
                self._wake.set()
        return True

    def _tell_owed(self, job_id: str, names: Sequence[str], why: str) -> None:
        """Once for each reason: it is tried again and again."""
        for name in names:
            if self._told.get(f"{job_id}/{name}") != why:
                self._told[f"{job_id}/{name}"] = why
                self.tell(RowOwed(job_id, name, why))

    async def _pay(self, folder: Folder, batch: Sequence[str], owed_again: Container[str]) -> None:
        if not batch:
            return
        of = [CheckpointKeys(folder.job_id, name) for name in batch]
        heads = await settle_rows(self.store, self.catalog, of, self.tell, self._known)
        for keys, head in heads.items():
            if folder.journal is not None and keys.name not in owed_again:
                await in_thread(folder.journal.paid, folder.scope, keys.name)
            if head is not None and not head.deleted:
                self.tell(RowWritten(keys.job_id, keys.name, head.epoch))

    async def reconcile(self, folder: Folder, heads: Sequence[str]) -> None:
        """Owe the rows that the journal remembers, and those that this job's heads have and the catalog lacks."""
        self.comparing += 1
        try:
            if folder.journal is not None:
                self._add(folder, await in_thread(folder.journal.owed, folder.scope))
            await self._compare(folder, heads)
        except R2D1Error as error:
            self.tell.notice("warning", f"the rows of {folder.job_id!a} could not be compared with its heads: {error}")
        finally:
            self.comparing -= 1
            self.changed()

    async def _compare(self, folder: Folder, heads: Sequence[str]) -> None:
        rows = {row.name: row for row in await self.catalog.rows(folder.job_id)}

        async def compare(name: str) -> None:
            stored = await read_head(self.store, CheckpointKeys(folder.job_id, name))
            row = rows.get(name)
            if stored is None or (stored.value.deleted and row is None):
                return
            head = stored.value
            if row is None or head.deleted or (row.epoch, row.r2_prefix) != (head.epoch, head.prefix):
                await self.owe(folder, name)

        await run_bounded(4, compare, heads)
