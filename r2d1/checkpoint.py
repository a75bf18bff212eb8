"""A local checkpoint as it lies on disk: what would be shipped, and whether it may be shipped now (formats §3)."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from r2d1 import keys
from r2d1.errors import CheckpointError, FormatError
from r2d1.manifest import MAX_FILE_BYTES, MAX_FILES
from r2d1.sidecar import MAX_SIDECAR_BYTES, Listed, Sidecar, is_temporary, parse_sidecar


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one state of a file from another without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    links: int = field(default=0, compare=False)

    @classmethod
    def of(cls, info: os.stat_result) -> Identity:
        return cls(info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_nlink)

    def is_like(self, other: Identity) -> bool:
        """Whether they differ in ctime at most, which a new mode, owner or link moves as well as new bytes."""
        return (self.size, self.mtime_ns, self.inode) == (other.size, other.mtime_ns, other.inode)

    def is_before_unlinking(self, now: Identity) -> bool:
        """Whether ``now`` is the same file, untouched but for links to it that were taken away."""
        return self == now or (self.is_like(now) and now.links < self.links)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to ship: ``path`` as the manifest names it, ``key`` relative to the ship's prefix."""

    path: str
    key: str
    identity: Identity


@dataclass(frozen=True, slots=True)
class LocalCheckpoint:
    """One state of a checkpoint on disk: its files' identities and its sidecar's bytes.

    ``left_out`` are paths that are listed as left out in the manifest, ``leftovers`` those of an earlier pull,
    which nobody needs to know of (formats §2).
    """

    folder: Path
    sidecar: Sidecar
    sidecar_identity: Identity
    files: tuple[LocalFile, ...]
    folders: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()
    leftovers: frozenset[str] = frozenset()
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

    def doubtful_in(self, now: LocalCheckpoint) -> list[LocalFile] | None:
        """The files whose bytes only hashing can tell to be the same; None when something did change."""
        mine, theirs = ([(file.path, file.key) for file in one.files] for one in (self, now))
        if mine != theirs or self.sidecar.raw != now.sidecar.raw:
            return None
        pairs = list(zip(self.files, now.files, strict=True))
        if not all(before.identity.is_like(after.identity) for before, after in pairs):
            return None
        return [after for before, after in pairs if before != after]


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
        with open(path, "rb", opener=_open_at_once) as file:
            info = os.fstat(file.fileno())
            raw = file.read(MAX_SIDECAR_BYTES + 1) if stat.S_ISREG(info.st_mode) else None
    except OSError as exc:
        raise CheckpointError(f"{path}: the sidecar cannot be read: {exc.strerror}") from exc
    if raw is None:
        raise CheckpointError(f"{path}: the sidecar is no regular file")
    if len(raw) > MAX_SIDECAR_BYTES:
        raise CheckpointError(f"{path}: the sidecar is larger than {MAX_SIDECAR_BYTES} bytes")
    try:
        sidecar = parse_sidecar(raw, stem=folder.name, mtime=info.st_mtime)
    except FormatError as exc:
        raise FormatError(f"{path}: {exc}") from exc
    return sidecar, Identity.of(info)


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for somebody at the other end of what may be a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def inspect(folder: Path) -> LocalCheckpoint:
    """Look at a checkpoint: read its sidecar, walk its folder, stat every file. Blocks; reads no file's bytes.

    ``CheckpointError`` when it can never be shipped as it is (a link that leaves the folder, a FIFO, an
    unreadable folder, more or larger files than a manifest holds), ``FormatError`` when the sidecar does not
    parse, ``NameRefused`` for a bad name.
    """
    return inspect_as(folder, *read_sidecar(folder))


def inspect_as(folder: Path, sidecar: Sidecar, identity: Identity) -> LocalCheckpoint:
    """``inspect`` with a sidecar that need not lie on disk (yet)."""
    keys.check_name(sidecar.name)
    found = _Walk(folder, sidecar)
    files = sorted(found.files, key=lambda file: file.path.encode())
    _check_limits(folder, files)
    warnings = keys.check_paths(file.path for file in files)
    return LocalCheckpoint(
        folder=folder,
        sidecar=sidecar,
        sidecar_identity=identity,
        files=tuple(files),
        folders=frozenset(found.folders),
        left_out=tuple(sorted(found.left_out)),
        leftovers=frozenset(found.leftovers),
        warnings=(*sidecar.warnings, *warnings),
    )


def _check_limits(folder: Path, files: Sequence[LocalFile]) -> None:
    if len(files) > MAX_FILES:
        raise CheckpointError(f"{folder}: {len(files):,} files; a checkpoint holds at most {MAX_FILES:,}")
    for file in files:
        if file.identity.size > MAX_FILE_BYTES:
            raise CheckpointError(f"{folder / file.path}: larger than {MAX_FILE_BYTES:,} bytes, R2's limit")


