"""The files of a label directory, and the journal that remembers their hashes."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from r2d1 import keys
from r2d1.checkpoint import Identity
from r2d1.datasets.open_uploads import OpenUploads
from r2d1.errors import ConfigError, FormatError, NameRefused, R2D1Error, UnsafeDestination
from r2d1.localstate import own_folder, state_directory

INDEX_NAME = "labels-index.json"
JOURNAL_NAME = "labels.db"
#: How much of a file is read between two looks at whether the work was cancelled.
STEP = 64 << 20
_BLOCK = 1 << 20
_RUINED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_NAMED = 10
#: Beside ``.env*``: what lies in directories by mistake. Other hidden files may well be labels.
_NEVER_LABELS = frozenset({".DS_Store", ".aws", ".git", ".hg", ".netrc", ".ssh", ".svn"})
_SCHEMA = """CREATE TABLE IF NOT EXISTS hashes (
    path BLOB PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
    inode INTEGER NOT NULL, sha256 TEXT NOT NULL
) WITHOUT ROWID"""


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A file to be published: ``path`` relative to the directory, as its key ends."""

    path: str
    source: Path
    identity: Identity


def list_label_files(root: Path, *, hidden: bool = False) -> list[LabelFile]:
    """Every regular file below ``root`` but r2d1's own state and an index at the top, by path. Blocks.

    A link to a file counts as that file when it lies inside ``root``. ``FormatError`` names every path that cannot
    be published: a link that leads out or nowhere, a socket or device, a name that no key can have, two paths that
    R2 takes for one (equal in NFC). Unless ``hidden``, ``ConfigError`` names hidden files that are no labels: a
    ``.env`` or ``.git`` that came along by mistake cannot be called back once it was published.
    """
    if not root.is_dir():
        raise ConfigError(f"{root} is not a directory")
    found: dict[str, LabelFile] = {}
    problems: list[str] = []
    for path in _walk(root, root.resolve(), problems):
        relative = path.relative_to(root).as_posix()
        try:
            name = keys.check_key(keys.check_path(relative))
        except NameRefused as exc:
            problems.append(str(exc))
            continue
        if name in found:
            problems.append(f"{keys.shown(relative)}: another file's name is the same to R2 (Unicode NFC)")
        found[name] = LabelFile(name, path, Identity.of(path.stat()))
    if not hidden and (names := sorted({text for path in found if (text := _hidden_part(path))})):
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise ConfigError(
            f"{root} holds hidden files, and nothing was sent: {', '.join(names[:_NAMED])}{more}."
            " Remove them, or publish them with all others by --hidden (hidden=True)"
        )
    if problems:
        more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise FormatError(f"{root} cannot be published: {'; '.join(problems[:_NAMED])}{more}")
    return [found[name] for name in sorted(found)]


def _hidden_part(path: str) -> str:
    """A path up to the first name in it that cannot be a label's, with a slash at its end when that is a folder's."""
    names = path.split("/")
    for count, name in enumerate(names, start=1):
        if name.startswith(".env") or name in _NEVER_LABELS:
            return keys.shown("/".join(names[:count]) + ("/" if count < len(names) else ""))
    return ""


def _walk(root: Path, real_root: Path, problems: list[str]) -> Iterator[Path]:
    for folder, folders, files in os.walk(root, onerror=_raise):
        here = Path(folder)
        if here == root:
            folders[:] = [name for name in folders if name != keys.STATE_DIR]
            files = [name for name in files if name != INDEX_NAME]  # noqa: PLW2901 - the rest of the loop wants these
        for name in files:
            if text := _problem(here / name, real_root):
                problems.append(f"{keys.shown((here / name).relative_to(root).as_posix())}: {text}")
            else:
                yield here / name
        problems += [
            f"{keys.shown((here / name).relative_to(root).as_posix())}: it is a link to a folder"
            for name in folders
            if (here / name).is_symlink()
        ]


