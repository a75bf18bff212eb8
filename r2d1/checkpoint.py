"""A local checkpoint as it lies on disk: what would be shipped, and whether it may be shipped now (formats §3)."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from r2d1 import keys
from r2d1.errors import CheckpointError, FormatError
from r2d1.sidecar import MAX_SIDECAR_BYTES, Listed, Sidecar, is_temporary, parse_sidecar


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one state of a file from another without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, info: os.stat_result) -> Identity:
        return cls(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to ship: ``path`` as the manifest names it, ``key`` relative to the ship's prefix."""

    path: str
    key: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """One state of a checkpoint on disk: its files' identities and its sidecar's bytes."""

    folder: Path
    sidecar: Sidecar
    sidecar_identity: Identity
    files: tuple[LocalFile, ...]
    folders: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        return self.sidecar.name

    @property
    def total_bytes(self) -> int:
        return sum(file.identity.size for file in self.files)

    def is_same_state(self, other: LocalCheckpoint) -> bool:
        """Whether nothing changed in between: every identity and every byte of the sidecar."""
        return self.files == other.files and self.sidecar.raw == other.sidecar.raw


@dataclass(frozen=True, slots=True)
class Ready:
    """It may be shipped now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """It may become complete: look again; ``is_stale`` when only another sidecar can help."""

    reason: str
    is_stale: bool = False


def sidecar_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.json")


def read_sidecar(folder: Path) -> tuple[Sidecar, Identity]:
    """Read ``<folder>.json``. ``CheckpointError`` when it is gone, ``FormatError`` when it does not parse (yet)."""
    path = sidecar_path(folder)
    try:
        with open(path, "rb") as file:
            info = os.fstat(file.fileno())
            if info.st_size > MAX_SIDECAR_BYTES:
                raise CheckpointError(f"{path}: the sidecar is larger than {MAX_SIDECAR_BYTES} bytes")
            raw = file.read(MAX_SIDECAR_BYTES + 1)
    except OSError as exc:
        raise CheckpointError(f"{path}: the sidecar cannot be read: {exc.strerror}") from exc
    try:
        sidecar = parse_sidecar(raw, stem=folder.name, mtime=info.st_mtime)
    except FormatError as exc:
        raise FormatError(f"{path}: {exc}") from exc
    return sidecar, Identity.of(info)


def inspect(folder: Path) -> LocalCheckpoint:
    """Look at a checkpoint: read its sidecar, walk its folder, stat every file. Blocks; reads no file's bytes.

    ``CheckpointError`` when it can never be shipped as it is (a link that leaves the folder, a FIFO, an
    unreadable folder), ``FormatError`` when the sidecar does not parse, ``NameRefused`` for a bad name.
    """
    sidecar, identity = read_sidecar(folder)
    keys.check_name(sidecar.name)
    found = _Walk(folder, sidecar)
    files = sorted(found.files, key=lambda file: file.path.encode())
    warnings = keys.check_paths(file.path for file in files)
    return LocalCheckpoint(
        folder=folder,
        sidecar=sidecar,
        sidecar_identity=identity,
        files=tuple(files),
        folders=frozenset(found.folders),
        left_out=tuple(sorted(found.left_out)),
        warnings=(*sidecar.warnings, *warnings),
    )


class _Walk:
    """One walk over a checkpoint folder, sorting what it meets into files, folders and what is left out."""

    def __init__(self, folder: Path, sidecar: Sidecar) -> None:
        self.files: list[LocalFile] = []
        self.folders: list[str] = []
        self.left_out: list[str] = []
        self._root = os.path.realpath(folder)
        self._folder = folder
        self._sidecar = sidecar
        self._named = {listed.path for listed in sidecar.files or ()}
        if not os.path.isdir(folder):
            raise CheckpointError(f"{folder}: the sidecar is there, the folder is not")
        self._enter(os.fspath(folder), "")

    def _enter(self, directory: str, base: str) -> None:
        try:
            entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
        except OSError as exc:
            raise CheckpointError(f"{directory}: cannot be listed: {exc.strerror}") from exc
        for entry in entries:
            path = f"{base}{entry.name}"
            keys.check_path(path)
            if path == keys.STATE_DIR:
                self.left_out.append(path)  # r2d1's own state, should somebody have pulled into the folder
            elif entry.is_dir(follow_symlinks=False):
                self.folders.append(path)
                self._enter(entry.path, f"{path}/")
            else:
                self._meet(entry, path)

    def _meet(self, entry: os.DirEntry[str], path: str) -> None:
        try:
            info = self._stat_link(entry, path) if entry.is_symlink() else entry.stat(follow_symlinks=False)
        except OSError as exc:
            raise CheckpointError(f"{entry.path}: {exc.strerror}") from exc
        if stat.S_ISDIR(info.st_mode):
            self.left_out.append(path)
        elif not stat.S_ISREG(info.st_mode):
            raise CheckpointError(f"{entry.path}: neither a file nor a folder (a FIFO, socket or device?)")
        elif is_temporary(path) and not self._is_named(path):
            self.left_out.append(path)
        else:
            self._add(path, entry.path, Identity.of(info))

    def _stat_link(self, entry: os.DirEntry[str], path: str) -> os.stat_result:
        target = os.path.realpath(entry.path)
        if os.path.commonpath([self._root, target]) != self._root:
            raise CheckpointError(f"{entry.path}: the link leaves the checkpoint folder; copy the file instead")
        if not os.path.lexists(target):
            raise CheckpointError(f"{entry.path}: the link is broken")
        return os.stat(target)

    def _is_named(self, path: str) -> bool:
        return path in self._named or any(parent in self._named for parent in keys.parents(path))

    def _add(self, path: str, full: str, identity: Identity) -> None:
        if path == keys.MANIFEST_NAME:
            return
        key = keys.nfc(path)
        if path == f"{self._sidecar.name}.json":
            if identity.size == len(self._sidecar.raw) and Path(full).read_bytes() == self._sidecar.raw:
                return
            key = keys.CheckpointKeys("", self._sidecar.name).moved_sidecar()
        self.files.append(LocalFile(path, key, identity))


def judge(local: LocalCheckpoint, sha256: Mapping[str, str], *, ordered: bool = True) -> Ready | Wait:
    """Decide by formats §3 whether a checkpoint may be shipped now. Pure.

    ``sha256`` holds the digests of the files for which the sidecar states one (and whose size fits).
    """
    listed = local.sidecar.files
    by_path = {keys.nfc(file.path): file for file in local.files}
    for entry in listed or ():
        if why := _why_not_there(entry, local, by_path, sha256):
            return Wait(why)
    if not local.files and listed != ():
        return Wait("the folder holds no file to ship")
    newer = newest_after_sidecar(local)
    if not ordered or newer is None:
        return Ready()
    if listed and all(entry.is_exact for entry in listed) and len(listed) == len(local.files):
        return Ready()
    return Wait(f"{newer!a} is newer than the sidecar: the next version is being written", is_stale=True)


def newest_after_sidecar(local: LocalCheckpoint) -> str | None:
    """The path of a file modified after the sidecar, if there is one."""
    limit = local.sidecar_identity.mtime_ns
    return next((file.path for file in local.files if file.identity.mtime_ns > limit), None)


def _why_not_there(
    entry: Listed, local: LocalCheckpoint, by_path: Mapping[str, LocalFile], sha256: Mapping[str, str]
) -> str | None:
    path = keys.nfc(entry.path)
    file = by_path.get(path)
    if file is None:
        is_there = path in local.folders or _is_left_out(entry.path, local)
        return None if is_there else f"the sidecar lists {keys.shown(entry.path)}, which is not there"
    if entry.size is not None and file.identity.size != entry.size:
        return f"{keys.shown(entry.path)} has {file.identity.size} bytes, the sidecar says {entry.size}"
    if entry.sha256 is not None and sha256.get(file.path) != entry.sha256:
        return f"{keys.shown(entry.path)} has another SHA-256 than the sidecar says"
    return None


def _is_left_out(path: str, local: LocalCheckpoint) -> bool:
    """Whether a listed file is there but left out on purpose."""
    return path in local.left_out or path in (keys.MANIFEST_NAME, f"{local.name}.json")
