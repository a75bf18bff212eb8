"""What a pull found and where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class FetchInfo:
    """The result of ``pull``.

    Attributes:
        local_dir: the folder with the files (``dest`` itself when nothing was found, or for a prefix).
        source: the URI that was asked for.
        found: False when nothing is there: a fresh start, never a failure.
        cached: True when everything was on disk already and matched.
        epoch: the checkpoint's epoch; None for a prefix.
        size_mb: bytes of all files in units of 2**20.
        name: the checkpoint's name, so that other ranks can pull it by name.
        manifest: digest of the manifest that was verified against, None when there is none.
        verified: True when every byte was checked against a digest (False for prefixes and 0.2's checkpoints).
        timestamp, metadata: what the sidecar says.
        why: why nothing was found, where more is known than that: the checkpoint was deleted (and which one is newest
            now), is still being shipped, or the URI begins with the bucket's name.
    """

    local_dir: Path
    source: str
    found: bool = True
    cached: bool = False
    epoch: int | None = None
    size_mb: float = 0.0
    name: str | None = None
    manifest: str | None = None
    verified: bool = False
    timestamp: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
