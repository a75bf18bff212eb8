"""Publishing a shard set: order, headers, what is skipped, what is never overwritten, and what is read back."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from r2d1.datasets import Conflict, publish_shard_set, publish_shard_set_async
from r2d1.datasets.publish import _at_once
from r2d1.errors import AccessRefused, ConfigError, FormatError, IntegrityError, RemoteUnavailable
from r2d1.objects.local import LocalStore
from r2d1.settings import Settings
from r2d1.testing import Answer, CutRequest, Fault, FlipReply, Hook, Rules, S3Double, Swallow, When
from tests.datasets.making import sha
from tests.datasets.published import SHARD_SIZE, make_set


@pytest.fixture
def made(tmp_path):
    return make_set(tmp_path / "set", with_record=True)


@pytest.fixture
def settings(s3):
    return Settings.from_env(environ=s3.env())


def puts(s3):
    return [each for each in s3.requests if each.operation == "PutObject"]


def published(s3, prefix=""):
    return {key.removeprefix(prefix): s3.get(key) for key in s3.keys(prefix)}


# The right way


@pytest.mark.parametrize("prefix", ["", "sets/od-a-v1", "sets/od-a-v1/"])
def test_exactly_the_set_is_published(prefix, made, s3, settings):
    """Shards at their hashes, record and manifest beside them, nothing else; an empty prefix adds no slash."""
    (made.directory / "holdout.parquet").write_bytes(b"private")
    (made.directory / "shard-00099.u16").write_bytes(b"stray")
    report = publish_shard_set(made.directory, settings, prefix=prefix)
    bare = prefix.rstrip("/")
    assert published(s3, f"{bare}/" if bare else "") == made.objects
    assert (report.sent, report.present, report.replaced) == (7, 0, ())
    assert report.sent_bytes == sum(map(len, made.objects.values()))
    assert len(set(report.verified_units)) == 8
    assert s3.counts["PublicGetObject"].requests == 8


def test_the_manifest_is_last_and_the_record_before_it(made, s3, settings):
    """No reader sees a manifest whose shards are missing."""
    publish_shard_set(made.directory, settings, prefix="p")
    order = [each.key for each in puts(s3)]
    assert order[-2:] == ["p/build_record.json", "p/manifest.json"]
    assert set(order[:-2]) == {f"p/{sha(data)}" for data in made.shards}


def test_the_headers_are_those_of_the_format(made, s3, settings):
    """Real hashes in both headers, types, caching, and the condition on shards alone."""
    publish_shard_set(made.directory, settings)
    for each in puts(s3):
        digest = sha(s3.get(each.key))
        assert each.headers["x-amz-content-sha256"] == each.headers["x-amz-meta-sha256"] == digest
        is_json = each.key.endswith(".json")
        assert each.headers["content-type"] == ("application/json" if is_json else "application/octet-stream")
        assert each.headers["cache-control"] == ("no-cache" if is_json else "public, max-age=31536000, immutable")
        assert each.headers.get("if-none-match") == (None if is_json else "*")


def test_a_second_run_sends_nothing(made, s3, settings):
    """Each key is looked at once, and no body leaves."""
    publish_shard_set(made.directory, settings)
    before = s3.counts
    report = publish_shard_set(made.directory, settings)
    assert (report.sent, report.present, report.sent_bytes) == (0, 7, 0)
    assert s3.counts["PutObject"] == before["PutObject"]
    assert s3.counts["HeadObject"].requests - before["HeadObject"].requests == 7


def test_shards_with_the_same_bytes_are_one_object(tmp_path, s3, settings):
    """Two shards with one hash are sent once."""
    made = make_set(tmp_path / "first", shards=2)
    for number in (0, 1):
        (made.directory / f"shard-{number:05d}.u16").write_bytes(made.shards[0])
    from tests.datasets.making import write_set

    write_set(made.directory, [made.shards[0]] * 2, seq_len=8, unit=4, per_shard=16)
    report = publish_shard_set(made.directory, settings)
    assert report.sent == 2
    assert s3.keys() == sorted([sha(made.shards[0]), "manifest.json"])


async def test_the_embedded_store_too(made, tmp_path):
    """A directory stands in for the bucket; without a public base nothing is read back, and that must be said."""
    settings = Settings(store_url=(tmp_path / "bucket").as_uri())
    with pytest.raises(ConfigError, match="R2_PUBLIC_BASE.*--verify-units 0"):
        await publish_shard_set_async(made.directory, settings, prefix="p")
    assert not (tmp_path / "bucket").exists()
    report = await publish_shard_set_async(made.directory, settings, prefix="p", verify_units=0)
    assert report.sent == 7
    store = LocalStore(tmp_path / "bucket")
    info = await store.head("p/manifest.json")
    assert info.metadata == {"sha256": sha(made.objects["manifest.json"])}
    await store.aclose()


def test_at_most_so_many_at_once(made, s3, settings):
    """``settings.concurrency`` bounds the objects under way; progress ends at the whole."""
    lock = threading.Lock()
    active: set[str] = set()
    most = []

    def begin(call):
        with lock:
            active.add(call.key)
            most.append(len(active))

    def end(record):
        with lock:
            active.discard(record.key)

    s3.faults.add(Fault(When(operation="PutObject"), Hook(begin, end), times=None))
    told = []
    publish_shard_set(made.directory, replace(settings, concurrency=2), on_progress=told.append)
    assert max(most) <= 2
    total = sum(map(len, made.objects.values()))
    assert (told[-1].done, told[-1].total, told[-1].unit) == (total, total, "bytes")


def test_progress_is_told_while_a_shard_is_under_way(made, s3, settings):
    """Bytes count when they leave, not when a whole shard has arrived; a name like that of the jobs is none of them."""
    told = threading.Event()
    s3.faults.add(Fault(When(operation="PutObject"), Hook(lambda _: told.wait(20)), times=None))
    seen = []

    def look(progress):
        seen.append((progress.done, s3.keys()))
        if progress.done:
            told.set()

    publish_shard_set(made.directory, replace(settings, concurrency=1), prefix="jobs-2", on_progress=look)
    assert seen[0] == (0, [])
    assert seen[1] == (SHARD_SIZE, [])


def test_few_large_shards_are_under_way(tmp_path, s3, settings):
    """Of shards of 64 MiB four go at once, as a run that is cut off loses them; a number asked for is kept."""
    small = make_set(tmp_path / "small").manifest
    large = replace(small, seq_len=8191, unit=512, samples_per_shard=4096, n_samples=4096)
    assert large.shard_size(0) == 64 << 20
    assert [_at_once(settings, manifest) for manifest in (small, large)] == [8, 4]
    assert _at_once(replace(settings, concurrency=20), large) == 20


# What goes wrong on the way


def test_a_lost_reply_is_settled_by_looking(made, s3, settings):
    """The store kept the shard and dropped its answer: looked at, counted as sent, no second body."""
    s3.faults.add(Fault(When(operation="PutObject", nth=2), Swallow()))
    report = publish_shard_set(made.directory, settings)
    assert report.sent == 7
    assert s3.counts["PutObject"].requests == 7


def test_a_lost_request_is_sent_again(made, s3, settings):
    """The connection broke before the store had the body: it looks, finds nothing, and sends it again."""
    s3.faults.add(Fault(When(operation="PutObject", nth=2), CutRequest()))
    assert publish_shard_set(made.directory, settings).sent == 7
    assert published(s3) == made.objects


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted", "Conflict"])
def test_409_is_tried_again(code, made, s3, settings):
    """Another write to the key was in the way: it is tried again and ends well."""
    s3.faults.add(Fault(When(operation="PutObject", nth=1), Answer(409, code)))
    assert publish_shard_set(made.directory, settings, verify_units=0).sent == 7


def test_two_publishers_at_once_both_end_well(made, s3, settings):
    """Both send everything at the same time; each ends well, and every shard was stored once."""
    both = threading.Barrier(2)

    def publish(_):
        both.wait(30)
        return publish_shard_set(made.directory, settings, prefix="p")

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(publish, range(2)))
    assert all(report.sent + report.present == 7 for report in reports)
    assert published(s3, "p/") == made.objects
    stored = [each.key for each in puts(s3) if each.status == 200 and not each.key.endswith(".json")]
    assert len(stored) == len(set(stored)) == 5


def test_a_refusal_for_good_ends_it(made, s3, settings):
    """A shard that the store refuses: no record, no manifest, an error that names the key."""
    key = sha(made.shards[2])
    s3.faults.add(Fault(When(operation="PutObject", key=key), Answer(403, "AccessDenied"), times=None))
    with pytest.raises(AccessRefused, match=key):
        publish_shard_set(made.directory, settings)
    assert not [name for name in s3.keys() if name.endswith(".json")]


# Keys that hold something already


def test_an_object_without_metadata_is_read(made, s3, settings):
    """Somebody else's tool put the right bytes there: read once, and left as they are."""
    key = sha(made.shards[0])
    etag = s3.put(key, made.shards[0])
    report = publish_shard_set(made.directory, settings)
    assert (report.sent, report.present) == (6, 1)
    assert s3.counts["GetObject"].sent == SHARD_SIZE
    assert s3.model.stored(key).etag == etag


