"""Multipart uploads of a directory bucket: parts as files in a folder of their own. Everything here blocks."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from r2d1.errors import RemoteError, UploadNotFound
from r2d1.objects import Attributes, OpenUpload, Part
from r2d1.objects.local_ledger import Ledger

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_HEADER = "upload.json"
_MAX_PARTS = 10_000


class Uploads:
    """The open uploads of one bucket. A part's file is called ``<number>-<ETag>``, so that it needs no record."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def create(self, key: str, attributes: Attributes) -> str:
        upload_id = secrets.token_hex(16)
        folder = self._ledger.uploads / upload_id
        folder.mkdir()
        self._ledger.write_file(folder / _HEADER, {"version": 1, "key": key, "attributes": asdict(attributes)})
        return upload_id

    def put_part(self, key: str, upload_id: str, number: int, temp: Path, etag: str) -> None:
        """Take a finished, synced file as a part; an earlier one of that number goes."""
        if not 1 <= number <= _MAX_PARTS:
            raise _bad_part("UploadPart", key, "InvalidArgument", f"part numbers are 1 to {_MAX_PARTS}, not {number}")
        with self._ledger.locked(upload_id):
            folder = self.folder("UploadPart", key, upload_id)
            old = [path for path in self._files(folder) if _number_of(path) == number]
            os.replace(temp, folder / f"{number:05}-{etag}")
            for path in old:
                if path.name != f"{number:05}-{etag}":
                    path.unlink()

    def parts(self, operation: str, key: str, upload_id: str) -> list[Part]:
        folder = self.folder(operation, key, upload_id)
        return [Part(_number_of(path), path.name[6:], path.stat().st_size) for path in self._files(folder)]

    def files_to_join(self, key: str, upload_id: str, parts: Sequence[Part]) -> tuple[list[Path], str]:
        """The files of the parts in order, and the ETag that the object will have."""
        there = {part.number: part for part in self.parts("CompleteMultipartUpload", key, upload_id)}
        chosen = [there.get(part.number) for part in sorted(parts, key=lambda part: part.number)]
        asked = sorted((part.number, part.etag) for part in parts)
        if not chosen or asked != [(part.number, part.etag) for part in chosen if part]:
            reason = "a part is missing or has another ETag"
            raise _bad_part("CompleteMultipartUpload", key, "InvalidPart", reason)
        sizes = [part.size for part in chosen if part]
        if len(set(sizes[:-1])) > 1 or sizes[-1] > sizes[0]:
            reason = "all parts but the last must have the same size, and the last may not be larger"
            raise _bad_part("CompleteMultipartUpload", key, "InvalidPart", reason)
        folder = self.folder("CompleteMultipartUpload", key, upload_id)
        digests = b"".join(bytes.fromhex(etag) for _, etag in asked)
        etag = f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(asked)}"
        return [folder / f"{number:05}-{etag}" for number, etag in asked], etag

    def attributes(self, key: str, upload_id: str) -> Attributes:
        folder = self.folder("CompleteMultipartUpload", key, upload_id)
        return Attributes(**json.loads((folder / _HEADER).read_bytes())["attributes"])

    def remove(self, upload_id: str) -> None:
        if (folder := self._folder_of(upload_id)) is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def open_below(self, prefix: str) -> list[OpenUpload]:
        found = []
        for folder in sorted(self._ledger.uploads.iterdir()):
            key = self._key_of(folder)
            if key is not None and key.startswith(prefix):
                found.append(OpenUpload(key, folder.name))
        return sorted(found, key=lambda upload: (upload.key, upload.upload_id))

    def folder(self, operation: str, key: str, upload_id: str) -> Path:
        """Where an upload's parts are; ``UploadNotFound`` when there is no such upload of this key."""
        folder = self._folder_of(upload_id)
        if folder is None or self._key_of(folder) != key:
            raise UploadNotFound(
                operation, key, status=404, code="NoSuchUpload", reason=f"no open upload {upload_id!r}"
            )
        return folder

    def _folder_of(self, upload_id: str) -> Path | None:
        """The id comes from a journal or a caller: only one of our form may become a path."""
        return self._ledger.uploads / upload_id if _ID.fullmatch(upload_id) else None

    def _key_of(self, folder: Path) -> str | None:
        try:
            return str(json.loads((folder / _HEADER).read_bytes())["key"])
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _files(self, folder: Path) -> list[Path]:
        return sorted(path for path in folder.iterdir() if path.name != _HEADER)


def _number_of(path: Path) -> int:
    return int(path.name[:5])


def _bad_part(operation: str, key: str, code: str, reason: str) -> RemoteError:
    return RemoteError(operation, key, status=400, code=code, reason=reason)