def _raise(error: OSError) -> None:
    raise FormatError(f"{error.filename} cannot be read: {error.strerror}") from error


def _problem(path: Path, real_root: Path) -> str:
    if not path.exists():
        return "it is a link that leads nowhere"
    if not path.is_file():
        return "it is not a regular file"
    if path.is_symlink() and not path.resolve().is_relative_to(real_root):
        return "it is a link that leads out of the directory"
    return ""


class HashJournal:
    """SHA-256 hashes by path, each good as long as the file's identity is the same. All calls block for a moment.

    Deleting the file costs a reading of the labels, nothing else. One that cannot be used is made anew.
    """

    def __init__(self, directory: Path) -> None:
        where, _ = state_directory(directory)
        self.path = _made(where) / JOURNAL_NAME
        self.uploads = OpenUploads(self.path.parent)
        self._lock = threading.Lock()
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        with self._translated():
            try:
                return self._connected()
            except sqlite3.DatabaseError as exc:
                if exc.sqlite_errorcode not in _RUINED:  # a busy one is another publication's
                    raise
            self.path.unlink()
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=10.0, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(_SCHEMA)
        except sqlite3.Error:
            db.close()
            raise
        return db

    def close(self) -> None:
        self.uploads.close()
        with self._lock:
            self._db.close()

    def known(self, file: LabelFile) -> str | None:
        """The hash of a file in this state, if it was taken before."""
        with self._lock, self._translated():
            row = self._db.execute(
                "SELECT sha256 FROM hashes WHERE path = ? AND size = ? AND mtime_ns = ? AND ctime_ns = ? AND inode = ?",
                (os.fsencode(file.path), *_numbers(file.identity)),
            ).fetchone()
        return None if row is None else str(row[0])

    def record(self, file: LabelFile, sha256: str) -> None:
        """Remember a file's hash."""
        with self._lock, self._translated():
            self._db.execute(
                "INSERT OR REPLACE INTO hashes VALUES (?, ?, ?, ?, ?, ?)",
                (os.fsencode(file.path), *_numbers(file.identity), sha256),
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            raise R2D1Error(
                f"{self.path}: the journal of hashes cannot be used: {exc}. It may be deleted, which only costs time"
            ) from exc


def _made(folder: Path) -> Path:
    """A folder for state, made if missing with those above it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        hint = "make the labels' folder writable, or set XDG_STATE_HOME to a folder that is"
        raise UnsafeDestination(f"{folder}: r2d1 cannot keep its state here: {exc.strerror}; {hint}") from exc
    return own_folder(folder, 0o700)


def _numbers(identity: Identity) -> tuple[int, int, int, int]:
    """An identity as SQLite's signed integers hold it."""
    inode = identity.inode if identity.inode < 2**63 else identity.inode - 2**64
    return identity.size, identity.mtime_ns, identity.ctime_ns, inode


class FileHash:
    """The SHA-256 of a file, taken in steps so that cancelling never waits for a whole file. Each call blocks."""

    def __init__(self, file: LabelFile) -> None:
        self._file = file
        self._hasher = hashlib.sha256()
        self._at = 0

    def step(self) -> str | None:
        """Read on; the hash once all is read. ``FormatError`` when the file is not the one that was looked at."""
        with self._file.source.open("rb", buffering=0) as opened:
            require_same(opened.fileno(), self._file)
            opened.seek(self._at)
            end = min(self._at + STEP, self._file.identity.size)
            while self._at < end and (block := opened.read(min(_BLOCK, end - self._at))):
                self._hasher.update(block)
                self._at += len(block)
            require_same(opened.fileno(), self._file)
        return self._hasher.hexdigest() if self._at == self._file.identity.size else None


def require_same(handle: int, file: LabelFile) -> None:
    """Raise ``FormatError`` when an open file is not in the state that was looked at."""
    if Identity.of(os.fstat(handle)) != file.identity:
        raise FormatError(f"{file.source} changed while it was being published; publish again when it is at rest")
