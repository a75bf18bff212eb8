"""verify, reindex, rm and gc over a bucket in memory with a clock of the test's own."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from r2d1.catalog import SqliteCatalog
from r2d1.courier import AsyncCourier
from r2d1.documents import Head, decode_head, decode_record
from r2d1.errors import FormatError
from r2d1.events import Event, Notice, Teller
from r2d1.fetcher import AsyncFetcher
from r2d1.finding import Begun, what_was_begun, why_absent, why_no_latest
from r2d1.gc import GC_AGE_S, collect
from r2d1.heads import read_record
from r2d1.keys import CheckpointKeys
from r2d1.listing import look_at
from r2d1.maintain import reindex_job, remove, remove_after, verify_target
from r2d1.objects import ByteRange, BytesSource, ObjectInfo, Sink
from r2d1.remote import Remote
from r2d1.settings import Settings
from r2d1.sidecar import write_sidecar
from r2d1.testing.bucket import Bucket
from r2d1.testing.memory import MemoryStore
from r2d1.testing.rules import Rules
from r2d1.transfer.lane import Lane
from r2d1.uris import Latest, Named

JOB = "job"
TELL = Teller(None)
RNG = random.Random(1)


@dataclass(slots=True)
class Scene:
    """A bucket, a catalog and a directory of checkpoints."""

    root: Path
    now: float = 1_700_000_000.0
    bucket: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.bucket = Bucket(Rules.lenient(), clock=self.clock)

    def clock(self) -> float:
        self.now += 0.001
        return self.now

    def remote(self) -> Remote:
        return Remote(MemoryStore(self.bucket), SqliteCatalog(self.root / "catalog.db"))

    async def ship(self, name: str, epoch: int, data: bytes) -> None:
        folder = self.root / "w" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.bin").write_bytes(data)
        (folder / "empty").write_bytes(b"")
        write_sidecar(folder, epoch=epoch, metadata={"loss": 0.1})
        async with AsyncCourier(Settings(), given=self.remote()) as courier:
            await courier.ship(folder, JOB)

    async def rows(self) -> dict[str, tuple[int, str]]:
        catalog = SqliteCatalog(self.root / "catalog.db")
        try:
            return {row.name: (row.epoch, row.r2_prefix) for row in await catalog.rows(JOB)}
        finally:
            await catalog.aclose()

    def head(self, name: str):
        of = CheckpointKeys(JOB, name)
        stored = self.bucket.stored(of.head)
        return decode_head(b"".join(map(bytes, stored.blob.blocks(0, stored.size, 1 << 20))), key=of.head, of=of)

    def below(self, prefix: str) -> list[str]:
        return self.bucket.keys(f"{prefix}/")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    yield Scene(tmp_path)


def named(name: str) -> Named:
    return Named(CheckpointKeys(JOB, name))


async def verified(scene: Scene, target: Named | Latest, *, deep: bool):
    store = MemoryStore(scene.bucket)
    return await verify_target(Lane(store, TELL), None, target, "r2://x", deep=deep)


async def test_verify_finds_what_is_damaged_and_what_is_missing(scene: Scene) -> None:
    """A listing finds missing and short objects; only a deep look finds changed bytes of the same size."""
    await scene.ship("chk_1", 1, b"a" * 1000)
    assert (await verified(scene, Latest(JOB), deep=True)).problems == ()
    scene.bucket.corrupt("jobs/job/chk_1/model.bin", at=500)
    assert (await verified(scene, named("chk_1"), deep=False)).problems == ()
    (problem,) = (await verified(scene, named("chk_1"), deep=True)).problems
    assert "model.bin" in problem and "expected" in problem
    scene.bucket.remove("jobs/job/chk_1/empty")
    assert any("empty" in why for why in (await verified(scene, named("chk_1"), deep=False)).problems)
    assert await verified(scene, named("chk_9"), deep=True) is None


async def test_reindex_rebuilds_rows_and_hints(scene: Scene) -> None:
    """With the catalog wiped and hints gone, the heads alone bring both back."""
    for epoch in (1, 2):
        await scene.ship(f"chk_{epoch}", epoch, bytes([epoch]) * 100)
    for key in scene.bucket.keys("jobs/job/.r2d1/latest/"):
        scene.bucket.remove(key)
    (scene.root / "catalog.db").unlink()
    remote = scene.remote()
    done = await reindex_job(remote, JOB, TELL)
    await remote.catalog.aclose()
    assert (done.heads, done.hints, done.rows) == (2, 2, 2)
    assert await scene.rows() == {"chk_1": (1, "jobs/job/chk_1"), "chk_2": (2, "jobs/job/chk_2")}


async def test_rm_hides_first_and_leaves_nothing_but_the_head(scene: Scene) -> None:
    """rm marks the head deleted, then takes row, hint and objects away; a second call has nothing to do."""
    await scene.ship("chk_1", 1, b"a" * 100)
    await scene.ship("chk_2", 2, b"b" * 100)
    store = MemoryStore(scene.bucket)
    remote = Remote(store, SqliteCatalog(scene.root / "catalog.db"))
    done = await remove(remote, CheckpointKeys(JOB, "chk_2"), RNG)
    assert done is not None and done.prefixes == ("jobs/job/chk_2",)
    writes = [record.key for record in store.requests if record.method in ("PUT", "DELETE", "POST")]
    assert writes[0] == "jobs/job/.r2d1/heads/chk_2.json", "nothing may be deleted before the head says so"
    assert scene.head("chk_2").deleted
    assert scene.below("jobs/job/chk_2") == []
    assert not [key for key in scene.bucket.keys("jobs/job/.r2d1/latest/") if "chk_2" in key]
    assert list(await scene.rows()) == ["chk_1"]
    assert await remove(remote, CheckpointKeys(JOB, "chk_9"), RNG) is None
    assert await remove_after(remote, JOB, 0, RNG)
    await remote.catalog.aclose()
    assert await scene.rows() == {}


async def test_the_ship_before_the_replaced_one_is_deleted(scene: Scene) -> None:
    """A slot shipped three times keeps two versions: the one that counts and the one readers may still be at."""
    for epoch in (1, 2, 3):
        await scene.ship("slot_0", epoch, bytes([epoch]) * 100)
    head = scene.head("slot_0")
    assert head.epoch == 3 and head.replaces is not None
    assert scene.below("jobs/job/slot_0") == []
    assert scene.below(head.prefix) and scene.below(head.replaces)
    assert scene.bucket.stored("jobs/job/.r2d1/ships/slot_0/0.json"), "record 0 stays for ever"


async def orphan(scene: Scene, ship: str = "0123456789ab") -> str:
    """A ship that was begun and never committed, with an upload left open."""
    of = CheckpointKeys(JOB, "chk_1")
    store = MemoryStore(scene.bucket)
    record = b'{"created_by":"x","host":"h","owner":"%s","state":"open","version":1}' % (b"f" * 32)
    await store.put(of.record(ship), BytesSource(record))
    await store.put(f"{of.prefix(ship)}/model.bin", BytesSource(b"half"))
    upload = await store.create_upload(f"{of.prefix(ship)}/big.bin")
    await store.put_part(f"{of.prefix(ship)}/big.bin", upload, 1, BytesSource(b"x"))
    return of.prefix(ship)


async def test_gc_takes_old_ships_that_no_head_needs(scene: Scene) -> None:
    """gc lists by default, leaves young ships alone, and takes old ones behind a fence on the head."""
    await scene.ship("chk_1", 1, b"a" * 100)
    prefix = await orphan(scene)
    store = MemoryStore(scene.bucket)
    assert (await collect(store, JOB, TELL, RNG, delete=True)).ships == []
    scene.now += GC_AGE_S + 10
    before = scene.head("chk_1").seq
    done = await collect(store, JOB, TELL, RNG, delete=True)
    assert done.deleted == [prefix]
    assert scene.below(prefix) == [] and not scene.bucket.open_uploads()
    assert scene.head("chk_1").seq == before + 1, "the head is the fence"
    assert (await verified(scene, named("chk_1"), deep=True)).problems == ()
    record = scene.bucket.keys("jobs/job/.r2d1/ships/chk_1/0123456789ab")
    assert record, "it is what tells the next gc of what came after this one"


async def test_the_next_gc_takes_what_was_sent_after_the_first(scene: Scene) -> None:
    """Its courier was alive when gc took the ship, and was lost with its disk before it looked at its record."""
    await scene.ship("chk_1", 1, b"a" * 100)
    prefix = await orphan(scene)
    store = MemoryStore(scene.bucket)
    scene.now += GC_AGE_S + 10
    assert (await collect(store, JOB, TELL, RNG, delete=True)).deleted == [prefix]
    await store.put(f"{prefix}/late.bin", BytesSource(b"late"))
    await store.create_upload(f"{prefix}/later.bin")
    assert (await collect(store, JOB, TELL, RNG, delete=True)).ships == []
    scene.now += GC_AGE_S + 10
    assert (await collect(store, JOB, TELL, RNG, delete=True)).deleted == [prefix]
    assert scene.below(prefix) == [] and not scene.bucket.open_uploads()
    assert not [key for key in scene.bucket.keys("jobs/job/.r2d1/ships/") if "0123456789ab" in key]
    scene.now += GC_AGE_S + 10
    assert (await collect(store, JOB, TELL, RNG, delete=True)).ships == []


async def test_gc_without_delete_changes_nothing(scene: Scene) -> None:
    """Listing garbage writes and deletes nothing."""
    await orphan(scene)
    scene.now -= 30 * 86_400  # long ago by this host's clock
    keys = scene.bucket.keys()
    found = await collect(MemoryStore(scene.bucket), JOB, TELL, RNG, delete=False)
    assert len(found.ships) == 1 and found.deleted == []
    assert scene.bucket.keys() == keys


async def test_gc_fences_a_courier_that_never_committed(scene: Scene) -> None:
    """Where there is no head yet, gc writes a deleted one, so that a paused courier's commit must look again."""
    prefix = await orphan(scene)
    scene.now += GC_AGE_S + 10
    done = await collect(MemoryStore(scene.bucket), JOB, TELL, RNG, delete=True)
    assert done.deleted == [prefix]
    assert scene.head("chk_1").deleted and scene.head("chk_1").seq == 1
    await scene.ship("chk_1", 1, b"a" * 100)
    assert not scene.head("chk_1").deleted and scene.head("chk_1").seq == 2


