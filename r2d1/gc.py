"""Garbage: ships that no head needs and that are too old to be under way, taken away behind a fence (formats §4)."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from r2d1 import keys
from r2d1.documents import TAKEN
from r2d1.errors import AccessRefused, FormatError, NotSupported
from r2d1.events import Teller
from r2d1.finding import has_objects_below
from r2d1.heads import fence, list_heads, read_head, read_manifest, read_record, take, wipe
from r2d1.keys import FIRST_SHIP, CheckpointKeys
from r2d1.maintain import drop_hint
from r2d1.objects import BytesSource, ObjectInfo, ObjectStore

#: Seven days: longer than any upload, and the age at which R2 drops open uploads by itself.
GC_AGE_S = 7 * 86_400.0


@dataclass(slots=True)
class Garbage:
    """What a gc found in one job. ``skipped`` says why something was left alone; ``deleted`` what is gone."""

    job_id: str
    ships: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


async def collect(
    store: ObjectStore, job_id: str, tell: Teller, rng: random.Random, *, delete: bool, gc_age_s: float = GC_AGE_S
) -> Garbage:
    """Find the garbage of a job, and with ``delete`` take it away; what cannot be fenced is left to the next gc."""
    garbage = Garbage(job_id)
    records = [record async for record in _records(store, job_id, garbage)]
    try:
        await _read_everything(store, job_id, records)
    except FormatError as exc:
        garbage.skipped.append(f"the whole job: {exc}")
        return garbage
    limit = (await _server_time(store, job_id) if delete else time.time()) - gc_age_s
    for of, ship, info in records:
        if info.modified <= limit:
            await _consider_ship(store, of, ship, garbage, rng, delete=delete)
    async for info in store.list(keys.hints_prefix(job_id)):
        if info.modified <= limit:
            await _consider_hint(store, job_id, info, garbage, delete=delete)
    await _consider_uploads(store, job_id, garbage, tell, delete=delete)
    return garbage


async def _read_everything(
    store: ObjectStore, job_id: str, records: Sequence[tuple[CheckpointKeys, str, ObjectInfo]]
) -> None:
    """Refuse a job in which anything speaks a language we do not know."""
    for record_of, ship, _ in records:
        await read_record(store, record_of, ship)
    async for of in list_heads(store, job_id):
        stored = await read_head(store, of)
        if stored is not None and not stored.value.deleted:
            await read_manifest(store, of, stored.value)


async def _records(
    store: ObjectStore, job_id: str, garbage: Garbage
) -> AsyncIterator[tuple[CheckpointKeys, str, ObjectInfo]]:
    base = f"jobs/{job_id}/{keys.STATE_DIR}/ships/"
    async for info in store.list(base):
        name, _, ship = info.key[len(base) :].removesuffix(".json").partition("/")
        if keys.is_name(name) and (ship == FIRST_SHIP or keys.is_ship(ship)):
            yield CheckpointKeys(job_id, name), ship, info
        else:
            garbage.skipped.append(f"{keys.shown(info.key)} is no ship record")


async def _server_time(store: ObjectStore, job_id: str) -> float:
    """The server's clock, as the time it gives an object written now."""
    key = f"jobs/{job_id}/{keys.STATE_DIR}/clock.json"
    await store.put(key, BytesSource(b"{}"))
    now = (await store.head(key)).modified
    await store.delete([key])
    return now


async def _consider_ship(
    store: ObjectStore, of: CheckpointKeys, ship: str, garbage: Garbage, rng: random.Random, *, delete: bool
) -> None:
    prefix = of.prefix(ship)
    stored = await read_head(store, of)
    if stored is not None and stored.value.names(prefix):
        return
    if ship == FIRST_SHIP and not await has_objects_below(store, prefix) and not await _has_uploads(store, prefix):
        return  # record 0 stays for ever, and there is nothing else left of it
    garbage.ships.append(prefix)
    if delete:
        # A courier that lives after all may send until it looks at its record, and then be lost with its disk. So the
        # record outlives the first time, and the next gc takes away what came after it.
        is_second = await _was_taken(store, of, ship)
        if await take(store, of, ship, rng) and await fence(store, of, prefix, rng):
            await wipe(store, of, prefix, with_record=is_second)
            garbage.deleted.append(prefix)
        else:
            garbage.skipped.append(f"{prefix}: somebody else was at it; the next gc goes on")


async def _was_taken(store: ObjectStore, of: CheckpointKeys, ship: str) -> bool:
    stored = await read_record(store, of, ship)
    return stored is not None and stored.value.state == TAKEN


async def _has_uploads(store: ObjectStore, prefix: str) -> bool:
    try:
        return bool(await store.list_uploads(f"{prefix}/"))
    except (NotSupported, AccessRefused):
        return False  # the bucket drops them after 7 days


async def _consider_hint(store: ObjectStore, job_id: str, info: ObjectInfo, garbage: Garbage, *, delete: bool) -> None:
    hint = keys.parse_hint_key(job_id, info.key)
    if hint is None:
        garbage.skipped.append(f"{keys.shown(info.key)} is no hint")
        return
    epoch, name = hint
    of = CheckpointKeys(job_id, name)
    stored = await read_head(store, of)
    if stored is not None and not stored.value.deleted and stored.value.epoch == epoch:
        return
    garbage.hints.append(info.key)
    if delete:
        await drop_hint(store, of, epoch)
        garbage.deleted.append(info.key)


async def _consider_uploads(store: ObjectStore, job_id: str, garbage: Garbage, tell: Teller, *, delete: bool) -> None:
    """Uploads left open below a prefix that is committed: nobody sends there any more."""
    async for of in list_heads(store, job_id):
        stored = await read_head(store, of)
        if stored is None or stored.value.deleted:
            continue
        try:
            uploads = await store.list_uploads(f"{stored.value.prefix}/")
        except (NotSupported, AccessRefused) as exc:
            tell.notice("info", f"open uploads cannot be listed, the bucket drops them after 7 days: {exc}")
            return
        for upload in uploads:
            garbage.uploads.append(f"{upload.key} {upload.upload_id}")
            if delete:
                await store.abort_upload(upload.key, upload.upload_id)
                garbage.deleted.append(f"upload {upload.key}")
