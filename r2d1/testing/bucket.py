"""A bucket that obeys R2's rules: objects, metadata and multipart uploads, without I/O and with a clock passed in.

Sources: https://developers.cloudflare.com/r2/objects/multipart-objects/, ``/r2/reference/consistency/``,
``/r2/reference/unicode-interoperability/`` and ``/r2/api/s3/api/``. Every operation is atomic and raises
``Refused`` when a rule is broken. Thread safe.
"""

from __future__ import annotations

import base64
import hashlib
import threading
import unicodedata
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from r2d1.testing.blob import Blob
from r2d1.testing.bodies import ALGORITHMS, Body
from r2d1.testing.conditions import NONE, Conditions
from r2d1.testing.listing import Page, page_of, start_of
from r2d1.testing.multipart import check_sizes, chosen_parts, joined
from r2d1.testing.refusals import refused
from r2d1.testing.rules import Conditional, Rules
from r2d1.testing.stored import Kept, PartNamed, StoredObject, StoredPart, Upload


class Bucket:
    """One bucket. ``clock`` returns seconds since the epoch; nothing here reads another one."""

    def __init__(self, rules: Rules | None = None, *, clock: Callable[[], float]) -> None:
        self.rules = rules or Rules.r2()
        self.clock = clock
        self.lock = threading.RLock()
        self._objects: dict[bytes, StoredObject] = {}
        self._order: list[bytes] = []
        self._written: dict[bytes, float] = {}
        self._uploads: dict[str, Upload] = {}
        self._ended: dict[str, bytes] = {}
        self._upload_count = 0

    # -- whole objects -------------------------------------------------------------------------------------

    def put(self, key: str, body: Body, *, kept: Kept | None = None, conditions: Conditions = NONE) -> StoredObject:
        """Write an object whole; its ETag is the MD5 of its bytes."""
        with self.lock:
            self.permit("PutObject")
            name, kept = self._identity(key), kept or Kept()
            self._check_size(body.blob.size, self.rules.max_part_size)
            self._check_metadata(kept)
            self._pace(name)
            self._check_write(conditions, name, completing=False)
            stored = StoredObject(key, body.blob, body.md5.hex(), self._now(), kept, body.checksums)
            return self._publish(name, stored)

    def get(self, key: str, *, conditions: Conditions = NONE, operation: str = "GetObject") -> StoredObject:
        """The object; ``NoSuchKey``, ``PreconditionFailed`` or ``NotModified`` (304) otherwise."""
        with self.lock:
            self.permit(operation)
            stored = self._objects.get(self._identity(key))
            if stored is None:
                raise refused("NoSuchKey")
            if not conditions.is_preconditions_met(stored.etag, stored.modified):
                raise refused("PreconditionFailed")
            if not conditions.is_changed(stored.etag, stored.modified):
                raise refused("NotModified", fields={"ETag": f'"{stored.etag}"'})
            return stored

    def delete(self, keys: Sequence[str], *, operation: str = "DeleteObject") -> None:
        """Delete objects; one that is absent counts as deleted."""
        with self.lock:
            self.permit(operation)
            if operation == "DeleteObjects" and not 1 <= len(keys) <= 1000:
                raise refused("MalformedXML")
            for name in [self._identity(key) for key in keys]:
                self._remove(name)

    def list_page(
        self,
        prefix: str = "",
        *,
        delimiter: str = "",
        start_after: str = "",
        token: str | None = None,
        limit: int = 1000,
        operation: str = "ListObjectsV2",
    ) -> tuple[Page, list[StoredObject]]:
        """A page of names in the order of their UTF-8 bytes, and the objects of its keys."""
        with self.lock:
            self.permit(operation)
            start = start_of(self._order, prefix=_nfc(prefix), start_after=_nfc(start_after), token=token)
            limit = min(limit, self.rules.page_size)
            page = page_of(self._order, start, prefix=_nfc(prefix), delimiter=_nfc(delimiter), limit=limit)
            return page, [self._objects[name] for name in page.keys]

    # -- multipart uploads ---------------------------------------------------------------------------------

    def create_upload(
        self, key: str, *, kept: Kept | None = None, algorithm: str | None = None, conditions: Conditions = NONE
    ) -> Upload:
        """Begin a multipart upload."""
        with self.lock:
            self.permit("CreateMultipartUpload")
            name, kept = self._identity(key), kept or Kept()
            if algorithm is not None and algorithm not in ALGORITHMS:
                raise refused("InvalidRequest", "Checksum algorithm provided is unsupported.")
            self._check_metadata(kept)
            self._check_write(conditions, name, completing=False)
            upload = Upload(self._new_upload_id(), key, self._now(), kept, algorithm)
            self._uploads[upload.upload_id] = upload
            return upload

    def upload(self, key: str, upload_id: str) -> Upload:
        """The open upload of this key; ``NoSuchUpload`` when it was finished, aborted, expired or never begun."""
        with self.lock:
            self._expire()
            upload = self._uploads.get(upload_id)
            if upload is None or _nfc(upload.key) != self._identity(key):
                raise refused("NoSuchUpload")
            return upload

    def put_part(self, key: str, upload_id: str, number: int, body: Body) -> StoredPart:
        """Take a part; one sent again replaces the first. Sizes are compared at Complete only, as R2 does."""
        with self.lock:
            self.permit("UploadPart")
            self.check_part_number(number)
            self._check_size(body.blob.size, self.rules.max_part_size)
            upload = self.upload(key, upload_id)
            for algorithm in body.checksums:
                if upload.algorithm not in (None, algorithm):
                    raise refused(
                        "InvalidRequest",
                        f"Checksum Type mismatch occurred, expected checksum Type: {upload.algorithm}, "
                        f"actual checksum Type: {algorithm}",
                    )
            upload.parts[number] = StoredPart(number, body, self._now())
            return upload.parts[number]

    def complete(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[PartNamed],
        *,
        conditions: Conditions = NONE,
        checksums: Mapping[str, str] | None = None,
    ) -> StoredObject:
        """Join the named parts into the object. A condition that fails here destroys the upload, as on R2."""
        with self.lock:
            self.permit("CompleteMultipartUpload")
            upload = self.upload(key, upload_id)
            name = self._identity(key)
            chosen = chosen_parts(upload, parts, self.rules)
            check_sizes([part.size for part in chosen], self.rules)
            stored = joined(upload, chosen, now=self._now())
            for algorithm, value in (checksums or {}).items():
                if stored.checksums.get(algorithm, value) != value:
                    raise refused("BadDigest")
            self._pace(name)
            try:
                self._check_write(conditions, name, completing=True)
            finally:
                self._end(upload)
            return self._publish(name, stored)

    def abort(self, key: str, upload_id: str) -> None:
        """Forget an upload and its parts; one that has ended stays ended, ``NoSuchUpload`` when it is unknown."""
        with self.lock:
            self.permit("AbortMultipartUpload")
            if self._ended.get(upload_id) != self._identity(key):
                self._end(self.upload(key, upload_id))

    def _end(self, upload: Upload) -> None:
        del self._uploads[upload.upload_id]
        self._ended[upload.upload_id] = _nfc(upload.key)

    def list_parts(
        self, key: str, upload_id: str, *, after: int = 0, limit: int = 1000
    ) -> tuple[list[StoredPart], bool]:
        """Parts with numbers above ``after``, in order, and whether there are more."""
        with self.lock:
            self.permit("ListParts")
            parts = self.upload(key, upload_id).parts
            numbers = sorted(number for number in parts if number > after)
            limit = min(limit, self.rules.page_size)
            return [parts[number] for number in numbers[:limit]], len(numbers) > limit

    def list_uploads(
        self, prefix: str = "", *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> tuple[list[Upload], bool]:
        """Open uploads below a prefix that come after (key, upload id), in order, and whether there are more."""
        with self.lock:
            self.permit("ListMultipartUploads")
            uploads = [upload for upload in self.open_uploads(prefix) if _is_after(upload, *after)]
            limit = min(limit, self.rules.page_size)
            return uploads[:limit], len(uploads) > limit

    # -- for tests: no rule holds here -----------------------------------------------------------------------

    def place(self, key: str, data: bytes | Blob, *, kept: Kept | None = None, etag: str | None = None) -> StoredObject:
        """Put an object there as if it had always been, whatever the rules say."""
        with self.lock:
            blob = data if isinstance(data, Blob) else Blob([data])
            etag = etag or Body.of(blob).md5.hex()
            return self._publish(_nfc(key), StoredObject(key, blob, etag, self._now(), kept or Kept()), paced=False)

    def remove(self, key: str) -> None:
        """Take an object away behind everybody's back."""
        with self.lock:
            self._remove(_nfc(key))

    def corrupt(self, key: str, *, at: int = 0) -> None:
        """Flip the bits of one byte of a stored object; ETag and checksums stay (``at`` < 0 counts from the end)."""
        with self.lock:
            name = _nfc(key)
            stored = self._objects[name]
            at %= stored.size
            damaged = bytes([stored.blob.read(at, at + 1)[0] ^ 0xFF])
            before, after = stored.blob.read(0, at), stored.blob.read(at + 1)
            self._objects[name] = replace(stored, blob=Blob([before, damaged, after]))

    def stored(self, key: str) -> StoredObject | None:
        """The object under a key, or ``None``; no rule, no request."""
        with self.lock:
            return self._objects.get(_nfc(key))

    def keys(self, prefix: str = "") -> list[str]:
        """All keys below a prefix, in the order of a listing."""
        with self.lock:
            wanted = _nfc(prefix)
            start = bisect_left(self._order, wanted)
            return [self._objects[name].key for name in self._order[start:] if name.startswith(wanted)]

    def open_uploads(self, prefix: str = "") -> list[Upload]:
        """Open uploads below a prefix, by key and then by age."""
        with self.lock:
            self._expire()
            found = [upload for upload in self._uploads.values() if _nfc(upload.key).startswith(_nfc(prefix))]
            return sorted(found, key=lambda upload: (_nfc(upload.key), upload.upload_id))

    def forget_upload(self, upload_id: str) -> None:
        """Lose an upload, as a server that forgot it."""
        with self.lock:
            self._uploads.pop(upload_id, None)

    # -- rules -----------------------------------------------------------------------------------------------

    def permit(self, operation: str) -> None:
        """Raise what this bucket answers to an operation that is switched off."""
        if operation in self.rules.forbidden:
            raise refused("AccessDenied")
        if operation in self.rules.missing:
            raise refused("NotImplemented", f"{operation} not implemented")

    def check_part_number(self, number: int) -> None:
        if not 1 <= number <= self.rules.max_parts:
            limit = self.rules.max_parts
            raise refused("InvalidArgument", f"Part number must be an integer between 1 and {limit}, inclusive.")

    def _identity(self, key: str) -> bytes:
        name = _nfc(key)
        if not 1 <= len(key.encode("utf-8", "surrogatepass")) <= self.rules.max_key_bytes:
            raise refused("InvalidObjectName")
        return name

    def _check_size(self, size: int, limit: int) -> None:
        if size > limit:
            raise refused("EntityTooLarge")

    def _check_metadata(self, kept: Kept) -> None:
        size = sum(len(name.encode()) + len(value.encode()) for name, value in kept.metadata.items())
        if size > self.rules.max_metadata_bytes:
            raise refused("MetadataTooLarge")

    def _pace(self, name: bytes) -> None:
        """R2 takes one write a second per key; what it pushes back had no effect."""
        if self.clock() - self._written.get(name, float("-inf")) < self.rules.write_interval_s:
            raise refused("TooManyRequests")

    def _check_write(self, conditions: Conditions, name: bytes, *, completing: bool) -> None:
        mode = self.rules.conditions
        if conditions.is_empty or mode is Conditional.IGNORED or (mode is Conditional.PUT_ONLY and completing):
            return
        if mode is Conditional.REFUSED:
            raise refused("NotImplemented", "Conditional writes not implemented")
        current = self._objects.get(name)
        etag, modified = (current.etag, current.modified) if current else (None, 0.0)
        if not (conditions.is_preconditions_met(etag, modified) and conditions.is_changed(etag, modified)):
            raise refused("NotModified" if mode is Conditional.NOT_MODIFIED else "PreconditionFailed")

    # -- state -----------------------------------------------------------------------------------------------

    def _publish(self, name: bytes, stored: StoredObject, *, paced: bool = True) -> StoredObject:
        if name not in self._objects:
            insort(self._order, name)
        self._objects[name] = stored
        if paced and self.rules.write_interval_s:
            self._remember_write(name)
        return stored

    def _remember_write(self, name: bytes) -> None:
        now = self.clock()
        self._written[name] = now
        if len(self._written) > 4096:
            self._written = {
                key: when for key, when in self._written.items() if now - when < self.rules.write_interval_s
            }

    def _remove(self, name: bytes) -> None:
        if self._objects.pop(name, None) is not None:
            del self._order[bisect_left(self._order, name)]

    def _expire(self) -> None:
        """R2's default lifecycle rule: uploads end seven days after they were begun."""
        oldest = self.clock() - self.rules.upload_lifetime_s
        for upload_id in [known for known, upload in self._uploads.items() if upload.started < oldest]:
            del self._uploads[upload_id]

    def _now(self) -> float:
        return round(self.clock(), 3)

    def _new_upload_id(self) -> str:
        """Opaque, with characters that a URL must escape, and the same in every run."""
        self._upload_count += 1
        digest = hashlib.sha256(b"upload %d" % self._upload_count).digest()
        return f"{self._upload_count:08}-{base64.b64encode(digest).decode()}"


def _nfc(key: str) -> bytes:
    """Two spellings of one text are one key to R2."""
    return unicodedata.normalize("NFC", key).encode("utf-8", "surrogatepass")


def _is_after(upload: Upload, key: str, upload_id: str) -> bool:
    mine, marker = _nfc(upload.key), _nfc(key)
    return mine > marker or (mine == marker and upload_id != "" and upload.upload_id > upload_id)