@pytest.mark.parametrize(
    ("data", "metadata"),
    [
        (b"", {}),
        (b"short", {}),
        (bytes(SHARD_SIZE), {}),
        (bytes(SHARD_SIZE), {"sha256": "ab" * 32}),
    ],
)
def test_other_bytes_at_a_shards_key_are_a_conflict(data, metadata, made, s3, settings):
    """Empty, short, damaged, or of another hash: the key is named, nothing is overwritten, no manifest appears."""
    key = sha(made.shards[1])
    s3.put(key, data, **metadata)
    with pytest.raises(Conflict, match=f"{key}: .*nothing was overwritten"):
        publish_shard_set(made.directory, settings)
    assert s3.get(key) == data
    assert "manifest.json" not in s3.keys()


def test_another_set_can_be_kept_from_being_replaced(made, tmp_path, s3, settings):
    """A prefix that holds another set, or another build of this one, is refused before anything is sent."""
    other = make_set(tmp_path / "other", shards=3, with_record=True)
    publish_shard_set(other.directory, settings, prefix="p", verify_units=0)
    before = published(s3, "p/")
    with pytest.raises(Conflict, match=r"p/build_record.json and p/manifest.json: .*nothing was sent.*--no-replace"):
        publish_shard_set(made.directory, settings, prefix="p", may_replace=False)
    assert published(s3, "p/") == before
    s3.put("p/build_record.json", b"{}")
    with pytest.raises(Conflict, match=r"^p/build_record.json: "):
        publish_shard_set(other.directory, settings, prefix="p", may_replace=False)


