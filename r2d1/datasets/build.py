"""Building a text mix: from parquet files in a cache to a shard set, deterministic and offline (formats.md §9)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from r2d1.datasets.beside_loop import beside_loop
from r2d1.datasets.built import MIN_MEMORY, BuildOptions, BuildReport, source_report
from r2d1.datasets.decontaminate import write_table
from r2d1.datasets.gathering import ShardTask, write_set_shard
from r2d1.datasets.layout import MAX_SHARDS, ShardLayout, plan_layout
from r2d1.datasets.manifest import BuildRecord, Fragment, MixSource, ShardManifest
from r2d1.datasets.mixes import Mix, Registry, Source, TokenizerEntry, load_registry
from r2d1.datasets.ordering import Sorter
from r2d1.datasets.parquet import Slice, list_files, plan_slices, read_columns
from r2d1.datasets.selection import Given, select_documents
from r2d1.datasets.shards import ShardDigest, make_manifest, write_whole
from r2d1.datasets.stages import ScanCounts, SourceTask, read_references, scan, tokenize
from r2d1.datasets.tokens import open_tokenizer
from r2d1.datasets.workers import OnProgress, Progress, Workers, checked_workers
from r2d1.datasets.workspace import Space, open_space, place
from r2d1.errors import ConfigError, FormatError, IntegrityError, NoSpace, R2D1Error

T = TypeVar("T")
R = TypeVar("R")

#: What the calling process and one worker take, with their libraries and their share of text and ids.
_BASE_MEMORY = 256 * 2**20
_WORKER_MEMORY = 256 * 2**20
#: About how many bytes are worth a process of their own: to start one costs 0.2 s of a core.
_WORTH_A_WORKER = 8 * 2**20
_WORKSPACE_VERSION = 1
_NOWHERE = Space(Path())  # until the workspace is open


def build_mix(
    mix_id: str,
    *,
    out: str | os.PathLike[str],
    cache: str | os.PathLike[str],
    registry: str | os.PathLike[str] | Registry | None = None,
    options: BuildOptions | None = None,
    on_progress: OnProgress | None = None,
) -> BuildReport:
    """Build the text mix ``mix_id`` from ``<cache>/<source id>/**/*.parquet`` into the directory ``out``.

    What is finished is kept in ``<out>.building`` until the end, so a build that was killed goes on where it
    stopped when it is started again with the same inputs. ``out`` is touched last: the set is moved into place,
    its manifest last; shards of an earlier, larger set are removed, other files stay.

    ``ConfigError`` for an unknown or a record mix, options that make no sense, a source without files;
    ``FormatError`` for rows that cannot be used (source, file and row named) or too few of them;
    ``IntegrityError`` for another tokenizer than the pinned one, or another root than the registry records;
    ``LockHeld`` when another build of the same output is running; ``NoSpace`` when the disk is full.
    """
    known = registry if isinstance(registry, Registry) else load_registry(registry)
    wanted = _plan(mix_id, known, Path(cache), options or BuildOptions(), on_progress)
    target = Path(os.path.realpath(out))
    with _disk_errors_told(target), open_space(target, wanted.inputs()) as space:
        run = replace(wanted, space=space)
        references = _collect_references(run)
        counts = _scan_components(run)
        _tokenize_components(run)
        chosen = _order_documents(run)
        dropped, digests = _cut_shards(run, target, sum(given.ids_given for given in chosen))
        manifest, record = _describe(run, counts, dropped, digests)
        place(space, target, manifest, record)
    return _report(run, target, references, counts, chosen, manifest, record)


async def build_mix_async(
    mix_id: str,
    *,
    out: str | os.PathLike[str],
    cache: str | os.PathLike[str],
    registry: str | os.PathLike[str] | Registry | None = None,
    options: BuildOptions | None = None,
    on_progress: OnProgress | None = None,
) -> BuildReport:
    """``build_mix`` beside a running event loop; ``on_progress`` is called in a worker thread."""
    return await beside_loop(
        lambda report: build_mix(mix_id, out=out, cache=cache, registry=registry, options=options, on_progress=report),
        on_progress,
    )


@contextmanager
def _disk_errors_told(root: Path) -> Iterator[None]:
    """Say of what the operating system refuses which build it was, and that it can go on."""
    try:
        yield
    except R2D1Error:
        raise
    except OSError as exc:
        kind = NoSpace if exc.errno in (errno.ENOSPC, errno.EDQUOT) else R2D1Error
        what = f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc.strerror)
        raise kind(f"the build beside {root} was stopped by the disk: {what}; started again it goes on") from exc


@dataclass(frozen=True, slots=True)
class _Run:
    """One build: everything it was asked for, resolved and checked."""

    mix: Mix
    registry: Registry
    layout: ShardLayout
    cache: Path
    options: BuildOptions
    tokenizer: TokenizerEntry | None
    components: tuple[tuple[Source, tuple[Slice, ...]], ...]
    references: tuple[tuple[Source, tuple[Slice, ...]], ...]
    workers: int
    on_progress: OnProgress | None
    space: Space = _NOWHERE

    def inputs(self) -> object:
        """What the finished stages depend on; another value means that they are of no use."""
        return {
            "workspace": _WORKSPACE_VERSION,
            "mix": self.mix.id,
            "registry_sha256": self.registry.sha256,
            "layout": asdict(self.layout),
            "limit_docs": self.options.limit_docs,
            "versions": [unicodedata.unidata_version, _tokenizers_version()],
            "cache": os.path.realpath(self.cache),
            "slices": [
                [source.id, [asdict(part) for part in parts]] for source, parts in (*self.components, *self.references)
            ],
        }

    def tasks(self, which: Sequence[tuple[Source, tuple[Slice, ...]]]) -> list[SourceTask]:
        """A task for every slice, numbered through all sources."""
        pairs = [(place, source, part) for place, (source, parts) in enumerate(which) for part in parts]
        return [
            SourceTask(self.space, self.cache, self.mix.id, source, place, part, number, self.tokenizer)
            for number, (place, source, part) in enumerate(pairs)
        ]

    def sorter(self) -> Sorter:
        """The sorting engine, with what the calling process leaves it of the memory."""
        return Sorter(self.space.spill(), memory=(self.options.memory - _BASE_MEMORY) // 2, threads=self.cores)

    @property
    def cores(self) -> int:
        return checked_workers(self.options.workers)

    def tell(self, stage: str, done: int, total: int, unit: str) -> None:
        if self.on_progress is not None:
            self.on_progress(Progress(stage, done, total, unit))

    def each(self, stage: str, func: Callable[[T], R], items: Sequence[T], sizes: Sequence[int]) -> Iterator[R]:
        """``func`` of every item on as many workers as the work is worth; tells progress in bytes."""
        total, done = sum(sizes), 0
        count = max(1, min(self.workers, len(items), total // _WORTH_A_WORKER + 1))
        self.tell(stage, 0, total, "bytes")
        with Workers(count, threads=-(-self.cores // count)) as workers:
            for size, result in zip(sizes, workers.map(func, items), strict=True):
                done += size
                self.tell(stage, done, total, "bytes")
                yield result


def _plan(mix_id: str, registry: Registry, cache: Path, options: BuildOptions, on_progress: OnProgress | None) -> _Run:
    mix, seq_len = registry.text_mix(mix_id)
    layout = plan_layout(seq_len, unit=options.unit, samples_per_shard=options.samples_per_shard)
    if options.limit_docs is not None and options.limit_docs < 1:
        raise ConfigError(f"limit_docs is {options.limit_docs}; it must be 1 or more")
    if options.memory < MIN_MEMORY:
        raise ConfigError(f"memory is {options.memory} bytes; a build needs {MIN_MEMORY // 2**20} MiB or more")
    entry = registry.tokenizer_of(mix)
    open_tokenizer(cache, entry)  # a wrong one shows now, not after hours
    fitting = (options.memory - _BASE_MEMORY) // _WORKER_MEMORY
    components = (registry.sources[name] for name, _ in mix.components)
    references = (registry.sources[name] for name in mix.decontam_against)
    return _Run(
        mix=mix,
        registry=registry,
        layout=layout,
        cache=cache,
        options=options,
        tokenizer=entry,
        components=tuple((source, _slices(cache, source, whole=False)) for source in components),
        references=tuple((source, _slices(cache, source, whole=True)) for source in references),
        workers=max(1, min(checked_workers(options.workers), fitting)),
        on_progress=on_progress,
    )


def _slices(cache: Path, source: Source, *, whole: bool) -> tuple[Slice, ...]:
    files = list_files(cache, source.id)
    if not files:
        raise ConfigError(
            f"source {source.id} has no parquet file below {cache / source.id};"
            f" fetch {', '.join(source.files)} of {source.repo} at revision {source.revision}"
        )
    columns = [source.text_field] + ([source.filter.column] if source.filter else [])
    return tuple(part for file in files for part in plan_slices(cache, file, None if whole else columns))


@dataclass(frozen=True, slots=True)
class _References:
    texts: int
    shingles: int


def _collect_references(run: _Run) -> _References:
    """Gather the shingles of all reference texts into one sorted table."""
    tasks = run.tasks(run.references)
    texts = sum(run.each("references", read_references, tasks, [task.part.size for task in tasks]))
    mark = run.space.table() / "mark.json"
    if not mark.exists():
        write_whole(mark, json.dumps(_write_table(run, bool(tasks))).encode())
    return _References(texts, int(json.loads(mark.read_bytes())))


def _write_table(run: _Run, filled: bool) -> int:
    target = run.space.table() / "shingles.parquet"
    if not filled:
        write_table(run.space.table(), iter(()), 0, 0)
        return 0
    with run.sorter() as sorter:
        sorter.unique_shingles(run.space.root / "references", "*.parquet", target)
    count = sum(len(block["fast"]) for block in read_columns(target))
    write_table(run.space.table(), read_columns(target), count, run.options.memory // 8)
    target.unlink()
    return count


def _scan_components(run: _Run) -> list[list[ScanCounts]]:
    """Filter, decontaminate and key every row; what became of them, slice by slice, for each component."""
    tasks = run.tasks(run.components)
    found: list[list[ScanCounts]] = [[] for _ in run.components]
    results = run.each("scan", scan, tasks, [task.part.size for task in tasks])
    for task, counts in zip(tasks, results, strict=True):
        found[task.source_number].append(counts)
    return found


def _tokenize_components(run: _Run) -> None:
    cutoffs = _cutoffs(run)
    tasks = [replace(task, cutoff=cutoffs[task.source_number]) for task in run.tasks(run.components)]
    for _ in run.each("tokenize", tokenize, tasks, [task.part.size for task in tasks]):
        pass


def _cutoffs(run: _Run) -> list[bytes | None]:
    """For each component the key of the last document within the limit; ``None`` without one."""
    limit = run.options.limit_docs
    if limit is None:
        return [None] * len(run.components)
    with run.sorter() as sorter:
        return [
            sorter.nth_key(run.space.root / "scan", f"{number}-*.parquet", limit) if parts else None
            for number, (_, parts) in enumerate(run.components)
        ]


def _order_documents(run: _Run) -> list[Given]:
    """Put all documents in the order of their keys, and take of each component what the ratios give it."""
    run.tell("order", 0, 1, "sorts")
    ordered = run.space.ordered()
    if not ordered.exists() and any(parts for _, parts in run.components):
        with run.sorter() as sorter:
            sorter.order_documents(run.space.root / "tokens", "*.parquet", ordered)
    ratios = [ratio for _, ratio in run.mix.components]
    chosen = select_documents(run.space, ratios, run.options.limit_docs)
    run.tell("order", 1, 1, "sorts")
    return chosen


def _cut_shards(run: _Run, out: Path, ids: int) -> tuple[int, list[ShardDigest]]:
    """Write the shards; returns how many rows did not fill a unit, and the hashes."""
    rows = ids // (run.layout.seq_len + 1)
    kept = rows - rows % run.layout.unit
    if not kept:
        raise FormatError(
            f"mix {run.mix.id} gives {rows} rows of {run.layout.seq_len + 1} ids, fewer than one unit of"
            f" {run.layout.unit}; more input or a smaller unit is needed"
        )
    parts = run.layout.shards_of(kept)
    if len(parts) > MAX_SHARDS:
        raise ConfigError(f"{len(parts)} shards: their names have room for {MAX_SHARDS}; raise samples_per_shard")
    tasks = [ShardTask(run.space, out, run.layout, shard, (part.start, part.stop)) for shard, part in enumerate(parts)]
    sizes = [len(part) * run.layout.row_size for part in parts]
    return rows - kept, list(run.each("shards", write_set_shard, tasks, sizes))


def _describe(
    run: _Run, counts: Iterable[Iterable[ScanCounts]], dropped: int, digests: Sequence[ShardDigest]
) -> tuple[ShardManifest, BuildRecord]:
    removed = tuple(sorted(key for parts in counts for part in parts for key in part.removed))
    extra = {
        "dropped_tail_samples": dropped,
        "mix_id": run.mix.id,
        "removed_ids_sha256": hashlib.sha256("\n".join(removed).encode()).hexdigest(),
    }
    pin = open_tokenizer(run.cache, run.tokenizer).pin
    manifest = make_manifest(digests, run.layout, tokenizer=pin, extra=extra)
    recorded = run.registry.merkle_roots.get(run.mix.id, manifest.merkle_root)
    if recorded != manifest.merkle_root:
        raise IntegrityError(
            f"mix {run.mix.id} was built to the root {manifest.merkle_root}, but the registry records {recorded};"
            f" nothing was put into place. Inputs, limits, Unicode {unicodedata.unidata_version} or"
            f" tokenizers {_tokenizers_version()} differ from those of the recorded build"
        )
    source = MixSource(mix_id=run.mix.id, registry_sha256=run.registry.sha256)
    return manifest, BuildRecord(Fragment.of(manifest, source), removed)


def _tokenizers_version() -> str:
    try:
        return version("tokenizers")
    except PackageNotFoundError:  # the byte tokenizer does without it
        return "not installed"


def _report(
    run: _Run,
    target: Path,
    references: _References,
    counts: Sequence[Sequence[ScanCounts]],
    chosen: Sequence[Given],
    manifest: ShardManifest,
    record: BuildRecord,
) -> BuildReport:
    ids = sum(given.ids_given for given in chosen)
    rows = manifest.n_samples + int(str(manifest.extra["dropped_tail_samples"]))
    return BuildReport(
        directory=str(target),
        manifest=manifest,
        record=record,
        sources=tuple(
            source_report(source, ratio, parts, given)
            for (source, ratio), parts, given in zip(run.mix.components, counts, chosen, strict=True)
        ),
        reference_texts=references.texts,
        reference_shingles=references.shingles,
        ids_left_over=ids - rows * (run.layout.seq_len + 1),
        unicode_version=unicodedata.unidata_version,
        tokenizers_version=_tokenizers_version(),
    )
