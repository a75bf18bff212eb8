"""Publishing a shard set: shards at keys that never change, then its two documents, the manifest last."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from r2d1.bases import Base, BaseReader, open_reader, read_verified
from r2d1.datasets.background import run_to_end
from r2d1.datasets.fields import DocumentError
from r2d1.datasets.layout import MANIFEST_NAME, RECORD_NAME, shard_name
from r2d1.datasets.manifest import ShardManifest, parse_manifest, parse_record
from r2d1.datasets.moving import Moved
from r2d1.datasets.sending import (
    BINARY,
    IMMUTABLE,
    Conflict,
    HashedFile,
    Placing,
    State,
    attributes_of,
    checked_prefix,
    join_key,
    opened_store,
)
from r2d1.datasets.verify import record_problems
from r2d1.datasets.workers import OnProgress
from r2d1.errors import ConfigError, FormatError, IntegrityError, RemoteError
from r2d1.events import Observer, Teller
from r2d1.objects import ByteRange, ObjectStore
from r2d1.settings import Settings
from r2d1.tasks import in_thread, run_bounded

#: Random units that are read back through the public base at the end.
VERIFY_UNITS = 8
#: How many missing files an error names one by one.
_NAMED = 10
#: How many bytes of shards are under way at most unless a number is asked for: a run that is cut off loses them.
_UNDER_WAY = 256 << 20


@dataclass(frozen=True, slots=True)
class PublishReport:
    """What a publication did. Counts are of keys, sizes in bytes; two shards with the same bytes have one key.

    ``replaced`` are the keys of documents that were there with other bytes; ``verified_units`` were read back
    through the public base.
    """

    where: str
    prefix: str
    sent: int
    present: int
    sent_bytes: int
    replaced: tuple[str, ...]
    verified_units: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _LocalSet:
    """A shard set on disk, its documents read and its files seen to be there."""

    root: Path
    manifest: ShardManifest
    documents: tuple[tuple[str, bytes], ...]

    def files(self) -> list[tuple[str, HashedFile]]:
        """``(path below the prefix, file)`` of every shard; of shards with the same bytes one."""
        found: dict[str, HashedFile] = {}
        for shard, sha256 in enumerate(self.manifest.shard_sha256s):
            path = self.root / shard_name(shard)
            file = HashedFile(path, self.manifest.shard_size(shard), sha256)
            found.setdefault(self.manifest.shard_key(shard), file)
        return list(found.items())


@dataclass(slots=True)
class _Run:
    """A publication under way."""

    placing: Placing
    prefix: str
    may_replace: bool
    moved: Moved
    before: dict[str, State] = field(default_factory=dict)
    sent: int = 0
    present: int = 0
    sent_bytes: int = 0
    replaced: list[str] = field(default_factory=list)

    async def look(self, documents: Iterable[tuple[str, bytes]]) -> None:
        """See which documents are there; ``Conflict`` for those of another set, before anything is sent."""
        for name, data in documents:
            self.before[name] = await self.placing.document_state(join_key(self.prefix, name), data)
        is_live = self.before[MANIFEST_NAME] is not State.ABSENT
        others = [name for name, state in self.before.items() if state is State.OTHER]
        if is_live and others and not self.may_replace:
            raise _other_set([join_key(self.prefix, name) for name in others])

    async def shard(self, item: tuple[str, HashedFile]) -> None:
        path, file = item
        key = join_key(self.prefix, path)
        attributes = attributes_of(file.sha256, content_type=BINARY, cache_control=IMMUTABLE)
        source = replace(file, moved=partial(self.moved.at, key))
        is_sent = await self.placing.place_new(key, source, attributes)
        self._count(key, file.size, is_sent=is_sent)

    async def document(self, name: str, data: bytes) -> None:
        key, before = join_key(self.prefix, name), self.before[name]
        if before is not State.SAME:
            before = await self.placing.place_document(key, data)
        if before is State.OTHER:
            self.replaced.append(key)
            self.placing.tell.notice("warning", f"{key} held another document, which was replaced")
        self._count(key, len(data), is_sent=before is not State.SAME)

    def _count(self, key: str, size: int, *, is_sent: bool) -> None:
        self.sent += is_sent
        self.present += not is_sent
        self.sent_bytes += size if is_sent else 0
        self.moved.done(key, size)


def _other_set(found: list[str]) -> Conflict:
    return Conflict(
        f"{' and '.join(found)}: the documents of another set are published there; nothing was sent, and nothing"
        " replaced. Publish below another prefix, or without --no-replace (may_replace=True): whoever reads the set"
        " that is there by its signed spec will then find another"
    )


async def publish_shard_set_async(
    directory: str | os.PathLike[str],
    settings: Settings,
    *,
    prefix: str = "",
    verify_units: int = VERIFY_UNITS,
    may_replace: bool = True,
    store: ObjectStore | None = None,
    observer: Observer | None = None,
    on_progress: OnProgress | None = None,
) -> PublishReport:
    """Publish the shard set in ``directory`` below ``prefix`` of the bucket, and read some of it back.

    Shards go first, each to a key made of its hash, which is never overwritten; then ``build_record.json``; then
    ``manifest.json``, so that a reader never sees a manifest whose shards are missing. What is there already is not
    sent, so a publication that was interrupted goes on where it stopped. Only files of the manifest are sent.
    At the end ``verify_units`` random units are read through ``settings.public_base``. Another set's documents
    are replaced with a warning (formats §9 have readers ask for them anew each time), or with
    ``may_replace=False`` refused.

    At most ``settings.in_flight`` objects are under way, and of large ones about 256 MiB, unless
    ``settings.concurrency`` is given. ``ConfigError`` when there is no public base to verify with, before anything is
    sent; ``FormatError`` for a set that is not whole; ``Conflict`` for a shard's key that holds other bytes, and
    without ``may_replace``, before anything is sent, for a prefix that holds another set; ``IntegrityError`` for a
    local shard that is damaged or a unit that the base serves wrongly; ``RemoteError``.
    """
    tell = Teller(observer)
    below = checked_prefix(prefix)
    if store is None:
        settings.require_r2(beside=["public_base"] if verify_units else [])
    base = _public_base(settings, below, verify_units)
    local = await in_thread(_read_set, Path(directory))
    files = local.files()
    total = sum(file.size for _, file in files) + sum(len(data) for _, data in local.documents)
    moved = Moved("publish", total, on_progress)
    async with opened_store(settings, store, tell) as bucket:
        run = _Run(Placing(bucket, tell), below, may_replace, moved)
        async with moved.telling():
            await run.look(local.documents)
            await run_bounded(_at_once(settings, local.manifest), run.shard, files)
            for name, data in local.documents:
                await run.document(name, data)
        chosen = await _verify(settings, base, local.manifest, verify_units, tell)
        return PublishReport(
            where=bucket.where,
            prefix=below,
            sent=run.sent,
            present=run.present,
            sent_bytes=run.sent_bytes,
            replaced=tuple(run.replaced),
            verified_units=chosen,
        )


def publish_shard_set(
    directory: str | os.PathLike[str],
    settings: Settings,
    *,
    prefix: str = "",
    verify_units: int = VERIFY_UNITS,
    may_replace: bool = True,
    store: ObjectStore | None = None,
    observer: Observer | None = None,
    on_progress: OnProgress | None = None,
) -> PublishReport:
    """``publish_shard_set_async`` for blocking callers; observer and progress are called on a thread of its own."""
    return run_to_end(
        lambda: publish_shard_set_async(
            directory,
            settings,
            prefix=prefix,
            verify_units=verify_units,
            may_replace=may_replace,
            store=store,
            observer=observer,
            on_progress=on_progress,
        )
    )


def _at_once(settings: Settings, manifest: ShardManifest) -> int:
    if settings.concurrency is not None:
        return settings.concurrency
    return max(2, min(settings.in_flight, _UNDER_WAY // manifest.shard_size(0)))


def _public_base(settings: Settings, prefix: str, verify_units: int) -> Base | None:
    if verify_units < 0:
        raise ConfigError(f"verify_units is {verify_units}; it must be 0 or more")
    if not verify_units:
        return None
    if not settings.public_base:
        raise ConfigError(
            "units are verified through the public base, and there is none: set R2D1_R2_PUBLIC_BASE"
            " (or R2_PUBLIC_BASE), or verify none with --verify-units 0"
        )
    return Base(f"{settings.public_base}/{prefix}" if prefix else settings.public_base)


def _read_set(root: Path) -> _LocalSet:
    """Read the documents of a set and look at its files. Blocks. ``FormatError`` names everything that is missing."""
    data = _read(root / MANIFEST_NAME)
    if data is None:
        raise ConfigError(f"{root} holds no {MANIFEST_NAME}: it is no shard set, or was not built to its end")
    manifest = parse_manifest(data, str(root / MANIFEST_NAME))
    record = _read(root / RECORD_NAME)
    documents = [(MANIFEST_NAME, data)]
    if record is not None:
        _check_record(record, manifest, root / RECORD_NAME)
        documents.insert(0, (RECORD_NAME, record))
    elif "removed_ids_sha256" in manifest.extra:
        raise FormatError(f"{root / RECORD_NAME} is missing, and the manifest says that there is one")
    local = _LocalSet(root, manifest, tuple(documents))
    _check_sizes(local)
    return local


def _check_record(data: bytes, manifest: ShardManifest, path: Path) -> None:
    if problems := list(record_problems(parse_record(data, str(path)), manifest)):
        raise DocumentError(str(path), problems)


def _check_sizes(local: _LocalSet) -> None:
    problems = []
    for shard in range(local.manifest.n_shards):
        path, wanted = local.root / shard_name(shard), local.manifest.shard_size(shard)
        size = path.stat().st_size if path.is_file() else None
        if size != wanted:
            problems.append(
                f"{path.name} is missing" if size is None else f"{path.name} has {size} bytes, not {wanted}"
            )
    if problems:
        more = f" and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        raise FormatError(f"{local.root} is not whole, nothing was sent: {'; '.join(problems[:_NAMED])}{more}")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read: {exc.strerror}") from exc


async def _verify(
    settings: Settings, base: Base | None, manifest: ShardManifest, count: int, tell: Teller
) -> tuple[int, ...]:
    """Read random units back as anybody would; ``IntegrityError`` names every unit that did not come right."""
    if base is None:
        return ()
    chosen = sorted(random.SystemRandom().sample(range(manifest.n_units), min(count, manifest.n_units)))
    async with open_reader(base, settings=settings, connections=settings.in_flight) as reader:
        problems = await verify_units_of(reader, manifest, chosen, tell=tell, concurrency=settings.in_flight)
    if problems:
        listed = "\n".join(f"  {text}" for text in problems)
        raise IntegrityError(
            f"everything was sent, but {len(problems)} of {len(chosen)} units could not be verified"
            f" through {base.url}\n{listed}"
        )
    return tuple(chosen)


async def verify_units_of(
    reader: BaseReader, manifest: ShardManifest, units: Iterable[int], *, tell: Teller, concurrency: int
) -> list[str]:
    """Read units through a base and compare their hashes; returns what was wrong, a text a unit."""
    problems: dict[int, str] = {}

    async def one(unit: int) -> None:
        shard, at, size = manifest.unit_place(unit)
        key, sha256 = manifest.shard_key(shard), manifest.unit_sha256s[unit]
        try:
            await read_verified(reader, key, ByteRange(at, at + size), sha256, tell=tell)
        except RemoteError as error:
            problems[unit] = f"unit {unit}: {error}"

    await run_bounded(concurrency, one, units)
    return [problems[unit] for unit in sorted(problems)]