async def test_gc_leaves_a_job_alone_that_speaks_a_newer_language(scene: Scene) -> None:
    """A head of an unknown version stops gc for the whole job, and is reported."""
    await scene.ship("chk_1", 1, b"a" * 100)
    await orphan(scene)
    scene.bucket.place("jobs/job/.r2d1/heads/chk_2.json", b'{"version":2}')
    scene.now += GC_AGE_S + 10
    keys = scene.bucket.keys()
    done = await collect(MemoryStore(scene.bucket), JOB, TELL, RNG, delete=True)
    assert done.deleted == [] and "version" in done.skipped[0]
    assert scene.bucket.keys() == keys


async def test_gc_removes_stale_hints(scene: Scene) -> None:
    """A hint whose head says another epoch goes when it is old; the right one stays."""
    await scene.ship("slot_0", 1, b"a" * 100)
    await scene.ship("slot_0", 2, b"b" * 100)
    scene.now += GC_AGE_S + 10
    done = await collect(MemoryStore(scene.bucket), JOB, TELL, RNG, delete=True)
    assert done.hints == [CheckpointKeys(JOB, "slot_0").hint(1)]
    assert scene.bucket.keys("jobs/job/.r2d1/latest/") == [CheckpointKeys(JOB, "slot_0").hint(2)]


