"""Verifying a shard set on disk: every hash and all three roots, every error named with its file."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from r2d1.datasets.beside_loop import beside_loop
from r2d1.datasets.fields import DocumentError, shown
from r2d1.datasets.layout import BUILT_EXTRA, MANIFEST_NAME, RECORD_NAME, ShardLayout, is_shard_name, shard_name
from r2d1.datasets.manifest import BuildRecord, ShardManifest, parse_manifest, parse_record
from r2d1.datasets.merkle import MerkleRun
from r2d1.datasets.report import Findings, VerifyReport, counted
from r2d1.datasets.shards import ShardDigest, digest_shard
from r2d1.datasets.workers import OnProgress, Progress, Workers, checked_workers
from r2d1.errors import ConfigError

#: Shards are handed to a worker in groups of about this many bytes, so that tiny ones cost no message each.
_GROUP_SIZE = 32 * 2**20
_RANGES_SHOWN = 10
_VOUCHES = ": nothing in the set vouches for it"


def verify_shard_set(
    directory: str | os.PathLike[str],
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    sample: int | None = None,
) -> VerifyReport:
    """Read a shard set and compare it with its manifest and build record; nothing that is wrong is raised.

    Without ``sample`` every byte is read once, on ``workers`` processes (default: all cores): the hash of
    every shard and unit, and the roots over shards, units and rows. With ``sample`` the sizes of all shards
    and that many units, chosen at random, are checked, and the report says so. Memory: one unit a worker.
    ``ConfigError`` when there is no such directory or an argument makes no sense.
    """
    root = Path(directory)
    if not root.is_dir():
        raise ConfigError(f"{root} is not a directory; a shard set is a directory with a {MANIFEST_NAME}")
    if sample is not None and sample < 1:
        raise ConfigError(f"sample is {sample}; ask for 1 unit or more")
    count = checked_workers(workers)
    found = Findings()
    manifest = _check_documents(root, found)
    if manifest is None:
        found.not_checked.append("every shard: without a readable manifest nothing says what they should be")
        return _report(root, found, None, sample)
    whole = _check_files(root, manifest, found)
    run = _Run(root, manifest, whole, count, on_progress)
    if sample is None:
        _check_everything(run, found)
    else:
        _check_sample(run, found, sample)
    return _report(root, found, manifest, sample)


async def verify_shard_set_async(
    directory: str | os.PathLike[str],
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
    sample: int | None = None,
) -> VerifyReport:
    """``verify_shard_set`` beside a running event loop; ``on_progress`` is called in a worker thread."""
    return await beside_loop(
        lambda report: verify_shard_set(directory, workers=workers, on_progress=report, sample=sample), on_progress
    )


@dataclass(frozen=True, slots=True)
class _Run:
    root: Path
    manifest: ShardManifest
    whole: Sequence[int]
    workers: int
    on_progress: OnProgress | None

    @property
    def size(self) -> int:
        return sum(map(self.manifest.shard_size, self.whole))

    def crew(self, size: int) -> Workers:
        """As many workers as so many bytes are worth starting."""
        return Workers(max(1, min(self.workers, size // _GROUP_SIZE + 1)))

    def tell(self, done: int, total: int) -> None:
        if self.on_progress is not None:
            self.on_progress(Progress("verify", done, total, "bytes"))


def _check_documents(root: Path, found: Findings) -> ShardManifest | None:
    try:
        manifest = parse_manifest((root / MANIFEST_NAME).read_bytes())
    except DocumentError as exc:
        for text in exc.problems:
            found.note(MANIFEST_NAME, text)
        return None
    except OSError as exc:
        found.note(MANIFEST_NAME, _os_text(exc))
        return None
    found.checked.append(f"{MANIFEST_NAME}: its form and counts, and the roots over its lists of shards and units")
    bound = ("mix_id", "removed_ids_sha256")
    loose = ["tokenizer", *(f"extra.{shown(name)[1:-1]}" for name in sorted(manifest.extra) if name not in bound)]
    found.not_checked.append(f"{MANIFEST_NAME}: {', '.join(loose)}{_VOUCHES}")
    _check_record(root, manifest, found)
    return manifest


def _check_record(root: Path, manifest: ShardManifest, found: Findings) -> None:
    try:
        record = parse_record((root / RECORD_NAME).read_bytes())
    except FileNotFoundError:
        if "removed_ids_sha256" in manifest.extra:
            found.note(RECORD_NAME, "is missing")
        else:
            found.not_checked.append(f"{RECORD_NAME}: this set has none")
        return
    except OSError as exc:
        found.note(RECORD_NAME, _os_text(exc))
        return
    except DocumentError as exc:
        for text in exc.problems:
            found.note(RECORD_NAME, text)
        return
    for text in record_problems(record, manifest):
        found.note(RECORD_NAME, text)
    for name in sorted(set(BUILT_EXTRA) ^ set(manifest.extra)):
        what = "is missing" if name in BUILT_EXTRA else "is not a field of a set that was built from a mix"
        found.note(MANIFEST_NAME, f"extra.{shown(name)[1:-1]} {what}")
    found.checked.append(f"{RECORD_NAME}: its form, and against the manifest all but its registry")
    found.not_checked.append(f"{RECORD_NAME}: registry_sha256{_VOUCHES}")


def record_problems(record: BuildRecord, manifest: ShardManifest) -> Iterator[str]:
    """Every way in which a build record contradicts the manifest beside it, with what each of the two says."""
    for each in record.fragment.differences(manifest):
        yield _contradiction(f"fragment.{each.field} is", each.here, each.manifest_field, each.there)
    removed = hashlib.sha256("\n".join(record.removed_ids).encode()).hexdigest()
    if (there := manifest.extra.get("removed_ids_sha256", removed)) != removed:
        yield _contradiction("removed_ids have the hash", removed, "extra.removed_ids_sha256", there)
    mix_id = record.fragment.source.mix_id
    if (there := manifest.extra.get("mix_id", mix_id)) != mix_id:
        yield _contradiction("fragment.source.mix_id is", mix_id, "extra.mix_id", there)


def _contradiction(what: str, here: object, name: str, there: object) -> str:
    return f"{what} {shown(here)}, but in {MANIFEST_NAME} {name} is {shown(there)}: one of the two was changed"


def _check_files(root: Path, manifest: ShardManifest, found: Findings) -> list[int]:
    """Note shards that are missing, of a wrong size or too many; returns those worth reading."""
    bad = dict(size_problems(root, manifest))
    for shard, text in bad.items():
        found.note(shard_name(shard), text)
    names = {shard_name(shard) for shard in range(manifest.n_shards)}
    for name in sorted(filter(is_shard_name, os.listdir(root))):
        if name not in names:
            found.note(name, f"is not in the manifest, which has {counted(manifest.n_shards, 'shard')}")
    found.checked.append(f"the names and sizes of {counted(manifest.n_shards, 'shard')}")
    return [shard for shard in range(manifest.n_shards) if shard not in bad]


def size_problems(root: Path, manifest: ShardManifest) -> Iterator[tuple[int, str]]:
    """Every shard that is missing, no file, or not of the size that the manifest asks for. Blocks; reads none."""
    for shard in range(manifest.n_shards):
        if text := _size_problem(root / shard_name(shard), manifest.shard_size(shard)):
            yield shard, text


def _size_problem(path: Path, wanted: int) -> str | None:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return "is missing"
    except OSError as exc:
        return _os_text(exc)
    if not path.is_file():
        return "is not a file"
    return None if size == wanted else f"has {size} bytes, the manifest asks for {wanted}; not read"


@dataclass(frozen=True, slots=True)
class _Group:
    """Shards for one worker; ``shards`` are their numbers."""

    root: Path
    layout: ShardLayout
    shards: tuple[int, ...]


def _groups(run: _Run) -> Iterator[_Group]:
    shards: list[int] = []
    size = 0
    for shard in run.whole:
        shards.append(shard)
        size += run.manifest.shard_size(shard)
        if size >= _GROUP_SIZE:
            yield _Group(run.root, run.manifest.layout, tuple(shards))
            shards, size = [], 0
    if shards:
        yield _Group(run.root, run.manifest.layout, tuple(shards))


def _digest_group(group: _Group) -> list[ShardDigest | str]:
    """In a worker: what each shard of the group holds, or why it cannot be read."""
    found: list[ShardDigest | str] = []
    for shard in group.shards:
        try:
            with (group.root / shard_name(shard)).open("rb", buffering=0) as file:
                blocks = _blocks(file.fileno(), group.layout.unit_size)
                first_row = shard * group.layout.samples_per_shard
                found.append(digest_shard(blocks, group.layout, first_row=first_row))
        except OSError as exc:
            found.append(_os_text(exc))
    return found


def _blocks(handle: int, size: int) -> Iterator[memoryview]:
    """The file in blocks of ``size`` bytes, all in one buffer."""
    buffer = memoryview(bytearray(size))
    while filled := _fill(handle, buffer):
        yield buffer[:filled]


def _fill(handle: int, buffer: memoryview) -> int:
    filled = 0
    while filled < len(buffer) and (count := os.readv(handle, [buffer[filled:]])):
        filled += count
    return filled


def _check_everything(run: _Run, found: Findings) -> None:
    manifest, tree, intact = run.manifest, MerkleRun(), True
    owners = {sha: shard for shard, sha in enumerate(manifest.shard_sha256s)}
    with run.crew(run.size) as crew:
        for group, digests in zip(_groups(run), crew.map(_digest_group, _groups(run)), strict=True):
            for shard, digest in zip(group.shards, digests, strict=True):
                texts = list(_shard_problems(manifest, shard, digest, owners))
                for text in texts:
                    found.note(shard_name(shard), text)
                intact = intact and not texts and _joined(tree, digest)
                found.bytes_read += manifest.shard_size(shard)
                found.units_read += len(manifest.shard_units(shard))
            run.tell(found.bytes_read, run.size)
    found.checked.append(f"the hashes of {counted(len(run.whole), 'shard')} and of all units in them")
    if not intact or len(run.whole) < manifest.n_shards:
        found.not_checked.append("merkle_root: it needs every shard right")
        return
    found.checked.append("merkle_root over all rows")
    if tree.root().hex() != manifest.merkle_root:
        found.note(MANIFEST_NAME, f"merkle_root is {manifest.merkle_root}, the rows have {tree.root().hex()}")


def _joined(tree: MerkleRun, digest: ShardDigest | str) -> bool:
    """Join a shard's rows to the tree; whether that can be done (a missing shard leaves a gap)."""
    if isinstance(digest, str):
        return False
    first = digest.nodes[0]
    if first.place << first.level != tree.end:
        return False
    tree.extend(digest.nodes)
    return True