def test_the_record_of_a_publication_that_never_ended_is_replaced(made, s3, settings):
    """Without a manifest no set is published there: what an earlier run left is in nobody's way, and told."""
    s3.put("p/build_record.json", b"{}")
    assert publish_shard_set(made.directory, settings, prefix="p", may_replace=False).replaced == (
        "p/build_record.json",
    )


def test_another_sets_documents_are_replaced_and_told(made, s3, settings):
    """A newer set at the same prefix replaces the two documents, and says so."""
    s3.put("p/manifest.json", b"{}")
    told = []
    report = publish_shard_set(made.directory, settings, prefix="p", observer=told.append)
    assert report.replaced == ("p/manifest.json",)
    assert any("p/manifest.json held another document" in getattr(event, "text", "") for event in told)
    assert s3.get("p/manifest.json") == made.objects["manifest.json"]


# What lies on the disk


def test_a_damaged_shard_never_arrives(made, s3, settings):
    """A byte changed on the disk is noticed before the last byte leaves; the file is named."""
    path = made.directory / "shard-00003.u16"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError, match=r"shard-00003\.u16: its sha256 is"):
        publish_shard_set(made.directory, settings)
    assert sha(made.shards[3]) not in s3.keys()
    assert "manifest.json" not in s3.keys()