async def test_a_record_of_an_unknown_version_is_never_taken(scene: Scene) -> None:
    """Nothing of a ship whose record cannot be understood is touched."""
    of = CheckpointKeys(JOB, "chk_1")
    scene.bucket.place(of.record("0123456789ab"), b'{"version":9}')
    scene.bucket.place(f"{of.prefix('0123456789ab')}/x", b"x")
    scene.now += GC_AGE_S + 10
    with pytest.raises(FormatError):
        decode_record(b'{"version":9}', key="k")
    done = await collect(MemoryStore(scene.bucket), JOB, TELL, RNG, delete=True)
    assert done.deleted == [] and done.skipped
    assert scene.below(of.prefix("0123456789ab")) == [f"{of.prefix('0123456789ab')}/x"]


async def test_a_committed_ship_that_lost_an_object_is_healed_by_shipping_again(scene: Scene) -> None:
    """The same files shipped again replace a version whose object is gone, instead of being called there already."""
    await scene.ship("chk_1", 1, b"a" * 100)
    scene.bucket.remove("jobs/job/chk_1/model.bin")
    assert (await verified(scene, named("chk_1"), deep=False)).problems
    await scene.ship("chk_1", 1, b"a" * 100)
    assert (await verified(scene, named("chk_1"), deep=True)).problems == ()


