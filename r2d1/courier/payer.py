"""Rows owed to the catalog: written when it can be, kept in the journal until then, holding up nothing else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
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
    is_settled: bool = True  # nothing owed, or the last attempt at what is owed failed
    _wake: anyio.Event = field(default_factory=anyio.Event)
    _known: OrderedDict[str, Manifest] = field(default_factory=OrderedDict)

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
        self.is_settled = not self.names()
        self._wake.set()

    def names(self) -> list[str]:
        return sorted(f"{folder.job_id}/{name}" for folder, names in self.owed.values() for name in names)

    def hurry(self) -> None:
        """Try at once what is owed; ``is_settled`` turns true when that attempt is over."""
        self.is_settled = not self.names()
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
            self.is_settled = True
            self.changed()
            with anyio.move_on_after(pause if self.names() else None):
                await self._wake.wait()
            self._wake = anyio.Event()

    async def _pay_all(self) -> bool:
        for where, (folder, names) in list(self.owed.items()):
            batch = sorted(names)[:_BATCH]
            try:
                await self._pay(folder, batch)
            except R2D1Error as error:
                for name in batch:
                    self.tell(RowOwed(folder.job_id, name, str(error)))
                return False
            names.difference_update(batch)
            if names:
                self._wake.set()
            else:
                self.owed.pop(where, None) if self.owed.get(where, (None, names))[1] is names else None
        return True

    async def _pay(self, folder: Folder, batch: Sequence[str]) -> None:
        keys = [CheckpointKeys(folder.job_id, name) for name in batch]
        heads = await settle_rows(self.store, self.catalog, keys, self.tell, self._known)
        for of, head in heads.items():
            if folder.journal is not None:
                await in_thread(folder.journal.paid, folder.scope, of.name)
            if head is not None and not head.deleted:
                self.tell(RowWritten(of.job_id, of.name, head.epoch))

    async def reconcile(self, folder: Folder, heads: Sequence[str]) -> None:
        """Owe the rows that the journal remembers, and those that this job's heads have and the catalog lacks."""
        if folder.journal is not None:
            self._add(folder, await in_thread(folder.journal.owed, folder.scope))
        try:
            await self._compare(folder, heads)
        except R2D1Error as error:
            self.tell.notice("warning", f"the rows of {folder.job_id!a} could not be compared with its heads: {error}")

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
