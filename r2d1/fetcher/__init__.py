"""AsyncFetcher: finds what a URI means and brings it onto the disk, verified and whole."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import anyio

from r2d1 import keys, remote
from r2d1.catalog import Catalog
from r2d1.errors import (
    CheckpointGone,
    Closed,
    IntegrityError,
    MissingObjects,
    ObjectNotFound,
    PreconditionFailed,
    RangeRefused,
    UriError,
)  # fmt: skip
from r2d1.events import Observer, PullFinished, Teller
from r2d1.fetcher.bringing import Bringing, Brought, bring, from_legacy, from_manifest, missing_objects
from r2d1.fetcher.info import FetchInfo
from r2d1.fetcher.prefix import bring_prefix, list_prefix
from r2d1.finding import Found, find_latest, find_named, newest_now, why_absent, why_no_latest
from r2d1.heads import read_manifest
from r2d1.keys import CheckpointKeys
from r2d1.manifest import Manifest
from r2d1.observers import to_log
from r2d1.placing import disk_errors
from r2d1.remote import Remote
from r2d1.settings import Settings
from r2d1.tasks import in_thread
from r2d1.transfer.lane import Lane
from r2d1.uris import Latest, Named, Prefix, parse_uri

__all__ = ["AsyncFetcher", "FetchInfo"]

#: How often a pull starts again because the checkpoint changed under it (formats §7).
_STARTS = 5


class _StillChanging(IntegrityError):
    """What was pulled was written over under every attempt."""

    hint = "Try again later"


class AsyncFetcher:
    """Brings checkpoints and datasets from R2 to the local disk.

        async with AsyncFetcher.from_env() as fetcher:
            info = await fetcher.pull("r2://jobs/my_run/latest", dest="ckpts")

    Args:
        settings: from ``Settings.from_env``, ``Settings.from_config`` or made by hand.
        observer: called with every ``r2d1.events.Event`` on the event loop; must not block. By default events go
            to the logger ``r2d1``.
        given: a store and a catalog in place of those the settings name (closed with the fetcher).
        rng: where jitter comes from.

    Raises ``ConfigError`` when the settings lack what R2 needs.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        observer: Observer | None = None,
        given: Remote | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self._tell = Teller(observer or to_log)
        self._given = given
        self._rng = rng or random.SystemRandom()
        self._pid = os.getpid()
        self._stack = AsyncExitStack()
        self._lane: Lane | None = None
        self._catalog: Catalog | None = None
        if given is None:
            settings.require_r2()

    @classmethod
    def from_env(cls, **options: Any) -> Self:
        """A fetcher with settings from the environment (and ``.env``, with the extra ``dotenv``)."""
        return cls(Settings.from_env(), **options)

    @classmethod
    def from_config(cls, secrets: Mapping[str, object], **options: Any) -> Self:
        """A fetcher with settings from the ``secrets`` block of a job file, exported to ``os.environ`` too."""
        return cls(Settings.from_config(secrets), **options)

    async def __aenter__(self) -> Self:
        if os.getpid() != self._pid:
            raise Closed("this fetcher belongs to the parent process; make a new one after the fork")
        ends = await self._stack.enter_async_context(
            remote.opened(self.settings, tell=self._tell, rng=self._rng, given=self._given)
        )
        self._catalog = ends.catalog
        self._lane = ends.lane(self.settings, self._tell)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lane = None
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    async def pull(self, source: str, dest: str | os.PathLike[str], force: bool = False) -> FetchInfo:
        """Bring what a URI means below ``dest``; ``found=False`` when nothing is there, every failure raises.

        Of a checkpoint that was deleted, given up, or is still being shipped, ``why`` says so.

        Args:
            source: ``r2://jobs/<id>/latest`` (highest epoch), ``r2://jobs/<id>/<name>``, or ``r2://<prefix>``.
            dest: a directory, made if missing. A checkpoint lands in ``<dest>/<name>/`` with ``<dest>/<name>.json``
                beside it, a prefix in ``<dest>/`` file by file.
            force: fetch anew even what is there and matches.

        The folder appears under its name only when all of it was verified; an interrupted pull leaves what
        was there before and is resumed by the next one.

        Raises ``UriError`` (also for the key of one object, which is no prefix), ``AccessRefused``, ``BucketNotFound``,
        ``RemoteUnavailable``, ``IntegrityError`` for damage that stays, ``MissingObjects`` listing every key,
        ``CheckpointGone``, ``FormatError`` for what a newer r2d1 wrote, ``NoSpace``, ``UnsafeDestination``,
        ``NameRefused``.
        """
        lane = self._open_lane()
        target = parse_uri(source)
        path = Path(dest).absolute()
        started = anyio.current_time()
        with disk_errors(f"pulling {keys.shown(source)} into {path}"):
            await in_thread(lambda: path.mkdir(parents=True, exist_ok=True))
            info, brought, total = await self._pull(lane, target, source, path, force)
        if info.found:
            seconds = anyio.current_time() - started
            name = info.name or source
            self._tell(
                PullFinished(source, name, str(info.local_dir), info.cached, total, brought.fetched_bytes, seconds)
            )
        return info

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncFetcher is not pickled: make a new one in the other process")

    def _open_lane(self) -> Lane:
        if os.getpid() != self._pid:
            raise Closed("this fetcher belongs to the parent process; make a new one after the fork")
        if self._lane is None:
            raise Closed("the fetcher is not open; use `async with AsyncFetcher(...) as fetcher:`")
        return self._lane

    async def _pull(
        self, lane: Lane, target: Latest | Named | Prefix, source: str, dest: Path, force: bool
    ) -> tuple[FetchInfo, Brought, int]:
        if isinstance(target, Latest):
            find = lambda: find_latest(lane.store, self._catalog, target.job_id, self._tell)  # noqa: E731
            result = await self._pull_checkpoint(lane, find, source, dest, dest, force)
            if result[0].found:
                return result
            return replace(result[0], why=await why_no_latest(lane.store, target.job_id)), *result[1:]
        if isinstance(target, Named):
            of = target.of
            root = dest.parent if dest.name == of.name else dest
            result = await self._pull_checkpoint(
                lane, lambda: find_named(lane.store, of, self._tell), source, root, dest, force
            )
            if result[0].found:
                return result
            if why := await why_absent(lane.store, self._catalog, of, self._tell):
                return replace(result[0], why=why), *result[1:]
            target = Prefix(f"jobs/{of.job_id}/{of.name}")
        return await self._pull_prefix(lane, target.prefix, source, dest, force)

    async def _pull_checkpoint(
        self, lane: Lane, find: Callable[[], Awaitable[Found | None]], source: str, root: Path, dest: Path, force: bool
    ) -> tuple[FetchInfo, Brought, int]:
        pull = _CheckpointPull(lane, source, root, force)
        for _ in range(_STARTS):
            found = await find()
            if found is None:
                if pull.last is not None:
                    raise await self._gone(lane, pull.last.of)
                return FetchInfo(dest, source, found=False), Brought(is_cached=False), 0
            if (result := await pull.attempt(found)) is not None:
                return result
        raise _StillChanging(f"{source}: the checkpoint changed under each of {_STARTS} pulls. Try again later")

    async def _gone(self, lane: Lane, of: CheckpointKeys) -> CheckpointGone:
        now = await newest_now(lane.store, self._catalog, of.job_id, self._tell)
        return CheckpointGone(f"r2://jobs/{of.job_id}/{of.name} was deleted while it was being pulled; {now}")

    def _why_nothing_below(self, prefix: str) -> str:
        """A likely mistake, which would pass for a fresh start."""
        first, slash, rest = prefix.partition("/")
        is_bucket = bool(slash) and first == self.settings.bucket
        return f"a URI names no bucket, and nothing lies below {first}/ in it; perhaps r2://{rest}" if is_bucket else ""

    async def _pull_prefix(
        self, lane: Lane, prefix: str, source: str, dest: Path, force: bool
    ) -> tuple[FetchInfo, Brought, int]:
        for start in range(_STARTS):
            wanted = await list_prefix(lane.store, prefix, lane.part_size)
            if not wanted:
                await _refuse_one_object(lane, prefix, source)
                why = self._why_nothing_below(prefix)
                return FetchInfo(dest, source, found=False, why=why), Brought(is_cached=False), 0
            total = sum(one.size for one in wanted)
            try:
                brought = await bring_prefix(lane, source, prefix, dest, wanted, force=force and start == 0)
            except (ObjectNotFound, PreconditionFailed, RangeRefused) as exc:
                self._tell.notice("warning", f"{source} changed while it was being pulled; listing it again: {exc}")
                continue
            return FetchInfo(dest, source, cached=brought.is_cached, size_mb=total / 2**20), brought, total
        raise _StillChanging(f"{source}: the objects changed under each of {_STARTS} pulls. Try again later")


