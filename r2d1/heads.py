"""The commit protocol: claim, commit, wipe. As small as its model, and in its order (formats §4)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import anyio

from r2d1.documents import MAX_DOCUMENT_BYTES, OPEN, TAKEN, Head, ShipRecord, decode_head, decode_record
from r2d1.errors import AccessRefused, NotSupported, ObjectNotFound, PreconditionFailed, R2D1Error, RemoteUnavailable
from r2d1.keys import FIRST_SHIP, CheckpointKeys, heads_prefix, parse_head_key
from r2d1.manifest import MAX_MANIFEST_BYTES, Manifest, decode_manifest, manifest_digest
from r2d1.objects import PAGE, Attributes, BytesSource, ObjectStore
from r2d1.tasks import in_thread

T = TypeVar("T")

JSON = Attributes(content_type="application/json")
_TRIES = 20  # conditional writes of one document before giving up; each waits a second or more


class ShipLost(R2D1Error):
    """Our ship record is no longer open and ours, or objects of the ship are gone: a new ship is needed."""


@dataclass(frozen=True, slots=True)
class Stored(Generic[T]):
    """A document and the ETag it was read with."""

    value: T
    etag: str


@dataclass(frozen=True, slots=True)
class Ship:
    """One attempt to put one version of one name into the bucket; all its objects lie below ``prefix``."""

    of: CheckpointKeys
    ship: str
    owner: str

    @property
    def prefix(self) -> str:
        return self.of.prefix(self.ship)

    @property
    def record_key(self) -> str:
        return self.of.record(self.ship)


@dataclass(frozen=True, slots=True)
class Sealed:
    """An uploaded ship: its manifest, that manifest's bytes, and size and ETag of every object below the prefix."""

    manifest: Manifest
    raw: bytes
    objects: Mapping[str, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Commit:
    """What counts after a commit. ``is_ours`` is False when another ship with the same files was there first."""

    head: Head
    is_ours: bool


async def list_heads(store: ObjectStore, job_id: str) -> AsyncIterator[CheckpointKeys]:
    """The checkpoints of a job that have a head, be it a deleted one."""
    async for info in store.list(heads_prefix(job_id)):
        if (name := parse_head_key(job_id, info.key)) is not None:
            yield CheckpointKeys(job_id, name)


async def read_head(store: ObjectStore, of: CheckpointKeys) -> Stored[Head] | None:
    """The head of a name, or None. ``FormatError`` when it is there but cannot be understood."""
    try:
        raw, info = await store.get(of.head, limit=MAX_DOCUMENT_BYTES)
    except ObjectNotFound:
        return None
    return Stored(decode_head(raw, key=of.head, of=of), info.etag)


async def read_record(store: ObjectStore, of: CheckpointKeys, ship: str) -> Stored[ShipRecord] | None:
    """A ship record, or None."""
    try:
        raw, info = await store.get(of.record(ship), limit=MAX_DOCUMENT_BYTES)
    except ObjectNotFound:
        return None
    return Stored(decode_record(raw, key=of.record(ship)), info.etag)


async def read_manifest(store: ObjectStore, of: CheckpointKeys, head: Head) -> Manifest | None:
    """The manifest a head names; None when it is gone or is another one (then read the head again)."""
    key = of.manifest(head.prefix)
    try:
        raw, _ = await store.get(key, limit=MAX_MANIFEST_BYTES)
    except ObjectNotFound:
        return None
    return await in_thread(_decoded, raw, key, head.manifest)


def _decoded(raw: bytes, key: str, digest: str) -> Manifest | None:
    """Called in a thread: 20,000 files take nearly half a second."""
    return decode_manifest(raw, key=key) if manifest_digest(raw) == digest else None


async def swap(store: ObjectStore, key: str, data: bytes, expected: str | None, rng: random.Random) -> bool:
    """Write a document only if it is still what was read: ``expected`` is its ETag, None when it was absent.

    A lost reply, and a 412 that answers our own write, are settled by reading: True means our bytes are there.
    """
    for attempt in range(_TRIES):
        try:
            await store.put(key, BytesSource(data), attributes=JSON, if_none_match=expected is None, if_match=expected)
        except (PreconditionFailed, RemoteUnavailable) as error:
            found = await _read(store, key)
            if found is not None and found.value == data:
                return True
            is_unchanged = (found.etag if found else None) == expected
            if not is_unchanged or isinstance(error, PreconditionFailed):
                return False
            if attempt == _TRIES - 1:
                raise
            await pause(rng)
        else:
            return True
    raise AssertionError("unreachable")


async def _read(store: ObjectStore, key: str) -> Stored[bytes] | None:
    try:
        raw, info = await store.get(key, limit=MAX_DOCUMENT_BYTES)
    except ObjectNotFound:
        return None
    return Stored(raw, info.etag)


async def pause(rng: random.Random) -> None:
    """A second or more: R2 takes one write a second per key, and two writers must not step in time."""
    await anyio.sleep(1 + rng.random())


async def claim(store: ObjectStore, ship: Ship, record: ShipRecord, rng: random.Random) -> bool:
    """Create the ship's record, read it back, and say whether the ship is ours.

    Only record ``0`` can be somebody else's; a random ship that turns out taken is a new ship's business too.
    """
    await swap(store, ship.record_key, record.encode(), None, rng)
    return await is_ours(store, ship)


async def is_ours(store: ObjectStore, ship: Ship) -> bool:
    """Whether the ship's record still is open and ours."""
    stored = await read_record(store, ship.of, ship.ship)
    return stored is not None and (stored.value.state, stored.value.owner) == (OPEN, ship.owner)


async def was_ours(store: ObjectStore, ship: Ship) -> bool:
    """Whether nobody but us can ever have written below the ship's prefix, be it ours still or taken by gc.

    A record that gc has deleted was ours if its name was drawn by us; ``0`` may belong to whoever comes next.
    """
    stored = await read_record(store, ship.of, ship.ship)
    return ship.ship != FIRST_SHIP if stored is None else stored.value.owner == ship.owner


async def put_manifest(store: ObjectStore, ship: Ship, raw: bytes) -> str:
    """Write the ship's manifest, after all it names; returns its ETag."""
    return await store.put(ship.of.manifest(ship.prefix), BytesSource(raw), attributes=JSON)


async def put_hint(store: ObjectStore, of: CheckpointKeys, epoch: int) -> None:
    await store.put(of.hint(epoch), BytesSource(b"{}"), attributes=JSON)


async def ensure_hint(store: ObjectStore, of: CheckpointKeys, epoch: int) -> bool:
    """Put the hint once more unless it is there; True when it had to be.

    Whoever deletes a hint reads the head afterwards and puts it back, so after the head was written a look
    is as good as a second write, and R2's limit of one write a second per key is not met.
    """
    try:
        await store.head(of.hint(epoch))
    except ObjectNotFound:
        await put_hint(store, of, epoch)
        return True
    return False


async def commit(
    store: ObjectStore, ship: Ship, sealed: Sealed, *, before_write: Callable[[], Awaitable[None]], rng: random.Random
) -> Commit:
    """Make the head name this ship. A reader sees what was there before or all of this, never anything between.

    ``before_write`` is awaited right before each attempt and may raise to stop it (the files changed).
    Raises ``ShipLost`` when the ship was taken away or its objects are not what was sent.
    """
    await put_hint(store, ship.of, sealed.manifest.epoch)
    for _ in range(_TRIES):
        await _check_objects(store, ship, sealed)
        stored = await read_head(store, ship.of)
        if not await is_ours(store, ship):
            raise ShipLost(f"{ship.prefix}: the ship record is no longer ours")
        old = stored.value if stored and not stored.value.deleted else None
        if old is not None and old.prefix == ship.prefix:
            return await _finish(store, ship, old, None)
        if old is not None and await _is_same(store, ship.of, old, sealed.manifest):
            await wipe(store, ship.of, ship.prefix)
            return Commit(old, is_ours=False)
        await before_write()
        new = _next_head(ship, sealed, stored.value if stored else None, old)
        if await swap(store, ship.of.head, new.encode(), stored.etag if stored else None, rng):
            return await _finish(store, ship, new, old.replaces if old else None)
        await pause(rng)
    raise RemoteUnavailable("commit", ship.of.head, reason="other writers kept winning the head", hint="Try again.")


def _next_head(ship: Ship, sealed: Sealed, last: Head | None, old: Head | None) -> Head:
    return Head(
        seq=last.seq + 1 if last else 1,
        name=ship.of.name,
        epoch=sealed.manifest.epoch,
        timestamp=sealed.manifest.timestamp,
        prefix=ship.prefix,
        manifest=manifest_digest(sealed.raw),
        replaces=old.prefix if old else None,
        unknown=last.unknown if last else {},
    )


async def _finish(store: ObjectStore, ship: Ship, head: Head, outlived: str | None) -> Commit:
    """After the head: the hint once more, then delete the ship before the replaced one, which no reader needs."""
    await ensure_hint(store, ship.of, head.epoch)
    if outlived is not None and not head.names(outlived):
        await wipe(store, ship.of, outlived)
    return Commit(head, is_ours=True)


async def _check_objects(store: ObjectStore, ship: Ship, sealed: Sealed) -> None:
    """Compare size and ETag of every object below the prefix with what was sent."""
    left = dict(sealed.objects)
    async for info in store.list(f"{ship.prefix}/"):
        expected = left.pop(info.key, None)
        if expected is not None and expected != (info.size, info.etag):
            raise ShipLost(f"{info.key}: has {info.size} bytes and ETag {info.etag}, sent were {expected}")
    if left:
        raise ShipLost(f"{len(left)} objects of {ship.prefix} are gone, such as {min(left)}")


async def _is_same(store: ObjectStore, of: CheckpointKeys, head: Head, mine: Manifest) -> bool:
    """Whether the head's ship holds these very files, and all of its objects still are there."""
    if head.epoch != mine.epoch:
        return False
    theirs = await read_manifest(store, of, head)
    files = {entry.path: (entry.size, entry.digest) for entry in mine.files}
    if theirs is None or not theirs.has_same_files(mine.epoch, files):
        return False
    return await has_objects(store, of, head.prefix, theirs)


async def has_objects(
    store: ObjectStore, of: CheckpointKeys, prefix: str, manifest: Manifest, *, etags: bool = False
) -> bool:
    """Whether one LIST shows files and sidecar with their sizes: a bucket that lost one is healed by a ship.

    With ``etags`` files must have the manifest's ETags too, which those of a copied bucket do not.
    """
    left = {f"{prefix}/{entry.object_key}": (entry.size, entry.etag if etags else None) for entry in manifest.files}
    left[of.sidecar(prefix)] = (manifest.sidecar_size, None)
    async for info in store.list(f"{prefix}/"):
        size, etag = left.get(info.key, (None, None))
        if size == info.size and etag in (None, info.etag):
            del left[info.key]
    return not left


async def take(store: ObjectStore, of: CheckpointKeys, ship: str, rng: random.Random) -> bool:
    """Set a ship's record to ``taken``: whoever reads it from now on starts a new ship. False when that failed.

    A record that is gone says as much: gc was here, and what was sent after it is left.
    """
    stored = await read_record(store, of, ship)
    if stored is None or stored.value.state == TAKEN:
        return True
    if stored.value.state != OPEN:
        return False
    return await swap(store, of.record(ship), stored.value.taken().encode(), stored.etag, rng)


async def fence(store: ObjectStore, of: CheckpointKeys, prefix: str, rng: random.Random) -> bool:
    """Write the head once, changing nothing but ``seq``: a commit that read it before can no longer succeed.

    False when the head names ``prefix``, or another writer was faster.
    """
    stored: Stored[Head] | None = await read_head(store, of)
    if stored is not None and stored.value.names(prefix):
        return False
    if stored is not None:
        head = replace(stored.value, seq=stored.value.seq + 1)
    else:
        head = Head(1, of.name, 0, 0.0, "", "", None, deleted=True)
    return await swap(store, of.head, head.encode(), stored.etag if stored else None, rng)


async def withdraw(store: ObjectStore, ship: Ship, rng: random.Random, *, may_commit: bool) -> bool:
    """Delete our own ship, which is not to be committed any more; False when its head counts after all, or may.

    ``may_commit``: the head's PUT of a process that died, or of one that lives with a copy of our journal, may still
    be on its way, and must not make the head name what is deleted here; so it is done behind gc's fence.
    """
    if not await was_ours(store, ship):
        return False
    for _ in range(_TRIES):
        stored = await read_head(store, ship.of)
        if stored is not None and stored.value.names(ship.prefix):
            return False
        if not may_commit or (
            await take(store, ship.of, ship.ship, rng) and await fence(store, ship.of, ship.prefix, rng)
        ):
            await wipe(store, ship.of, ship.prefix)
            return True
        await pause(rng)
    return False  # gc goes on: the record says that it may


async def wipe(store: ObjectStore, of: CheckpointKeys, prefix: str, *, with_record: bool = True) -> None:
    """Delete a ship: manifest, sidecar, files, last its record (``0`` stays for ever). Never a head, row or hint.

    Uploads that are open below it go first: without the record nobody would know that they are ours.
    """
    ship = of.ship_of(prefix)
    if ship is None:
        raise ValueError(f"{prefix!r} is no prefix of {of}")
    await abort_uploads(store, prefix)
    await store.delete([of.manifest(prefix)])
    await store.delete([of.sidecar(prefix)])
    batch: list[str] = []
    async for info in store.list(f"{prefix}/"):
        batch.append(info.key)
        if len(batch) == PAGE:
            await store.delete(batch)
            batch = []
    if batch:
        await store.delete(batch)
    if with_record and ship != FIRST_SHIP:
        await store.delete([of.record(ship)])


async def abort_uploads(store: ObjectStore, prefix: str) -> None:
    """Abort every upload below a prefix of ours. Where they cannot be listed, the bucket drops them after 7 days."""
    try:
        for upload in await store.list_uploads(f"{prefix}/"):
            await store.abort_upload(upload.key, upload.upload_id)
    except (NotSupported, AccessRefused):
        return
