"""Room on the disk: local checkpoints deleted once the bucket has proven to hold them (``keep_local``)."""

from __future__ import annotations

import math
from functools import partial

import anyio

from r2d1.checkpoint import inspect
from r2d1.courier.deleting import delete
from r2d1.courier.folder import Entry, Folder, Phase
from r2d1.errors import CheckpointError, FormatError, NameRefused, R2D1Error
from r2d1.heads import has_objects, read_head, read_manifest
from r2d1.journal import Done, state_of
from r2d1.keys import CheckpointKeys
from r2d1.placing import locked
from r2d1.tasks import in_thread

#: Seconds to wait for a pull of the checkpoint that is to be deleted.
_PULL_PATIENCE_S = 0.5


async def keep_room(folder: Folder, keep: int) -> None:
    """Make room whenever something was shipped, for ever; a store that fails is asked again after a while."""
    pause = math.inf
    while True:
        with anyio.move_on_after(pause):
            await folder.crowd.wait()
        folder.crowd, pause = anyio.Event(), math.inf
        try:
            gone = await make_room(folder, keep)
        except (R2D1Error, OSError) as exc:
            pause = folder.options.poll_every
            folder.tell.notice("warning", f"{folder.path}: no room was made, trying again later: {exc}")
        else:
            if gone:
                folder.tell.notice("info", f"{folder.path}: deleted after shipping: {', '.join(gone)}")
        folder.is_crowded = folder.crowd.is_set()
        folder.changed()


async def make_room(folder: Folder, keep: int) -> list[str]:
    """Delete all but the newest ``keep`` shipped checkpoints of a directory; returns the names deleted.

    One goes only after its head and manifest were read back from the bucket and every object was seen there, and
    never when it was pulled to resume from, or changed since it was shipped.
    """
    journal = folder.journal
    if journal is None:
        return []
    done = await in_thread(journal.all_done, folder.scope)
    here = [entry for entry in folder.entries.values() if entry.phase is Phase.DONE and entry.name in done]
    here.sort(key=lambda entry: done[entry.name].epoch, reverse=True)
    folder.kept = {entry.name: folder.kept[entry.name] for entry in here if entry.name in folder.kept}
    gone = []
    for entry in here[keep:]:
        record = done[entry.name]
        if record.origin != "shipped" or folder.kept.get(entry.name) == record.state:
            continue
        if not await _is_proven(folder, entry, record):
            folder.kept[entry.name] = record.state
            folder.tell.notice(
                "warning", f"{folder.path / entry.stem}: kept on the disk: the bucket does not hold it whole any more"
            )
        elif await _delete(folder, entry, record):
            gone.append(entry.name)
    return gone


async def _is_proven(folder: Folder, entry: Entry, record: Done) -> bool:
    store, of = folder.lane.store, CheckpointKeys(folder.job_id, entry.name)
    stored = await read_head(store, of)
    if stored is None or stored.value.deleted or stored.value.prefix != record.prefix:
        return False
    manifest = await read_manifest(store, of, stored.value)
    return manifest is not None and await has_objects(store, of, record.prefix, manifest, etags=True)


async def _delete(folder: Folder, entry: Entry, record: Done) -> bool:
    """No scan may see it half gone, and nobody may take it to resume from in the last moment."""
    journal, path = folder.journal, folder.path / entry.stem
    try:
        async with locked(folder.path, f"pull-{entry.name}", patience=_PULL_PATIENCE_S) as lock, folder.scanning:
            is_same = folder.entries.get(entry.stem) is entry and entry.phase is Phase.DONE
            if not is_same or journal is None or await in_thread(journal.done, folder.scope, entry.name) != record:
                return False
            local = await in_thread(inspect, path)
            if state_of(local) != record.state or not await in_thread(delete, folder.path, local):
                return False
            del folder.entries[entry.stem]
            await in_thread(partial(lock.unlink, missing_ok=True))  # one of each would stay for ever
            await in_thread(journal.forget_digests, path)
    except (TimeoutError, CheckpointError, FormatError, NameRefused):
        return False  # it is being pulled, or written anew
    return True