def _shard_problems(
    manifest: ShardManifest, shard: int, digest: ShardDigest | str, owners: dict[str, int]
) -> Iterator[str]:
    if isinstance(digest, str):
        yield digest
        return
    if digest.rows != manifest.shard_rows(shard):
        yield f"changed while it was read: {digest.rows} rows, not {manifest.shard_rows(shard)}"
        return
    wanted = manifest.shard_sha256s[shard]
    if digest.sha256 != wanted:
        owner = owners.get(digest.sha256)
        hint = "" if owner is None else f"; these are the bytes of {shard_name(owner)}"
        yield f"sha256 is {digest.sha256}, the manifest says {wanted}{hint}"
    units = manifest.shard_units(shard)
    bad = [unit for unit, sha in zip(units, digest.unit_sha256s, strict=True) if sha != manifest.unit_sha256s[unit]]
    if bad:
        yield f"the sha256 of {len(bad)} of its {len(units)} units differ from the manifest: {_ranges(bad)}"


def _ranges(numbers: Iterable[int]) -> str:
    """``[1, 2, 3, 7]`` → ``"1-3, 7"``; the ranges after the first ten are only counted."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges[:_RANGES_SHOWN]]
    rest = len(ranges) - len(texts)
    return ", ".join(texts) + (f" and {rest} ranges more" if rest else "")


def _check_sample(run: _Run, found: Findings, sample: int) -> None:
    manifest = run.manifest
    readable = [unit for shard in run.whole for unit in manifest.shard_units(shard)]
    chosen = sorted(random.SystemRandom().sample(readable, min(sample, len(readable))))
    total = len(chosen) * manifest.layout.unit_size
    places = [(run.root, manifest.unit_place(unit)) for unit in chosen]
    with run.crew(total) as crew:
        for unit, answer in zip(chosen, crew.map(_unit_sha256, places), strict=True):
            wanted = manifest.unit_sha256s[unit]
            if answer != wanted:
                name = shard_name(manifest.unit_place(unit)[0])
                found.note(name, f"the sha256 of unit {unit} is {answer}, the manifest says {wanted}")
            found.units_read += 1
            found.bytes_read += manifest.layout.unit_size
            run.tell(found.bytes_read, total)
    found.checked.append(f"a sample of {counted(len(chosen), 'unit')}")
    if rest := manifest.n_units - len(chosen):
        found.not_checked.append(f"the other {counted(rest, 'unit')}")
    found.not_checked.append("sha256 of the shards, merkle_root: a sample cannot tell")


def _unit_sha256(place: tuple[Path, tuple[int, int, int]]) -> str:
    """In a worker: the hash of one unit, or why it cannot be read."""
    root, (shard, at, size) = place
    try:
        with (root / shard_name(shard)).open("rb") as file:
            file.seek(at)
            return hashlib.sha256(file.read(size)).hexdigest()
    except OSError as exc:
        return _os_text(exc)


def _os_text(exc: OSError) -> str:
    return "is missing" if isinstance(exc, FileNotFoundError) else f"cannot be read: {exc.strerror}"


def _report(root: Path, found: Findings, manifest: ShardManifest | None, sample: int | None) -> VerifyReport:
    ours = {MANIFEST_NAME, RECORD_NAME}
    not_checked = sorted(found.not_checked, key=lambda text: text.endswith(_VOUCHES))  # what is always so: last
    return VerifyReport(
        directory=str(root),
        mode="full" if sample is None else "sample",
        problems=tuple(found.problems),
        checked=tuple(found.checked),
        not_checked=tuple(not_checked),
        bytes_read=found.bytes_read,
        bytes_total=manifest.n_samples * manifest.layout.row_size if manifest else 0,
        units_read=found.units_read,
        units_total=manifest.n_units if manifest else 0,
        unlisted=tuple(name for name in sorted(os.listdir(root)) if name not in ours and not is_shard_name(name)),
    )
