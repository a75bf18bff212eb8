"""Which checkpoint a URI means: by its head, and for ``latest`` by hints and D1 together (formats §5)."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum

import anyio

from r2d1 import keys
from r2d1.catalog import Catalog, Row
from r2d1.documents import OPEN, Head
from r2d1.errors import AccessRefused, FormatError, NotSupported, R2D1Error, RemoteError
from r2d1.events import Teller
from r2d1.heads import read_head, read_record
from r2d1.keys import CheckpointKeys
from r2d1.legacy import Legacy, read_legacy
from r2d1.objects import ObjectStore
from r2d1.tasks import one_error, run_bounded

#: How long ``latest`` waits for D1; the hints alone are enough.
D1_PATIENCE_S = 10.0
_MOST_ROWS = 1000
_AT_ONCE = 8
_MOST_TOLD = 20  # names of ships under way that are looked at where nothing else is there
#: A ship that has sent nothing: so long its first small object may take, or an upload that may not be listed live.
_FIRST_OBJECT_S, _UPLOAD_LIVES_S = 600.0, 7 * 86_400.0


class WrongBucket(R2D1Error):
    """D1 knows checkpoints of which this bucket has never heard."""


@dataclass(frozen=True, slots=True)
class Found:
    """The checkpoint that counts: exactly one of ``head`` and ``legacy`` is there."""

    of: CheckpointKeys
    head: Head | None = None
    legacy: Legacy | None = None

    @property
    def epoch(self) -> int:
        return self._what.epoch

    @property
    def timestamp(self) -> float:
        return self._what.timestamp

    @property
    def _what(self) -> Head | Legacy:
        what = self.head or self.legacy
        assert what is not None
        return what


async def find_named(store: ObjectStore, of: CheckpointKeys, tell: Teller) -> Found | None:
    """The checkpoint of this name: its head's or the 0.2 line's, the higher epoch, then the head."""
    stored = await read_head(store, of)
    head = stored.value if stored and not stored.value.deleted else None
    legacy = await _usable(store, of, tell)
    if legacy is not None and (head is None or legacy.epoch > head.epoch):
        return Found(of, legacy=legacy)
    return Found(of, head=head) if head is not None else None


class Begun(StrEnum):
    """What became of the ships of a name of which nothing was ever committed."""

    UNDER_WAY = "a ship of it was begun and is not committed yet"
    GIVEN_UP = "a ship of it was begun and given up"


async def what_was_begun(store: ObjectStore, of: CheckpointKeys) -> Begun | None:
    """Whether ships of a name that was never committed are under way; None when none was ever begun.

    A record stays when its ship is given up (``0`` for ever), still saying ``open``: then nothing lies below its
    prefix. A ship whose courier died counts as under way, as its files may be gone on with, until gc takes it.
    """
    begun: Begun | None = None
    async with aclosing(store.list(of.records)) as records:
        async for info in records:
            ship = info.key.removeprefix(of.records).removesuffix(".json")
            if await _is_under_way(store, of, ship, info.modified):
                return Begun.UNDER_WAY
            begun = Begun.GIVEN_UP
    return begun


async def _is_under_way(store: ObjectStore, of: CheckpointKeys, ship: str, since: float) -> bool:
    if ship != keys.FIRST_SHIP and not keys.is_ship(ship):
        return False
    try:
        record = await read_record(store, of, ship)
    except FormatError:
        return True  # a newer r2d1 is at it, and only that one can tell more
    if record is None or record.value.state != OPEN:
        return False
    if await has_objects_below(store, of.prefix(ship)):
        return True
    age_s = time.time() - since
    try:
        return bool(await store.list_uploads(f"{of.prefix(ship)}/")) or age_s < _FIRST_OBJECT_S
    except (NotSupported, AccessRefused):
        return age_s < _UPLOAD_LIVES_S


async def has_objects_below(store: ObjectStore, prefix: str) -> bool:
    """Whether any object lies below ``prefix`` (given without a slash at the end)."""
    async with aclosing(store.list(f"{prefix}/")) as objects:
        async for _ in objects:
            return True
    return False


async def is_job_known(store: ObjectStore, job_id: str) -> bool:
    """Whether the bucket holds anything of a job, be it only that something of it was deleted."""
    return await has_objects_below(store, f"jobs/{job_id}")


async def why_absent(store: ObjectStore, catalog: Catalog | None, of: CheckpointKeys, tell: Teller) -> str:
    """What the bucket knows of a checkpoint that it does not have; empty when it never heard of it."""
    stored = await read_head(store, of)
    if stored is not None and is_fence(stored.value):
        return str(await what_was_begun(store, of) or Begun.GIVEN_UP)
    if stored is not None and stored.value.deleted:
        try:
            return f"it was deleted; {await newest_now(store, catalog, of.job_id, tell)}"
        except R2D1Error as exc:  # that one is absent is certain all the same
            return f"it was deleted; which one is newest now cannot be told: {exc}"
    if stored is not None:
        return str(Begun.UNDER_WAY)  # it was committed since it was looked for
    return str(await what_was_begun(store, of) or "")


def is_fence(head: Head) -> bool:
    """Whether a head was only written to keep a ship that was given up from being committed: there never was one."""
    return head.deleted and not head.prefix


async def why_no_latest(store: ObjectStore, job_id: str) -> str:
    """What is under way of a job that has no checkpoint; empty when nothing is."""
    if "/" in job_id:
        return ""
    base = keys.records_prefix(job_id)
    names = [folder[len(base) :].rstrip("/") for folder in await store.list_folders(base)]
    names = [name for name in names if keys.is_name(name)]
    under_way: list[str] = []

    async def look(name: str) -> None:
        of = CheckpointKeys(job_id, name)
        stored = await read_head(store, of)
        if (stored is None or is_fence(stored.value)) and await what_was_begun(store, of) is Begun.UNDER_WAY:
            under_way.append(name)

    await run_bounded(_AT_ONCE, look, names[:_MOST_TOLD])
    more = ", …" if len(names) > _MOST_TOLD else ""
    return f"being shipped and not committed yet: {', '.join(sorted(under_way))}{more}" if under_way else ""


async def newest_now(store: ObjectStore, catalog: Catalog | None, job_id: str, tell: Teller) -> str:
    """Which checkpoint of a job to turn to instead. Raises what ``find_latest`` raises."""
    newest = await find_latest(store, catalog, job_id, tell)
    return f"newest now is {newest.of.name} (epoch {newest.epoch})" if newest else "the job has no other checkpoint"


async def _usable(store: ObjectStore, of: CheckpointKeys, tell: Teller) -> Legacy | None:
    found = await read_legacy(store, of)
    if found is None or isinstance(found, Legacy):
        return found
    tell.notice("warning", f"{of.legacy}: written by r2d1 0.2 and not usable: {found.why}", once=f"legacy {of.legacy}")
    return None


@dataclass(slots=True)
class _Claims:
    """What the three sources say of a job before any head was read."""

    hints: _Hints
    rows: list[Row] = field(default_factory=list)
    legacy: list[Legacy] = field(default_factory=list)


async def find_latest(store: ObjectStore, catalog: Catalog | None, job_id: str, tell: Teller) -> Found | None:
    """The newest checkpoint of a job: highest epoch, then timestamp, then name; None when there is none.

    Raises ``FormatError`` for a head that cannot be understood (never stepped over), ``WrongBucket`` when D1
    has rows of ours and the bucket none of them, ``RemoteError`` when the store fails; D1 failing is a warning.
    """
    async with aclosing(_Hints(store, job_id)) as hints:
        claims = _Claims(hints)
        with one_error():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_read_rows, claims, catalog, job_id, tell)
                tasks.start_soon(_read_legacy, claims, store, job_id, tell)
                if "/" not in job_id:
                    tasks.start_soon(hints.advance)
        await _read_legacy_rows(claims, store, job_id, tell)
        found = await _highest(store, claims, job_id)
        if found is None:
            await _refuse_wrong_bucket(store, claims, job_id)
        return found


async def _read_rows(claims: _Claims, catalog: Catalog | None, job_id: str, tell: Teller) -> None:
    if catalog is None:
        return
    try:
        with anyio.fail_after(D1_PATIENCE_S):
            rows = await catalog.rows(job_id, limit=_MOST_ROWS)
    except (RemoteError, TimeoutError) as exc:
        tell.notice("warning", f"D1 could not be asked for the newest checkpoint, the bucket alone decides: {exc}")
        return
    claims.rows = [row for row in rows if keys.is_name(row.name)]
    for row in rows:
        if not keys.is_name(row.name):
            tell.notice("warning", f"a row of job {job_id!a} has the name {keys.shown(row.name)}; it is ignored")


async def _read_legacy(claims: _Claims, store: ObjectStore, job_id: str, tell: Teller) -> None:
    base = keys.legacy_prefix(job_id)
    names = [folder[len(base) :].rstrip("/") for folder in await store.list_folders(base)]
    await _add_legacy(claims, store, [CheckpointKeys(job_id, name) for name in names if keys.is_name(name)], tell)


async def _read_legacy_rows(claims: _Claims, store: ObjectStore, job_id: str, tell: Teller) -> None:
    """Legacy checkpoints that only D1 gave (a LIST may be refused or the folder spelled otherwise)."""
    have = {legacy.of.name for legacy in claims.legacy}
    wanted = [row.name for row in claims.rows if row.r2_prefix == CheckpointKeys(job_id, row.name).legacy]
    await _add_legacy(claims, store, [CheckpointKeys(job_id, name) for name in wanted if name not in have], tell)


async def _add_legacy(claims: _Claims, store: ObjectStore, names: Sequence[CheckpointKeys], tell: Teller) -> None:
    async def add(of: CheckpointKeys) -> None:
        if (legacy := await _usable(store, of, tell)) is not None:
            claims.legacy.append(legacy)

    await run_bounded(_AT_ONCE, add, names)


async def _highest(store: ObjectStore, claims: _Claims, job_id: str) -> Found | None:
    """Go down the epochs that anybody claims until a head or a legacy checkpoint stands for one."""
    by_epoch: dict[int, set[str]] = {}
    for row in claims.rows:
        if not keys.is_legacy(row.r2_prefix, job_id):
            by_epoch.setdefault(row.epoch, set()).add(row.name)
    legacy_by_epoch: dict[int, list[Legacy]] = {}
    for legacy in claims.legacy:
        legacy_by_epoch.setdefault(legacy.epoch, []).append(legacy)
    while True:
        epochs = [*by_epoch, *legacy_by_epoch, *claims.hints.epoch]
        if not epochs:
            return None
        epoch = max(epochs)
        names = by_epoch.pop(epoch, set()) | await claims.hints.take(epoch)
        found = [Found(legacy.of, legacy=legacy) for legacy in legacy_by_epoch.pop(epoch, [])]
        for one in await _heads_of(store, job_id, sorted(names)):
            if one.epoch == epoch:
                found.append(one)
            else:  # shipped again since it was listed, perhaps: what its head says now is looked at in its turn
                by_epoch.setdefault(one.epoch, set()).add(one.of.name)
        if found:
            return min(found, key=lambda one: (-one.timestamp, one.of.name, one.head is None))


async def _heads_of(store: ObjectStore, job_id: str, names: Iterable[str]) -> list[Found]:
    found: list[Found] = []

    async def read(name: str) -> None:
        of = CheckpointKeys(job_id, name)
        stored = await read_head(store, of)
        if stored is not None and not stored.value.deleted:
            found.append(Found(of, head=stored.value))

    await run_bounded(_AT_ONCE, read, names)
    return found


async def _refuse_wrong_bucket(store: ObjectStore, claims: _Claims, job_id: str) -> None:
    ours = [row for row in claims.rows if not keys.is_legacy(row.r2_prefix, job_id)]
    for row in ours:
        if await read_head(store, CheckpointKeys(job_id, row.name)) is not None:
            return
    if ours:
        raise WrongBucket(
            f"D1 has {len(ours)} checkpoints of job {job_id!a}, and {store.where} has never heard of any of them. "
            "Are bucket, account and jurisdiction those the job was shipped to?"
        )


class _Hints:
    """The hints of a job, newest epoch first, read one page of the listing at a time."""

    def __init__(self, store: ObjectStore, job_id: str) -> None:
        self._job_id = job_id
        self._listing = self._parsed(store)
        self._next: tuple[int, str] | None = None

    async def _parsed(self, store: ObjectStore) -> AsyncGenerator[tuple[int, str], None]:
        async with aclosing(store.list(keys.hints_prefix(self._job_id))) as listing:
            async for info in listing:
                if (hint := keys.parse_hint_key(self._job_id, info.key)) is not None:
                    yield hint

    @property
    def epoch(self) -> list[int]:
        """The epoch of the next hint, if there is one."""
        return [self._next[0]] if self._next else []

    async def advance(self) -> None:
        self._next = await anext(self._listing, None)

    async def aclose(self) -> None:
        await self._listing.aclose()

    async def take(self, epoch: int) -> set[str]:
        """The names of all hints of ``epoch``, if that is the next one."""
        names = set()
        while self._next is not None and self._next[0] == epoch:
            names.add(self._next[1])
            await self.advance()
        return names
