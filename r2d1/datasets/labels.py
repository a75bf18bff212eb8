"""Publishing labels: every file of a directory at its relative path, then the index that names them all, last."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from r2d1.datasets.background import run_to_end
from r2d1.datasets.fields import DocumentError, Fields, load_object
from r2d1.datasets.label_files import INDEX_NAME, FileHash, HashJournal, LabelFile, list_label_files
from r2d1.datasets.large_files import send_in_parts
from r2d1.datasets.layout import MANIFEST_NAME
from r2d1.datasets.manifest import dump_json, parse_manifest
from r2d1.datasets.moving import Moved
from r2d1.datasets.open_uploads import give_up_left
from r2d1.datasets.sending import (
    BINARY,
    JSON,
    NO_CACHE,
    Conflict,
    HashedFile,
    Placing,
    State,
    attributes_of,
    checked_prefix,
    join_key,
    opened_store,
    state_of,
)
from r2d1.datasets.unit_source import MAX_MANIFEST
from r2d1.datasets.workers import OnProgress
from r2d1.errors import ConfigError, ObjectNotFound
from r2d1.events import Observer, Teller
from r2d1.objects import ObjectStore
from r2d1.setting_rules import MAX_PART_SIZE
from r2d1.settings import Settings
from r2d1.tasks import acquired, in_thread, run_bounded

#: Most bytes of an earlier index that are read.
_MAX_INDEX = 512 << 20


@dataclass(frozen=True, slots=True)
class LabelsReport:
    """What a publication of labels did. Counts are of files, sizes in bytes.

    ``removed`` are the paths that the index before named and this one does not; their objects stay.
    ``hashed_bytes`` is what was read to learn hashes that the journal did not know.
    """

    where: str
    prefix: str
    files: int
    sent: int
    present: int
    sent_bytes: int
    hashed_bytes: int
    removed: tuple[str, ...]


@dataclass(slots=True)
class _Run:
    """A publication under way. ``multipart_above`` in bytes: what one PUT takes at most."""

    placing: Placing
    prefix: str
    journal: HashJournal
    concurrency: int
    multipart_above: int
    moved: Moved
    entries: dict[str, dict[str, object]] = field(default_factory=dict)
    sent: int = 0
    sent_bytes: int = 0
    hashed_bytes: int = 0

    async def file(self, file: LabelFile) -> None:
        sha256 = await self._sha256(file)
        key, size = join_key(self.prefix, file.path), file.identity.size
        if await state_of(self.placing.store, key, size=size, sha256=sha256) is not State.SAME:
            await self._send(key, file, sha256)
            self.sent += 1
            self.sent_bytes += size
        self.entries[file.path] = {"size": size, "sha256": sha256}
        self.moved.done(key, size)

    async def _sha256(self, file: LabelFile) -> str:
        known = await in_thread(self.journal.known, file)
        if known is not None:
            return known
        hashing = FileHash(file)
        while (found := await in_thread(hashing.step)) is None:
            pass
        self.hashed_bytes += file.identity.size
        await in_thread(self.journal.record, file, found)
        return found

    async def _send(self, key: str, file: LabelFile, sha256: str) -> None:
        kind = JSON if file.path.endswith(".json") else BINARY
        attributes = attributes_of(sha256, content_type=kind, cache_control=NO_CACHE)
        size, store, moved = file.identity.size, self.placing.store, partial(self.moved.at, key)
        if size > self.multipart_above:
            await send_in_parts(
                store,
                key,
                file,
                attributes,
                concurrency=self.concurrency,
                tell=self.placing.tell,
                moved=moved,
                uploads=self.journal.uploads,
            )
        else:
            source = HashedFile(file.source, size, sha256, moved)
            await store.put(key, source, attributes=attributes, signed_sha256=sha256)


async def publish_labels_async(
    directory: str | os.PathLike[str],
    settings: Settings,
    *,
    prefix: str,
    hidden: bool = False,
    store: ObjectStore | None = None,
    observer: Observer | None = None,
    on_progress: OnProgress | None = None,
    multipart_above: int = MAX_PART_SIZE,
) -> LabelsReport:
    """Publish every file of ``directory`` below ``prefix``, then ``labels-index.json`` with sizes and hashes.

    Files that the bucket has already (size and hash) are not sent, and what did not change since an earlier run is
    not even read: the hashes are kept in ``<directory>/.r2d1/labels.db``. Files above ``multipart_above`` bytes go
    in parts. The index is written last, and only when it differs, so readers of the index see the old or the new.
    A directory that holds ``.env``, ``.git`` and the like is published with ``hidden`` only.

    At most ``settings.in_flight`` files are under way. Before anything is sent, ``ConfigError`` for hidden files and
    for settings or a prefix that will not do, ``Conflict`` for a prefix that holds a shard set. ``FormatError`` for
    what cannot be published or changed meanwhile, ``RemoteError`` when the store refuses or fails.
    """
    tell = Teller(observer)
    below = checked_prefix(prefix)
    root = Path(directory)
    files = await in_thread(partial(list_label_files, root, hidden=hidden))
    if not files:
        raise ConfigError(f"{root} holds no file to publish")
    for file in files:
        join_key(below, file.path)  # one that will not do shows now
    moved = Moved("publish labels", sum(file.identity.size for file in files), on_progress)
    async with (
        opened_store(settings, store, tell) as bucket,
        acquired(HashJournal, HashJournal.close, root) as journal,
        moved.telling(),
    ):
        before = await _index_before(bucket, join_key(below, INDEX_NAME), tell)
        await _require_no_set(bucket, join_key(below, MANIFEST_NAME), before)
        await give_up_left(bucket, journal.path.parent, tell)
        run = _Run(Placing(bucket, tell), below, journal, settings.in_flight, multipart_above, moved)
        await run_bounded(settings.in_flight, run.file, files)
        await _place_index(run)
        return LabelsReport(
            where=bucket.where,
            prefix=below,
            files=len(files),
            sent=run.sent,
            present=len(files) - run.sent,
            sent_bytes=run.sent_bytes,
            hashed_bytes=run.hashed_bytes,
            removed=tuple(sorted(set(before) - set(run.entries))),
        )


def publish_labels(
    directory: str | os.PathLike[str],
    settings: Settings,
    *,
    prefix: str,
    hidden: bool = False,
    store: ObjectStore | None = None,
    observer: Observer | None = None,
    on_progress: OnProgress | None = None,
    multipart_above: int = MAX_PART_SIZE,
) -> LabelsReport:
    """``publish_labels_async`` for blocking callers; observer and progress are called on a thread of its own."""
    return run_to_end(
        lambda: publish_labels_async(
            directory,
            settings,
            prefix=prefix,
            hidden=hidden,
            store=store,
            observer=observer,
            on_progress=on_progress,
            multipart_above=multipart_above,
        )
    )


async def _index_before(store: ObjectStore, key: str, tell: Teller) -> Mapping[str, object]:
    """What the index names that is there now; nothing when there is none, or none that can be read."""
    try:
        data, _ = await store.get(key, limit=_MAX_INDEX)
        return parse_index(data, key)
    except ObjectNotFound:
        return {}
    except DocumentError as error:
        tell.notice("warning", f"the index that is there is replaced, and what it named is not known: {error}")
        return {}


async def _require_no_set(store: ObjectStore, key: str, before: Mapping[str, object]) -> None:
    """Raise ``Conflict`` where a shard set is published. Labels may well have a file of its manifest's name."""
    if MANIFEST_NAME in before:
        return
    try:
        data, _ = await store.get(key, limit=MAX_MANIFEST)
        await in_thread(parse_manifest, data, key)
    except (ObjectNotFound, DocumentError):
        return
    raise Conflict(
        f"{key}: a shard set is published there; labels among its keys could not be told from it, and nothing was"
        " sent. Publish them below a prefix of their own"
    )


async def _place_index(run: _Run) -> None:
    data = await in_thread(_dump, run.entries)
    await run.placing.place_document(join_key(run.prefix, INDEX_NAME), data)


def _dump(entries: Mapping[str, object]) -> bytes:
    return dump_json(entries, indent=1)


def parse_index(data: bytes, document: str = INDEX_NAME) -> dict[str, tuple[int, str]]:
    """``{path: (size, sha256)}`` of a ``labels-index.json``; ``DocumentError`` names every malformed entry."""
    fields = Fields(document, load_object(data, document))
    found: dict[str, tuple[int, str]] = {}
    for path in fields.value:
        entry = fields.child(path)
        entry.only(("size", "sha256"))
        found[path] = (entry.integer("size"), entry.hexadecimal("sha256"))
    fields.finish()
    return found