async def _refuse_one_object(lane: Lane, key: str, source: str) -> None:
    """The key of one object is no prefix: nothing lies below it, and that is no fresh start."""
    try:
        await lane.store.head(key)
    except ObjectNotFound:
        return
    above = source.rstrip("/").rpartition("/")[0]
    raise UriError(f"{keys.shown(source)} is one object, not a prefix: pull what it lies in, {keys.shown(above)}")


class _CheckpointPull:
    """The attempts at one checkpoint, and what the last one of them was after."""

    def __init__(self, lane: Lane, source: str, root: Path, force: bool) -> None:
        self._lane, self._source, self._root, self._force = lane, source, root, force
        self._etags = True
        self.last: Bringing | None = None

    async def attempt(self, found: Found) -> tuple[FetchInfo, Brought, int] | None:
        """Bring what was found; None when it changed meanwhile and must be found again."""
        manifest: Manifest | None = None
        if found.head is not None:
            manifest = await read_manifest(self._lane.store, found.of, found.head)
            if manifest is None:
                await self._refuse_unchanged(found, [found.of.manifest(found.head.prefix)])
                return None
        job = self._bringing(found, manifest)
        try:
            brought = await bring(self._lane, job, force=self._force)
        except (ObjectNotFound, PreconditionFailed, RangeRefused, IntegrityError) as error:
            await self._after_failure(found, job, error)
            return None
        return self._info(found, job, brought, manifest), brought, job.total_bytes

    def _bringing(self, found: Found, manifest: Manifest | None) -> Bringing:
        if found.head is not None and manifest is not None:
            job = from_manifest(self._source, self._root, found.head, found.of, manifest, etags=self._etags)
        else:
            assert found.legacy is not None
            job = from_legacy(self._source, self._root, found.legacy, self._lane.part_size)
        if self.last is not None and self.last.binding == job.binding:
            job = replace(job, told=self.last.told, is_again=True)
        else:
            self._etags = True
        self.last = job
        return job

    async def _after_failure(self, found: Found, job: Bringing, error: Exception) -> None:
        """Return when the checkpoint changed or the ETags were to blame; else raise what is wrong with it."""
        if not await self._is_unchanged(found):
            return
        if isinstance(error, IntegrityError):
            raise error
        if missing := await missing_objects(self._lane.store, job):
            raise self._missing(found, missing) from error
        if not self._etags or found.legacy is not None:
            raise error
        self._etags = False  # a copied bucket has other ETags: the digests decide

    async def _is_unchanged(self, found: Found) -> bool:
        now = await find_named(self._lane.store, found.of, self._lane.tell)
        if found.head is None:
            return now is not None and now.legacy == found.legacy
        return now is not None and now.head == found.head

    async def _refuse_unchanged(self, found: Found, missing: list[str]) -> None:
        if await self._is_unchanged(found):
            raise self._missing(found, missing)

    def _missing(self, found: Found, missing: list[str]) -> MissingObjects:
        shown = "\n  ".join(keys.shown(key) for key in missing)
        return MissingObjects(
            f"{self._source}: {found.of.name} is committed, but {len(missing)} of its objects are missing from "
            f"{self._lane.store.where} or have another size (what was fetched is kept for the next try):\n  {shown}",
            missing,
        )

    def _info(self, found: Found, job: Bringing, brought: Brought, manifest: Manifest | None) -> FetchInfo:
        metadata = manifest.metadata if manifest else found.legacy.sidecar.metadata if found.legacy else {}
        return FetchInfo(
            local_dir=job.folder,
            source=self._source,
            cached=brought.is_cached,
            epoch=found.epoch,
            size_mb=job.total_bytes / 2**20,
            name=found.of.name,
            manifest=job.binding if manifest else None,
            verified=manifest is not None,
            timestamp=found.timestamp,
            metadata=metadata if isinstance(metadata, dict) else {"metadata": metadata},
        )