def test_a_set_that_is_not_whole_is_refused_before_anything_is_sent(made, s3, settings):
    """Missing and short shards are all named; nothing left this machine."""
    (made.directory / "shard-00001.u16").unlink()
    (made.directory / "shard-00002.u16").write_bytes(b"short")
    with pytest.raises(FormatError, match=r"00001\.u16 is missing; shard-00002\.u16 has 5 bytes, not 288"):
        publish_shard_set(made.directory, settings)
    assert s3.requests == []


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("manifest.json", "{}", FormatError),
        ("build_record.json", "{}", FormatError),
        ("build_record.json", None, FormatError),
        ("manifest.json", None, ConfigError),
    ],
)
def test_documents_that_are_wrong_or_missing(name, text, error, made, s3, settings):
    """Malformed, contradictory or missing documents are refused, the file named."""
    path = made.directory / name
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=name.replace(".", r"\.")):
        publish_shard_set(made.directory, settings)
    assert s3.requests == []


def test_a_record_of_another_build_is_refused(made, s3, settings):
    """A build record that does not belong to the manifest is not published beside it."""
    path = made.directory / "build_record.json"
    record = json.loads(path.read_text())
    record["fragment"]["merkle_root"] = "00" * 32
    path.write_text(json.dumps(record))
    with pytest.raises(FormatError, match=r"fragment\.merkle_root"):
        publish_shard_set(made.directory, settings)
    assert s3.requests == []


def test_a_set_without_a_build_record(tmp_path, s3, settings):
    """A set that no build made has a manifest only, and is published so."""
    made = make_set(tmp_path / "plain")
    assert publish_shard_set(made.directory, settings).sent == 6
    assert published(s3) == made.objects


@pytest.mark.parametrize("prefix", ["/", "/sets", "a//b", "../up", "a/./b", "jobs", "jobs/", "jobs/run/sets"])
def test_a_prefix_that_is_none(prefix, made, s3, settings):
    """It is refused before anything is sent."""
    with pytest.raises(ConfigError, match="prefix"):
        publish_shard_set(made.directory, settings, prefix=prefix)
    assert s3.requests == []


# Reading back


def test_a_base_that_serves_wrong_bytes_fails_the_publication(made, s3, settings):
    """Everything was sent; the units that do not come right are named with their URL."""
    s3.faults.add(Fault(When(operation="PublicGetObject"), FlipReply(), times=None))
    with pytest.raises(IntegrityError, match="3 of 3 units could not be verified") as caught:
        publish_shard_set(made.directory, settings, prefix="p", verify_units=3)
    assert str(caught.value).count(f"{s3.public_url}/p/") == 3
    assert "manifest.json" in published(s3, "p/")


def test_the_base_of_another_bucket_fails_it_too(made, s3, settings):
    """A public base that does not belong to the bucket is found out."""
    with S3Double(rules=Rules.lenient()) as other:
        elsewhere = Settings.from_env(environ={**s3.env(), "R2D1_R2_PUBLIC_BASE": other.public_url})
        with pytest.raises(IntegrityError, match="404"):
            publish_shard_set(made.directory, elsewhere, verify_units=1)


def test_more_units_than_there_are(made, s3, settings):
    """Asking for more units than the set has reads all of them."""
    assert publish_shard_set(made.directory, settings, verify_units=1000).verified_units == tuple(range(20))


def test_none_are_read_without_asking_for_a_base(made, s3):
    """With 0 units no public base is needed."""
    environ = {name: value for name, value in s3.env().items() if name != "R2D1_R2_PUBLIC_BASE"}
    settings = Settings.from_env(environ=environ)
    assert publish_shard_set(made.directory, settings, verify_units=0).verified_units == ()
    with pytest.raises(ConfigError, match="R2_PUBLIC_BASE"):
        publish_shard_set(made.directory, settings)
    with pytest.raises(ConfigError, match="0 or more"):
        publish_shard_set(made.directory, settings, verify_units=-1)


def test_a_store_that_is_gone(made, settings, s3):
    """A store that cannot be reached is an error, never a success."""
    from r2d1.events import Teller
    from r2d1.objects.r2 import R2Store
    from tests.datasets.web import dead_url

    async def go():
        gone = R2Store(replace(settings, endpoint_url=dead_url()), tell=Teller(None))
        try:
            await publish_shard_set_async(made.directory, settings, store=gone)
        finally:
            await gone.aclose()

    import asyncio

    with pytest.raises(RemoteUnavailable):
        asyncio.run(go())