async def test_gc_finds_an_upload_of_a_first_ship_that_was_killed(scene: Scene) -> None:
    """A ship 0 killed in its first part has no object yet, only an open upload, and is garbage all the same."""
    of = CheckpointKeys(JOB, "chk_1")
    store = MemoryStore(scene.bucket)
    record = b'{"created_by":"x","host":"h","owner":"%s","state":"open","version":1}' % (b"f" * 32)
    await store.put(of.record("0"), BytesSource(record))
    upload = await store.create_upload("jobs/job/chk_1/model.bin")
    await store.put_part("jobs/job/chk_1/model.bin", upload, 1, BytesSource(b"x"))
    scene.now += 7200  # R2 itself drops open uploads after seven days
    done = await collect(store, JOB, TELL, RNG, delete=True, gc_age_s=3600)
    assert done.deleted == ["jobs/job/chk_1"]
    assert not scene.bucket.open_uploads()


async def test_a_pull_keeps_a_local_checkpoint_that_is_nowhere_else(scene: Scene) -> None:
    """A slot written again and never shipped is moved to .r2d1/kept with a warning, not destroyed by a pull."""
    await scene.ship("slot_0", 5, b"five")
    folder = scene.root / "w" / "slot_0"
    (folder / "model.bin").write_bytes(b"seven, not shipped")
    write_sidecar(folder, epoch=7)
    told: list[Event] = []
    async with AsyncFetcher(Settings(), given=scene.remote(), observer=told.append) as fetcher:
        info = await fetcher.pull(f"r2://jobs/{JOB}/latest", scene.root / "w")
    assert info.epoch == 5
    assert (folder / "model.bin").read_bytes() == b"five"
    (kept,) = (scene.root / "w" / ".r2d1" / "kept").rglob("model.bin")
    assert kept.read_bytes() == b"seven, not shipped"
    assert any(isinstance(event, Notice) and "epoch 7" in event.text for event in told)


class Shrinking(MemoryStore):
    """A store whose objects go, or are written over, after they were listed."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene.bucket)
        self.scene = scene

    async def get_range(self, key: str, span: ByteRange, sink: Sink, *, if_match: str | None = None) -> ObjectInfo:
        if key.endswith("/model.bin"):
            self.scene.bucket.remove(key)
        elif key.endswith("/second.bin"):
            self.scene.bucket.place(key, b"ab")
        return await super().get_range(key, span, sink, if_match=if_match)


async def test_what_goes_while_it_is_verified_is_a_problem(scene: Scene) -> None:
    """Neither an object that vanishes nor one that is shortened after the listing ends the verification."""
    folder = scene.root / "w" / "chk_1"
    folder.mkdir(parents=True)
    (folder / "second.bin").write_bytes(b"b" * 1000)
    await scene.ship("chk_1", 1, b"a" * 1000)
    store = Shrinking(scene)
    found = await verify_target(Lane(store, TELL), None, named("chk_1"), "r2://x", deep=True)
    assert found is not None
    assert [problem.partition(" ")[2][:22] for problem in found.problems] == ["is missing", "was written over meanw"]


async def test_a_record_that_gc_took_is_not_under_way(scene: Scene) -> None:
    """Open with files below it, a ship is under way; once gc has set it to ``taken`` it is given up."""
    of = CheckpointKeys(JOB, "chk_1")
    store = MemoryStore(scene.bucket)
    await orphan(scene)
    assert await what_was_begun(store, of) is Begun.UNDER_WAY
    assert await why_no_latest(store, JOB) == "being shipped and not committed yet: chk_1"
    record = await read_record(store, of, "0123456789ab")
    assert record is not None
    scene.bucket.place(of.record("0123456789ab"), record.value.taken().encode())
    assert await what_was_begun(store, of) is Begun.GIVEN_UP
    assert await why_no_latest(store, JOB) == ""
    assert await why_absent(store, None, of, TELL) == "a ship of it was begun and given up"
    assert await look_at(store, of) is None
    fence = Head(1, "chk_1", 0, 0.0, "", "", None, deleted=True)
    scene.bucket.place(of.head, fence.encode())
    assert await why_absent(store, None, of, TELL) == "a ship of it was begun and given up"
    scene.bucket.place(of.record("0123456789ab"), record.value.encode())
    assert await why_no_latest(store, JOB) == "being shipped and not committed yet: chk_1"
    listed = await look_at(store, of)
    assert listed is not None and listed.state == "being shipped"


async def test_a_record_of_a_newer_r2d1_counts_as_under_way(scene: Scene) -> None:
    """What cannot be understood is never said to be given up."""
    of = CheckpointKeys(JOB, "chk_1")
    scene.bucket.place(of.record("0"), b'{"version":9}')
    assert await what_was_begun(MemoryStore(scene.bucket), of) is Begun.UNDER_WAY
