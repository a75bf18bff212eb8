"""Room on the disk: local checkpoints deleted once the bucket has proven to hold them (``keep_local``)."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from r2d1.checkpoint import inspect, sidecar_path
from r2d1.courier.folder import Entry, Folder, Phase
from r2d1.errors import CheckpointError, FormatError, NameRefused
from r2d1.heads import read_head, read_manifest
from r2d1.journal import Done, Journal, state_of
from r2d1.keys import CheckpointKeys
from r2d1.placing import remove_tree, state_dir
from r2d1.tasks import in_thread


async def make_room(folder: Folder, keep: int) -> list[str]:
    """Delete all but the newest ``keep`` shipped checkpoints of a directory; returns the names deleted.

    One goes only after its head and manifest were read back from the bucket, and never when it was pulled to
    resume from, or changed since it was shipped.
    """
    journal = folder.journal
    if journal is None:
        return []
    done = await in_thread(journal.all_done, folder.scope)
    here = [entry for entry in folder.entries.values() if entry.phase is Phase.DONE and entry.name in done]
    here.sort(key=lambda entry: done[entry.name].epoch, reverse=True)
    gone = []
    for entry in here[keep:]:
        record = done[entry.name]
        if record.origin == "shipped" and await _is_safe(folder, entry, record):
            await in_thread(_delete, folder.path, entry.stem, journal)
            folder.entries.pop(entry.stem, None)
            gone.append(entry.name)
    return gone


async def _is_safe(folder: Folder, entry: Entry, record: Done) -> bool:
    of = CheckpointKeys(folder.job_id, entry.name)
    stored = await read_head(folder.lane.store, of)
    if stored is None or stored.value.deleted or stored.value.prefix != record.prefix:
        return False
    if await read_manifest(folder.lane.store, of, stored.value) is None:
        return False
    try:
        local = await in_thread(inspect, folder.path / entry.stem)
    except (CheckpointError, FormatError, NameRefused):
        return False
    return state_of(local) == record.state


def _delete(directory: Path, stem: str, journal: Journal) -> None:
    """The sidecar first, so that nobody takes a folder half deleted for a checkpoint."""
    folder = directory / stem
    aside = state_dir(directory) / f"trash-{secrets.token_hex(6)}"
    sidecar_path(folder).unlink(missing_ok=True)
    os.rename(folder, aside)
    remove_tree(aside)
    journal.forget_digests(folder)
