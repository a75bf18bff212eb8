"""One checkpoint from disk to bucket: claim, upload, commit. It exists once its head names it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio

from r2d1 import __version__
from r2d1.checkpoint import LocalCheckpoint, LocalFile, inspect
from r2d1.courier.report import Shipped
from r2d1.digest import digest_of
from r2d1.documents import OPEN, Head, ShipRecord
from r2d1.errors import (
    AccessRefused,
    CheckpointError,
    FormatError,
    NameRefused,
    NotSupported,
    ObjectNotFound,
    Superseded,
    UploadNotFound,
)
from r2d1.events import AlreadyThere, BytesMoved, Committed, ShipStarted, Teller
from r2d1.heads import (
    JSON,
    Sealed,
    Ship,
    ShipLost,
    claim,
    commit,
    has_objects,
    put_manifest,
    read_head,
    read_manifest,
    withdraw,
)
from r2d1.journal import Done, Journal, Sent, StoredPart, StoredUpload, UnderWay, state_of
from r2d1.keys import FIRST_SHIP, CheckpointKeys, check_key
from r2d1.manifest import FileEntry, Manifest
from r2d1.objects import BytesSource, ObjectStore, Part
from r2d1.tasks import in_thread, run_bounded
from r2d1.transfer.hashing import digest_file
from r2d1.transfer.lane import Lane
from r2d1.transfer.several import rows_up, upload_files
from r2d1.transfer.upload import OpenFile, SentPart

CREATED_BY = f"r2d1 {__version__}"
_SHIPS = 3  # new ships for one state before giving up: only gc or a copied bucket takes one away


@dataclass(slots=True)
class Delivery:
    """What delivering one state of one checkpoint needs."""

    lane: Lane
    journal: Journal
    scope: str
    of: CheckpointKeys
    local: LocalCheckpoint
    rng: random.Random
    is_pinned: bool = False  # links move ctime: the state is told without it, and files sent before are hashed again
    sent_bytes: int = 0
    may_commit: bool = False  # somebody may have sent a head for the ship under way: we, or who began it before us
    state: str = field(init=False)
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.state = state_of(self.local, ctime=not self.is_pinned)
        self.started = anyio.current_time()

    @property
    def store(self) -> ObjectStore:
        return self.lane.store

    @property
    def tell(self) -> Teller:
        return self.lane.tell

    def moved(self, path: str, count: int) -> None:
        self.sent_bytes += count
        self.tell(BytesMoved(self.of.job_id, self.of.name, path, "up", count))


async def deliver(job: Delivery) -> tuple[Shipped, Manifest | None]:
    """Bring one local state of a checkpoint into the bucket; returns its manifest when this call wrote it.

    Raises ``Superseded`` when the checkpoint changes meanwhile (its objects are deleted again), ``RemoteError``
    when the store refuses or stays away; what was sent is kept and found again by the next call.
    """
    stored = await read_head(job.store, job.of)
    if stored is not None and await _is_there(job, stored.value):
        await _drop_under_way(job, stored.value)
        return await _note_done(job, stored.value, is_new=False), None
    for _ in range(_SHIPS):
        ship = await _claim(job, is_first=stored is None)
        try:
            sealed = await _upload(job, ship)
            done = await commit(
                job.store, ship, sealed, before_write=partial(_check_same, job, sealed.manifest), rng=job.rng
            )
        except Superseded:
            await _abandon(job, ship)
            raise
        except (ShipLost, ObjectNotFound, UploadNotFound) as lost:  # what was sent vanished: gc, or somebody's hand
            job.tell.notice("warning", f"{job.of.name}: shipped once more, because {lost}")
            await _abandon(job, ship)
        else:
            return await _note_done(job, done.head, is_new=done.is_ours), sealed.manifest if done.is_ours else None
    raise ShipLost(f"{job.of.name}: {_SHIPS} ships were taken away while they were being sent")


async def _is_there(job: Delivery, head: Head) -> bool:
    """Whether the bucket holds this very checkpoint: same epoch, paths, sizes and digests, and all objects there."""
    if head.deleted or head.epoch != job.local.sidecar.epoch:
        return False
    manifest = await read_manifest(job.store, job.of, head)
    if manifest is None or not await _has_local_files(job, manifest):
        return False
    return await has_objects(job.store, job.of, head.prefix, manifest)


async def _has_local_files(job: Delivery, manifest: Manifest) -> bool:
    entries = {entry.path: entry for entry in manifest.files}
    files = {file.path: file for file in job.local.files}
    if {path: entry.size for path, entry in entries.items()} != {p: f.identity.size for p, f in files.items()}:
        return False
    for path, entry in entries.items():
        if (await _local_digest(job, files[path], entry))[0] != entry.digest:
            return False
    return True


async def _local_digest(job: Delivery, file: LocalFile, entry: FileEntry) -> tuple[str, tuple[str, ...]]:
    path = job.local.folder / file.path
    known = await in_thread(job.journal.digest, path, file.identity, entry.algorithm, entry.part_size)
    if known is not None:
        return known
    taken = await digest_file(job.lane, path, file.identity, algorithm=entry.algorithm, part_size=entry.part_size)
    await in_thread(job.journal.record_digest, path, file.identity, entry.part_size, *taken)
    return taken


async def _claim(job: Delivery, *, is_first: bool) -> Ship:
    """The ship to go on with: the one under way for this state, else ``0`` if nobody has it, else a random one.

    A head proves that ship ``0`` is taken, so without ``is_first`` asking for it would only cost a request.
    """
    known = await in_thread(job.journal.under_way, job.scope, job.of.name)
    if known is not None:
        ship, job.may_commit = Ship(job.of, known.ship, known.owner), True
        if known.state == job.state and await claim(job.store, ship, _record(ship), job.rng):
            await _sweep(job, ship)
            return ship
        await _abandon(job, ship)
    for name in [FIRST_SHIP] * is_first + [f"{job.rng.getrandbits(48):012x}" for _ in range(2)]:
        ship = Ship(job.of, name, f"{job.rng.getrandbits(128):032x}")
        await in_thread(job.journal.begin_ship, job.scope, job.of.name, UnderWay(name, ship.owner, job.state))
        job.may_commit = False
        if await claim(job.store, ship, _record(ship), job.rng):
            return ship
    raise ShipLost(f"{job.of.name}: no ship could be claimed")


def _record(ship: Ship) -> ShipRecord:
    return ShipRecord(OPEN, ship.owner, socket.gethostname()[:255], CREATED_BY)


async def _upload(job: Delivery, ship: Ship) -> Sealed:
    """Files, then the sidecar, then the manifest that names them all."""
    log = await _Log.of(job, ship)
    for file in job.local.files:
        check_key(f"{ship.prefix}/{file.key}")
    job.tell(
        ShipStarted(job.of.job_id, job.of.name, job.local.sidecar.epoch, len(job.local.files), job.local.total_bytes)
    )
    entries: dict[str, FileEntry] = {}

    async def send(row: list[LocalFile]) -> None:
        sent = await upload_files(
            job.lane, log, folder=job.local.folder, prefix=ship.prefix, files=row, progress=job.moved
        )
        entries.update((entry.path, entry) for entry in sent)

    await run_bounded(job.lane.files_at_once, send, list(rows_up(job.local.files, job.lane.part_size)))
    sidecar_key = job.of.sidecar(ship.prefix)
    raw_sidecar = job.local.sidecar.raw
    sidecar_etag = await job.store.put(sidecar_key, BytesSource(raw_sidecar), attributes=JSON)
    manifest = _manifest(job, [entries[file.path] for file in job.local.files])
    raw = await in_thread(manifest.encode)
    manifest_etag = await put_manifest(job.store, ship, raw)
    objects = {f"{ship.prefix}/{entry.object_key}": (entry.size, entry.etag) for entry in manifest.files}
    objects[sidecar_key] = (len(raw_sidecar), sidecar_etag)
    objects[job.of.manifest(ship.prefix)] = (len(raw), manifest_etag)
    return Sealed(manifest, raw, objects)


def _manifest(job: Delivery, entries: list[FileEntry]) -> Manifest:
    sidecar = job.local.sidecar
    extra = {"left_out": list(job.local.left_out)} if job.local.left_out else {}
    return Manifest(
        job_id=job.of.job_id,
        name=job.of.name,
        epoch=sidecar.epoch,
        timestamp=sidecar.timestamp,
        metadata=sidecar.metadata,
        created_by=CREATED_BY,
        sidecar_size=len(sidecar.raw),
        sidecar_digest=digest_of(sidecar.raw),
        files=tuple(entries),
        extra=extra,
    )


async def _check_same(job: Delivery, manifest: Manifest) -> None:
    """Right before the head is written: nothing on disk may have changed since the first look.

    A file whose ctime alone moved is hashed again: rotation takes links away, and some change a mode. When all is
    well a head is sent next, so that from here on this ship may be committed.
    """
    try:
        now = await in_thread(inspect, job.local.folder)
    except (CheckpointError, FormatError, NameRefused) as exc:
        raise Superseded(f"{job.local.folder}: changed while it was being shipped: {exc}") from exc
    doubtful = job.local.doubtful_in(now)
    if doubtful is not None:
        entries = {entry.path: entry for entry in manifest.files}
        for file in doubtful:
            if (await _local_digest(job, file, entries[file.path]))[0] != entries[file.path].digest:
                doubtful = None
                break
    if doubtful is None:
        raise Superseded(f"{job.local.folder}: changed while it was being shipped")
    job.may_commit = True


async def _sweep(job: Delivery, ship: Ship) -> None:
    """Abort uploads below our own prefix that the journal does not know: begun when the last process died.

    Nobody else uploads there. A store that cannot list uploads, or a token that may not, forgets them in 7 days.
    """
    known = {upload.upload_id for upload in await in_thread(job.journal.uploads, job.scope, job.of.name)}
    try:
        found = await job.store.list_uploads(f"{ship.prefix}/")
    except (NotSupported, AccessRefused) as exc:
        job.tell.notice(
            "info", f"open uploads cannot be listed, the bucket drops them after 7 days: {exc}", once="list uploads"
        )
        return
    for upload in found:
        if upload.upload_id not in known:
            await job.store.abort_upload(upload.key, upload.upload_id)


async def _drop_under_way(job: Delivery, head: Head) -> None:
    """Somebody else committed the same files: what was begun here for them is not needed any more."""
    known = await in_thread(job.journal.under_way, job.scope, job.of.name)
    if known is not None and not head.names((ship := Ship(job.of, known.ship, known.owner)).prefix):
        job.may_commit = True
        await _abandon(job, ship)


async def _abandon(job: Delivery, ship: Ship) -> None:
    """Delete what a ship that will never be committed has sent, unless the head names it after all.

    The journal knows a ship before its record is written. When the record turns out to be somebody else's, nothing
    below that prefix is ours to delete. Where gc was first, what we sent after it had looked is left, and no other
    gc would find it without the record.
    """
    for upload in await in_thread(job.journal.uploads, job.scope, job.of.name):
        await job.store.abort_upload(upload.key, upload.upload_id)
    await in_thread(job.journal.forget_uploads, job.scope, job.of.name)
    await withdraw(job.store, ship, job.rng, may_commit=job.may_commit)
    await in_thread(job.journal.end_ship, job.scope, job.of.name)


async def _note_done(job: Delivery, head: Head, *, is_new: bool) -> Shipped:
    done = Done(job.state, head.epoch, head.prefix, head.manifest, "shipped")
    await in_thread(job.journal.record_done, job.scope, job.of.name, done, job.local)
    seconds = anyio.current_time() - job.started
    shipped = Shipped(
        job.of.job_id, job.of.name, head.epoch, head.prefix, job.local.total_bytes, job.sent_bytes, seconds, is_new
    )
    if is_new:
        job.tell(
            Committed(job.of.job_id, job.of.name, head.epoch, head.prefix, shipped.total_bytes, job.sent_bytes, seconds)
        )
    else:
        job.tell(AlreadyThere(job.of.job_id, job.of.name, head.epoch))
    return shipped


class _Log:
    """The journal as one ship's upload log; what it held at the beginning is read once."""

    def __init__(self, job: Delivery, ship: Ship, sent: dict[str, str], uploads: Sequence[StoredUpload]) -> None:
        self._job, self._ship = job, ship
        self._where = (job.scope, job.of.name)
        self._sent = sent
        self._open = {upload.key: upload for upload in uploads}
        self._unwritten: list[Sent] = []
        self._writing = anyio.Lock()

    @classmethod
    async def of(cls, job: Delivery, ship: Ship) -> _Log:
        sent = await in_thread(job.journal.sent_entries, job.scope, job.of.name, ship.ship)
        return cls(job, ship, sent, await in_thread(job.journal.uploads, job.scope, job.of.name))

    async def sent_file(self, file: LocalFile) -> FileEntry | None:
        text = self._sent.get(file.path)
        entry = _entry_from(text) if text else None
        if entry is not None and self._job.is_pinned:
            return entry if (await _local_digest(self._job, file, entry))[0] == entry.digest else None
        return entry

    async def record_sent(self, sent: Sequence[tuple[LocalFile, FileEntry]]) -> None:
        self._unwritten.extend(self._sent_row(file, entry) for file, entry in sent)
        async with self._writing:  # whoever has its turn writes for all who wait
            batch, self._unwritten = self._unwritten, []
            if batch:
                await in_thread(self._job.journal.record_sent, *self._where, self._ship.ship, batch)

    def _sent_row(self, file: LocalFile, entry: FileEntry) -> Sent:
        text = json.dumps(entry.to_fields())
        path = self._job.local.folder / file.path
        joined = f"{self._ship.prefix}/{file.key}" if entry.parts else None
        return Sent(file.path, text, path, file.identity, entry.part_size, entry.digest, tuple(entry.parts), joined)

    async def open_file(self, file: LocalFile) -> OpenFile | None:
        stored = self._open.get(f"{self._ship.prefix}/{file.key}")
        if stored is None:
            return None
        parts = tuple(SentPart(Part(p.number, p.etag, p.size, p.check), p.digest) for p in stored.parts)
        return OpenFile(stored.key, stored.upload_id, stored.part_size, parts)

    async def record_open(self, file: LocalFile, upload: OpenFile) -> None:
        await in_thread(self._job.journal.record_upload, *self._where, upload.key, upload.upload_id, upload.part_size)

    async def record_part(self, key: str, sent: SentPart) -> None:
        part = StoredPart(sent.part.number, sent.part.etag, sent.part.size, sent.digest, sent.part.check)
        await in_thread(self._job.journal.record_part, *self._where, key, part)

    async def forget_open(self, key: str) -> None:
        self._open.pop(key, None)
        await in_thread(self._job.journal.forget_upload, *self._where, key)


def _entry_from(text: str) -> FileEntry:
    fields = json.loads(text)
    return FileEntry(
        fields["path"], fields["size"], fields["digest"], fields["etag"], fields["part_size"],
        tuple(fields.get("parts", ())), fields.get("key"),
    )  # fmt: skip
