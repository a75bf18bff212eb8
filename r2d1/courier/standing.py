"""Where the checkpoints of all watched directories stand, by label: ``<job>/<name>`` and why."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from r2d1.courier.folder import UNFINISHED, Entry, Folder, Phase
from r2d1.errors import FlushError


def names(folders: Sequence[Folder], *phases: Phase) -> tuple[str, ...]:
    return tuple(folder.label(entry) for folder, entry in _entries(folders, phases))


def whys(folders: Sequence[Folder], *phases: Phase) -> dict[str, str]:
    return {folder.label(entry): entry.why or f"still {entry.phase}" for folder, entry in _entries(folders, phases)}


def tried_before(folders: Sequence[Folder]) -> dict[str, str]:
    """Why what is queued or in flight was not taken the last time, be it by a courier before this one."""
    tried = _entries(folders, (Phase.QUEUED, Phase.SHIPPING))
    return {folder.label(e): str(why) for folder, e in tried if (why := folder.parked.get(e.name)) is not None}


def troubles(folders: Sequence[Folder]) -> dict[str, str]:
    """The directories that cannot be followed."""
    return {f"{folder.job_id}/ in {folder.path}": folder.trouble for folder in folders if folder.trouble}


def unfinished(folders: Sequence[Folder]) -> dict[str, str]:
    """What a flush waits for."""
    now = anyio.current_time()
    stale = {
        folder.label(entry): entry.why
        for folder, entry in _entries(folders, (Phase.STALE,))
        if now < entry.since + folder.options.settle_timeout
    }
    return {**whys(folders, *UNFINISHED), **stale}


def failed(folders: Sequence[Folder]) -> dict[str, str]:
    """What a flush tells of when it has waited."""
    stale = {} if unfinished(folders) else whys(folders, Phase.STALE)
    return {**troubles(folders), **whys(folders, Phase.FAILED, Phase.PARKED), **stale}


def flush_error(folders: Sequence[Folder], what: str, kind: type[FlushError]) -> FlushError:
    """An error that names everything that is not in the bucket."""
    bad, left = failed(folders), unfinished(folders)
    lines = [f"{name} failed: {why}" for name, why in bad.items()]
    lines += [f"{name} unfinished: {why}" for name, why in left.items()]
    return kind("\n  ".join([what, *lines]), failed=tuple(bad), unfinished=tuple(left))


def _entries(folders: Sequence[Folder], phases: Sequence[Phase]) -> list[tuple[Folder, Entry]]:
    return [(f, entry) for f in folders for entry in f.entries.values() if entry.phase in phases]
