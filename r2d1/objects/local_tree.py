"""A bucket's objects as files: found, replaced atomically, deleted and walked in order. Everything here blocks.

A version of an object is known by its file's size and modification time. The store gives every version a time of
its own and writes its record before it renames the data into place, so a reader finds the record of exactly the
file it has opened, and copies that keep times stay whole. A file that somebody else put there is an object too,
with an ETag made from its size and time.
"""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from r2d1.objects import ObjectInfo
from r2d1.objects import local_names as names
from r2d1.objects.local_ledger import NO_FILE, Ledger, Record, Version, stamped, sync, version_at
from r2d1.objects.local_names import MARK

#: Names of one folder that are sorted at once: the bound on a listing's memory.
FOLDER_PAGE = 50_000

#: How often a step is repeated that another process's renames have overtaken, and what shows that.
_TRIES = 100
_OVERTAKEN = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class Found:
    """An object that was opened: its bytes cannot change under ``fd``, which the owner closes."""

    fd: int
    info: ObjectInfo


class _Child(NamedTuple):
    """A file or folder in a folder, sorted by its key; a folder's key ends in a slash."""

    key: str
    name: str
    is_folder: bool


class Tree:
    """The files of one bucket."""

    def __init__(self, root: Path, *, folder_page: int = FOLDER_PAGE) -> None:
        self.root = root
        self._folder_page = folder_page
        self.ledger = Ledger(root)

    def open(self, key: str) -> Found | None:
        """Open an object, with the record of the very version that was opened; None when there is none."""
        for attempt in range(_TRIES):
            if (opened := self._open_file(key)) is None:
                return None
            fd, version = opened
            record = self.ledger.read_record(key, version)
            # Replaced since it was opened, and the old record is gone already: look again.
            if record is None and attempt < _TRIES - 1 and self._stat(key) != version:
                os.close(fd)
                continue
            return Found(fd, _info(key, version, record))
        raise AssertionError("unreachable")

    def look(self, key: str) -> ObjectInfo | None:
        """What is known of an object; None when there is none."""
        if (found := self.open(key)) is None:
            return None
        os.close(found.fd)
        return found.info

    def make_room(self, key: str) -> None:
        """Make the folders of a key; objects of their names move aside. Call it without a lock."""
        for attempt in range(_TRIES):
            try:
                self._make_folders(key)
            except _OVERTAKEN:
                if attempt == _TRIES - 1:
                    raise
            else:
                return

    def commit(self, key: str, temp: Path, record: Record) -> bool:
        """Put a finished, synced file in the place of an object; call it with the key locked.

        The record is durable before the data appears, so whatever is seen after a crash is whole. False when
        another process has removed the folder, or made one of this name: make room and try again.
        """
        old = self._stat(key)
        self.ledger.write_record(key, stamped(temp, old), record)
        for name, segment in names.long_segments(key, folds_case=self.ledger.folds_case).items():
            self.ledger.note(name, segment)
        plain, marked = self._candidates(key)
        is_taken = plain.is_dir() or (not plain.exists() and marked.exists())
        try:
            os.replace(temp, marked if is_taken else plain)
        except _OVERTAKEN:
            if not temp.exists():
                raise
            return False
        sync(plain.parent)
        if old is not None:
            self.ledger.drop_record(key, old)
        return True

    def delete(self, key: str) -> None:
        """Remove an object; nothing happens when there is none. Call it with the key locked."""
        version = self._stat(key)
        if version is None:
            return
        for path in self._candidates(key):
            if version_at(path) is not None:
                path.unlink(missing_ok=True)
        self.ledger.drop_record(key, version)
        sync(self._prune(version.path.parent))

    def walk(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Every object below a prefix after a key, in order; folders and records are read as it goes on."""
        for key, path in self._walk_files(prefix, start_after):
            version = version_at(path) or self._stat(key)
            if version is not None:
                yield _info(key, version, self.ledger.read_record(key, version), with_metadata=False)

    def folders(self, prefix: str) -> list[str]:
        """The folders right below a prefix (empty, or ending in a slash) that hold an object."""
        found: list[str] = []
        after = ""
        while page := self._children(self._folder_of(prefix), prefix, after):
            found += (child.key for child in page if child.is_folder and next(self._walk_files(child.key, ""), None))
            after = page[-1].key
        return found

    def _walk_files(self, prefix: str, after: str) -> Iterator[tuple[str, Path]]:
        at = prefix[: prefix.rfind("/") + 1]
        return self._walk_folder(self._folder_of(prefix), at, prefix, after)

    def _walk_folder(self, folder: Path, at: str, prefix: str, after: str) -> Iterator[tuple[str, Path]]:
        last = ""
        while page := self._children(folder, at, last):
            for child in page:
                if child.is_folder:
                    if _may_hold(child.key, prefix, after):
                        yield from self._walk_folder(folder / child.name, child.key, prefix, after)
                elif child.key > max(after, last) and child.key.startswith(prefix):
                    yield child.key, folder / child.name
                last = child.key

    def _folder_of(self, prefix: str) -> Path:
        """Where the deepest folder of a prefix lies."""
        if "/" not in prefix:
            return self.root
        return self.root.joinpath(*names.names_of(prefix, folds_case=self.ledger.folds_case)[:-1])

    def _children(self, folder: Path, at: str, after: str) -> list[_Child]:
        """The next children of a folder, in the order of their keys; plain names come before marked ones."""
        return heapq.nsmallest(self._folder_page, (child for child in self._scan(folder, at) if child.key > after))

    def _scan(self, folder: Path, at: str) -> Iterator[_Child]:
        try:
            entries = os.scandir(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        with entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                if not (is_folder or entry.is_file(follow_symlinks=False)):
                    continue
                name = entry.name if is_folder else names.unmarked(entry.name)
                segment = names.segment_of(
                    name, folds_case=self.ledger.folds_case, at_top=not at, noted=self.ledger.noted
                )
                if segment is not None:
                    yield _Child(f"{at}{segment}/" if is_folder else at + segment, entry.name, is_folder)

    def _open_file(self, key: str) -> tuple[int, Version] | None:
        for path in self._candidates(key):
            try:
                # Not blocking, as somebody may have put a FIFO there.
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as exc:
                if exc.errno in NO_FILE:
                    continue
                raise
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode):
                return fd, Version.of(path, status)
            os.close(fd)
        return None

    def _stat(self, key: str) -> Version | None:
        for path in self._candidates(key):
            if (version := version_at(path)) is not None:
                return version
        return None

    def _candidates(self, key: str) -> tuple[Path, Path]:
        """Where an object's file may be: plain, and marked when a folder has (or had) that name."""
        plain = self.root.joinpath(*names.names_of(key, folds_case=self.ledger.folds_case))
        return plain, _marked(plain)

    def _make_folders(self, key: str) -> None:
        path, at = self.root, ""
        for name, segment in zip(
            names.names_of(key, folds_case=self.ledger.folds_case)[:-1], key.split("/"), strict=False
        ):
            path /= name
            at += segment
            try:
                path.mkdir()
            except FileExistsError:
                if not path.is_dir():
                    self._move_aside(path, at)
                    path.mkdir()
                    sync(path.parent)
            else:
                sync(path.parent)
            at += "/"

    def _move_aside(self, path: Path, key: str) -> None:
        """Mark the file of an object whose name a folder needs; locked, for a folder must never be renamed so."""
        with self.ledger.locked(key):
            if version_at(path) is not None:
                os.replace(path, _marked(path))

    def _prune(self, folder: Path) -> Path:
        """Remove folders that have become empty; returns the first that stays."""
        while folder != self.root:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # another deleter was quicker
            except OSError:
                break
            folder = folder.parent
        return folder


def _marked(path: Path) -> Path:
    return path.with_name(path.name + MARK)


def _may_hold(folder: str, prefix: str, after: str) -> bool:
    """Whether a folder (its key ends in a slash) can hold keys of a listing."""
    is_below = folder.startswith(prefix) or prefix.startswith(folder)
    return is_below and (folder > after or after.startswith(folder))


def _info(key: str, version: Version, record: Record | None, *, with_metadata: bool = True) -> ObjectInfo:
    etag = record.etag if record else f"{version.size:x}-{version.mtime_ns:x}"
    metadata = record.metadata if record and with_metadata else {}
    return ObjectInfo(key, version.size, etag, version.mtime_ns / 1e9, metadata)
