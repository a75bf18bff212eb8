"""Units from several bases: which base is asked when, and what of a base's manifest is believed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from r2d1.bases import TRIES, Base, BaseReader, Data, WrongBytes, open_reader, read_kept
from r2d1.datasets.background import run_to_end
from r2d1.datasets.layout import MANIFEST_NAME
from r2d1.datasets.manifest import ShardManifest
from r2d1.errors import ConfigError, IntegrityError, R2D1Error, RemoteError, RemoteUnavailable
from r2d1.events import Observer, Teller
from r2d1.objects import ByteRange
from r2d1.retry import Brake, retried
from r2d1.settings import Settings
from r2d1.tasks import in_thread

if TYPE_CHECKING:
    from r2d1.datasets.spec import DatasetSpec

T = TypeVar("T")

#: A base that failed so many units in a row is asked last.
_STRIKES = 3
#: Most bytes of a manifest that are read from a base: that of a set of 250 GB with the default unit has 20 MB.
MAX_MANIFEST = 512 << 20


class Ranking:
    """In which order bases are asked. Pure."""

    def __init__(self, count: int) -> None:
        self._failed = [0] * count
        self._last: list[int] = []

    def order(self) -> list[int]:
        """The numbers of all bases: as given, then those that failed, in the order in which they did."""
        return [each for each in range(len(self._failed)) if each not in self._last] + self._last

    def note(self, base: int, *, gave: bool) -> bool:
        """A base gave a unit, or failed at one for good; whether it has just become one that is asked last."""
        self._failed[base] = 0 if gave else self._failed[base] + 1
        is_given_up = self._failed[base] >= _STRIKES and base not in self._last
        if is_given_up:
            self._last.append(base)
        return is_given_up


@dataclass(frozen=True, slots=True)
class UnitSource:
    """The units of a set, read through its bases and checked against the hashes of ``manifest``."""

    readers: Sequence[BaseReader]
    manifest: ShardManifest
    ranking: Ranking
    tell: Teller

    async def fetch(self, unit: int, keep: Callable[[Data], T]) -> T:
        """A unit from the first base that gives the right bytes: ``keep`` gets them in a worker thread.

        Returns what that returns, and raises what it raises.

        ``IntegrityError`` when bases answered, and all of them wrongly; else ``RemoteUnavailable`` with what each said.
        """
        shard, at, size = self.manifest.unit_place(unit)
        span = ByteRange(at, at + size)
        key, sha256 = self.manifest.shard_key(shard), self.manifest.unit_sha256s[unit]
        failures: list[RemoteError] = []
        for base in self.ranking.order():
            try:
                kept = await read_kept(self.readers[base], key, span, sha256, keep, tell=self.tell)
            except RemoteError as error:
                failures.append(error)
                if self.ranking.note(base, gave=False) and len(self.readers) > 1:
                    self._tell_given_up(base, error)
            else:
                self.ranking.note(base, gave=True)
                return kept
        raise _no_base(f"unit {unit}", failures)

    def _tell_given_up(self, base: int, error: RemoteError) -> None:
        url = self.readers[base].base.url
        text = f"{url} failed for {_STRIKES} units in a row and is asked last from now on: {error}"
        self.tell.notice("warning", text, once=url)


def _no_base(what: str, failures: Sequence[R2D1Error]) -> R2D1Error:
    reason = f"no base gave it: {'; '.join(map(str, failures))}"
    if all(isinstance(failure, WrongBytes | IntegrityError) for failure in failures):
        return IntegrityError(f"{what}: {reason}")
    return RemoteUnavailable("prefetch", what, reason=reason, hint="Check the bases, or give another one")


@asynccontextmanager
async def open_readers(
    bases: Sequence[str | Base], *, settings: Settings | None, connections: int
) -> AsyncIterator[Sequence[BaseReader]]:
    """Open all bases."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(open_reader(base, settings=settings, connections=connections))
            for base in bases
        ]


def checked_bases(bases: Sequence[str | Base]) -> tuple[Base, ...]:
    """The bases that were given; ``ConfigError`` when there is none, or one is malformed."""
    if isinstance(bases, str | Base) or not bases:
        raise ConfigError("give a list of at least one base, the URL under which the set is published")
    return tuple(Base.of(base) for base in bases)


async def believed_manifest(
    readers: Sequence[BaseReader], spec: DatasetSpec | bytes, *, trusted: Collection[str], tell: Teller
) -> ShardManifest:
    """The manifest of the first base that has the one which the spec describes."""
    from r2d1.datasets.spec import bind_manifest, verify_spec

    verified = verify_spec(spec, trusted=trusted)
    failures: list[R2D1Error] = []
    for reader in readers:
        if failures:
            tell.notice("warning", f"the manifest is asked of the next base: {failures[-1]}")
        try:
            read = partial(reader.read_whole, MANIFEST_NAME, limit=MAX_MANIFEST)
            data = await retried(read, policy=TRIES, brake=Brake(), tell=tell)
            return await in_thread(bind_manifest, verified, data)
        except (RemoteError, IntegrityError) as error:
            failures.append(error)
    raise _no_base(MANIFEST_NAME, failures)


async def fetch_manifest_async(
    spec: DatasetSpec | bytes,
    bases: Sequence[str | Base],
    *,
    trusted: Collection[str],
    settings: Settings | None = None,
    observer: Observer | None = None,
) -> ShardManifest:
    """The manifest of the set that a signed ``DatasetSpec`` (or its bytes) describes, from the first base that has it.

    ``trusted`` are the public keys, in hexadecimal, of which one must have signed. Of what a base serves only that
    is believed which the spec or the hashes bind (formats.md §9). ``IntegrityError`` for a spec that is not signed
    by a trusted key, and when all bases serve another manifest; ``RemoteUnavailable`` when none can be read.
    """
    tell = Teller(observer)
    async with open_readers(checked_bases(bases), settings=settings, connections=1) as readers:
        return await believed_manifest(readers, spec, trusted=trusted, tell=tell)


def fetch_manifest(
    spec: DatasetSpec | bytes,
    bases: Sequence[str | Base],
    *,
    trusted: Collection[str],
    settings: Settings | None = None,
    observer: Observer | None = None,
) -> ShardManifest:
    """``fetch_manifest_async`` for blocking callers."""
    return run_to_end(lambda: fetch_manifest_async(spec, bases, trusted=trusted, settings=settings, observer=observer))
