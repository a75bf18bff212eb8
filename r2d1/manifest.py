"""The manifest: what a ship contains, file by file, with digests (formats §4, version 1). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from r2d1 import keys, strictjson
from r2d1.digest import digest_of, is_hex, split_digest
from r2d1.errors import FormatError, NameRefused
from r2d1.sidecar import MAX_SIDECAR_BYTES

VERSION = 1
MAX_FILES = 1_000_000
MAX_MANIFEST_BYTES = 512 * 2**20
MAX_FILE_BYTES = 5 * 2**40 - 5 * 2**30  # R2: 4.995 TiB
MAX_PARTS = 10_000  # R2 and S3
PART_SIZE = 16 * 2**20
_FILE_FIELDS = ("path", "size", "digest", "etag", "part_size", "parts", "key")
_FIELDS = (
    "version", "requires", "job_id", "name", "epoch", "timestamp", "metadata", "created_by",
    "total_bytes", "sidecar", "files", "extra",
)  # fmt: skip


def plan_part_size(size: int, base: int = PART_SIZE) -> int:
    """``base`` doubled until ``size`` bytes are at most 10,000 parts."""
    part_size = base
    while part_size * MAX_PARTS < size:
        part_size *= 2
    return part_size


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file. ``parts`` are the hex digests of its slices of ``part_size`` bytes, empty when there is one slice.

    ``key`` is relative to the manifest's prefix and None where it equals ``path``. ``unknown`` holds fields
    that another version wrote; they are written back.
    """

    path: str
    size: int
    digest: str
    etag: str
    part_size: int
    parts: tuple[str, ...] = ()
    key: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def object_key(self) -> str:
        """The object's key relative to the manifest's prefix, in the form in which R2 keeps keys."""
        return keys.nfc(self.path if self.key is None else self.key)

    @property
    def algorithm(self) -> str:
        return split_digest(self.digest)[0]

    def slice_digests(self) -> tuple[str, ...]:
        """The hex digest of every slice, in order; the whole file's when it is one slice."""
        return self.parts or (split_digest(self.digest)[1],)

    def to_fields(self) -> dict[str, Any]:
        fields = {
            **strictjson.clean(dict(self.unknown)),
            "path": self.path,
            "size": self.size,
            "digest": self.digest,
            "etag": self.etag,
            "part_size": self.part_size,
        }
        if self.parts:
            fields["parts"] = list(self.parts)
        if self.key is not None:
            fields["key"] = self.key
        return fields


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything a ship holds; as stored, ``files`` are sorted by the UTF-8 bytes of their paths."""

    job_id: str
    name: str
    epoch: int
    timestamp: float
    metadata: Any
    created_by: str
    sidecar_size: int
    sidecar_digest: str
    files: tuple[FileEntry, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    unknown: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    def encode(self) -> bytes:
        """The bytes that are stored: strict JSON, sorted keys, no spaces; ``FormatError`` over the limit of size."""
        raw = strictjson.encode(
            {
                **strictjson.clean(dict(self.unknown)),
                "version": VERSION,
                "requires": [],
                "job_id": self.job_id,
                "name": self.name,
                "epoch": self.epoch,
                "timestamp": self.timestamp,
                "metadata": strictjson.clean(self.metadata),
                "created_by": self.created_by,
                "total_bytes": self.total_bytes,
                "sidecar": {"size": self.sidecar_size, "digest": self.sidecar_digest},
                "files": [entry.to_fields() for entry in sorted(self.files, key=lambda entry: entry.path.encode())],
                "extra": strictjson.clean(dict(self.extra)),
            }
        )
        if len(raw) > MAX_MANIFEST_BYTES:
            raise FormatError(f"the manifest of {self.name} has {len(raw):,} bytes, {MAX_MANIFEST_BYTES:,} are allowed")
        return raw

    def has_same_files(self, epoch: int, files: Mapping[str, tuple[int, str]]) -> bool:
        """Whether this is the same checkpoint: its epoch, and every path with its size and digest."""
        mine = {entry.path: (entry.size, entry.digest) for entry in self.files}
        return self.epoch == epoch and mine == dict(files)


def decode_manifest(raw: bytes, *, key: str) -> Manifest:
    """Read a manifest from the bucket, which is not trusted; ``FormatError`` names every problem found."""
    try:
        fields = strictjson.parse_object(raw)
    except FormatError as exc:
        raise FormatError(f"manifest {keys.shown(key)}: {exc}") from exc
    check_version(fields, f"manifest {keys.shown(key)}")
    problems = list(_problems(fields))
    if problems:
        raise FormatError(f"manifest {keys.shown(key)} is malformed: " + "; ".join(problems[:20]))
    return _build(fields)


def check_version(fields: Mapping[str, Any], what: str) -> None:
    """Refuse a document that a newer r2d1 wrote."""
    version, requires = fields.get("version"), fields.get("requires", [])
    if version != VERSION or isinstance(version, bool):
        raise FormatError(f"{what} has version {ascii(version)[:40]}; this r2d1 reads version {VERSION}: update r2d1")
    if requires != []:
        raise FormatError(f"{what} requires {ascii(requires)[:200]}, which this r2d1 does not know: update r2d1")


def _build(fields: Mapping[str, Any]) -> Manifest:
    return Manifest(
        job_id=fields["job_id"],
        name=fields["name"],
        epoch=fields["epoch"],
        timestamp=float(fields["timestamp"]),
        metadata=fields["metadata"],
        created_by=fields["created_by"],
        sidecar_size=fields["sidecar"]["size"],
        sidecar_digest=fields["sidecar"]["digest"],
        files=tuple(_build_entry(entry) for entry in fields["files"]),
        extra=fields.get("extra", {}),
        unknown={name: value for name, value in fields.items() if name not in _FIELDS},
    )


def _build_entry(fields: Mapping[str, Any]) -> FileEntry:
    return FileEntry(
        path=fields["path"],
        size=fields["size"],
        digest=fields["digest"],
        etag=fields["etag"],
        part_size=fields["part_size"],
        parts=tuple(fields.get("parts", ())),
        key=fields.get("key"),
        unknown={name: value for name, value in fields.items() if name not in _FILE_FIELDS},
    )


def _problems(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, kind in (("job_id", str), ("name", str), ("created_by", str), ("sidecar", dict), ("files", list)):
        if not isinstance(fields.get(name), kind):
            yield f"{name!r} is not {kind.__name__}"
    yield from _name_problems(fields.get("job_id"), fields.get("name"))
    if not is_count(fields.get("epoch"), keys.MAX_EPOCH):
        yield "'epoch' is no integer from 0 to 2^53-1"
    if strictjson.as_finite(fields.get("timestamp")) is None:
        yield "'timestamp' is no number"
    if "metadata" not in fields:
        yield "'metadata' is missing"
    if not isinstance(fields.get("extra", {}), dict):
        yield "'extra' is no object"
    if isinstance(fields.get("sidecar"), dict):
        yield from _sidecar_problems(fields["sidecar"])
    if isinstance(fields.get("files"), list):
        yield from _files_problems(fields["files"], fields.get("total_bytes"))


def _name_problems(job_id: object, name: object) -> Iterator[str]:
    try:
        if isinstance(job_id, str):
            keys.check_job_id(job_id, reading=True)
        if isinstance(name, str):
            keys.check_name(name)
    except NameRefused as exc:
        yield str(exc)


def _sidecar_problems(sidecar: Mapping[str, Any]) -> Iterator[str]:
    if not is_count(sidecar.get("size"), MAX_SIDECAR_BYTES):
        yield "'sidecar.size' is no size"
    if why := _why_no_digest(sidecar.get("digest")):
        yield f"'sidecar.digest' {why}"


def _files_problems(files: list[Any], total: object) -> Iterator[str]:
    if len(files) > MAX_FILES:
        yield f"{len(files)} files; the limit is {MAX_FILES}"
        return
    entry_problems = [why for n, entry in enumerate(files) for why in _entry_problems(entry, n)]
    yield from entry_problems
    if entry_problems:
        return
    if total != sum(entry["size"] for entry in files):
        yield "'total_bytes' is not the sum of the sizes"
    for group in ([entry["path"] for entry in files], [entry.get("key", entry["path"]) for entry in files]):
        try:
            keys.check_paths(group)
        except NameRefused as exc:
            yield str(exc)
    for entry in files:
        if entry["path"].split("/")[0] == keys.STATE_DIR:
            yield f"path {keys.shown(entry['path'])} lies where r2d1 keeps its own state"
            return


def _entry_problems(entry: Any, n: int) -> Iterator[str]:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        yield f"files[{n}] has no path"
        return
    at = f"file {keys.shown(entry['path'])}:"
    size, part_size, parts = entry.get("size"), entry.get("part_size"), entry.get("parts", [])
    if not is_count(size, MAX_FILE_BYTES):
        yield f"{at} 'size' is no size"
    elif not is_count(part_size, 2**53) or part_size * MAX_PARTS < max(size, 1):
        yield f"{at} 'part_size' is no size, or makes more than {MAX_PARTS} parts"
    elif not isinstance(parts, list) or len(parts) != _slices(size, part_size):
        yield f"{at} 'parts' does not fit size {size} and part size {part_size}"
    elif not all(isinstance(part, str) and is_hex(part, _algorithm(entry)) for part in parts):
        yield f"{at} 'parts' holds something that is no hex digest"
    if why := _why_no_digest(entry.get("digest")):
        yield f"{at} 'digest' {why}"
    if not isinstance(entry.get("etag"), str):
        yield f"{at} 'etag' is no text"
    if not isinstance(entry.get("key", ""), str):
        yield f"{at} 'key' is no text"


def _algorithm(entry: Mapping[str, Any]) -> str:
    digest = entry.get("digest")
    return digest.partition(":")[0] if isinstance(digest, str) else ""


def _slices(size: Any, part_size: int) -> int:
    """How many digests ``parts`` must hold: none when the file is one slice."""
    return -(-size // part_size) if size > part_size else 0


def is_count(value: object, top: int) -> TypeGuard[int]:
    """Whether a field of a document is an integer from 0 to ``top``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= top


def _why_no_digest(value: object) -> str | None:
    try:
        split_digest(value if isinstance(value, str) else "")
    except FormatError as exc:
        return str(exc)
    return None


def manifest_digest(raw: bytes) -> str:
    """What a head says of a manifest: ``blake3:<hex of its bytes as stored>``."""
    return digest_of(raw)