class _Walk:
    """One walk over a checkpoint folder, sorting what it meets into files, folders and what is left out."""

    def __init__(self, folder: Path, sidecar: Sidecar) -> None:
        self.files: list[LocalFile] = []
        self.folders: list[str] = []
        self.left_out: list[str] = []
        self.leftovers: list[str] = []
        self._root = os.path.realpath(folder)
        self._folder = folder
        self._sidecar = sidecar
        self._named = {keys.nfc(listed.path) for listed in sidecar.files or ()}
        if not os.path.isdir(folder):
            raise CheckpointError(f"{folder}: the sidecar is there, the folder is not")
        self._enter(os.fspath(folder), "")

    def _enter(self, directory: str, base: str) -> None:
        try:
            with os.scandir(directory) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
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
            info = self._stat_link(entry) if entry.is_symlink() else entry.stat(follow_symlinks=False)
            is_leftover = self._is_leftover(entry, path, info)
        except OSError as exc:
            raise CheckpointError(f"{entry.path}: cannot be read: {exc.strerror}") from exc
        if stat.S_ISDIR(info.st_mode):
            self.left_out.append(path)
        elif not stat.S_ISREG(info.st_mode):
            raise CheckpointError(f"{entry.path}: neither a file nor a folder (a FIFO, socket or device?)")
        elif is_temporary(path) and not self._is_named(path):
            self.left_out.append(path)
        elif is_leftover:
            self.leftovers.append(path)
        else:
            self.files.append(LocalFile(path, self._key(path), Identity.of(info)))

    def _stat_link(self, entry: os.DirEntry[str]) -> os.stat_result:
        target = os.path.realpath(entry.path)
        if os.path.commonpath([self._root, target]) != self._root:
            raise CheckpointError(f"{entry.path}: the link leaves the checkpoint folder; copy the file instead")
        if not os.path.lexists(target):
            raise CheckpointError(f"{entry.path}: the link is broken")
        return os.stat(target)

    def _is_named(self, path: str) -> bool:
        """Whether the sidecar names a temporary: itself, or the temporary folder that it is whole in."""
        path = keys.nfc(path)
        return path in self._named or any(
            parent in self._named and not is_temporary(path[len(parent) + 1 :]) for parent in keys.parents(path)
        )

    def _is_leftover(self, entry: os.DirEntry[str], path: str, info: os.stat_result) -> bool:
        """Whether a pull of the 0.2 line left this file here: its manifest, or a copy of the sidecar."""
        raw = self._sidecar.raw
        if path != f"{self._sidecar.name}.json" or info.st_size != len(raw) or not stat.S_ISREG(info.st_mode):
            return path == keys.MANIFEST_NAME
        with open(entry.path, "rb", opener=_open_at_once) as file:
            return file.read(len(raw) + 1) == raw

    def _key(self, path: str) -> str:
        if path == f"{self._sidecar.name}.json":
            return keys.CheckpointKeys("", self._sidecar.name).moved_sidecar()
        return keys.nfc(path)


def judge(local: LocalCheckpoint, sha256: Mapping[str, str], *, ordered: bool = True) -> Ready | Wait:
    """Decide by formats §3 whether a checkpoint may be shipped now. Pure.

    ``sha256`` holds the digests of the files for which the sidecar states one (and whose size fits).
    """
    listed = local.sidecar.files
    there: dict[str, LocalFile | None] = dict.fromkeys(
        map(keys.nfc, (*local.folders, *local.left_out, *local.leftovers))
    )
    there |= {keys.nfc(file.path): file for file in local.files}
    for entry in listed or ():
        if why := _why_not_there(entry, there, sha256):
            return Wait(why)
    if not local.files and listed != ():
        return Wait("the folder holds no file to ship")
    newer = _newer_than_sidecar(local) if ordered else []
    if newer and listed and all(entry.is_exact for entry in listed):
        proven = {keys.nfc(entry.path) for entry in listed}  # they agree, or we were not here
        newer = [path for path in newer if keys.nfc(path) not in proven]
    if not newer:
        return Ready()
    return Wait(f"{newer[0]!a} is newer than the sidecar: the next version is being written", is_stale=True)


def _newer_than_sidecar(local: LocalCheckpoint) -> list[str]:
    limit = local.sidecar_identity.mtime_ns
    return [file.path for file in local.files if file.identity.mtime_ns > limit]


def _why_not_there(entry: Listed, there: Mapping[str, LocalFile | None], sha256: Mapping[str, str]) -> str | None:
    """``there`` maps every path to its file, or to None where it is a folder or left out on purpose."""
    path = keys.nfc(entry.path)
    if path not in there:
        return f"the sidecar lists {keys.shown(entry.path)}, which is not there"
    if (file := there[path]) is None:
        return None
    if entry.size is not None and file.identity.size != entry.size:
        return f"{keys.shown(entry.path)} has {file.identity.size} bytes, the sidecar says {entry.size}"
    if entry.sha256 is not None and sha256.get(file.path) != entry.sha256:
        return f"{keys.shown(entry.path)} has another SHA-256 than the sidecar says"
    return None
