"""A pull that is killed leaves no final folder and is resumed; a pull that fails never looks like a fresh start."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from dataclasses import replace

import pytest

from r2d1 import AsyncFetcher
from r2d1.errors import (
    AccessRefused,
    BucketNotFound,
    ConfigError,
    IntegrityError,
    RemoteError,
    RemoteUnavailable,
    UriError,
)  # fmt: skip
from r2d1.events import Teller
from r2d1.objects.r2 import R2Store
from r2d1.objects.resilient import Resilient
from r2d1.remote import Remote
from r2d1.retry import Brake, RetryPolicy
from r2d1.settings import Secret
from r2d1.testing import Answer, Fault, FlipReply, Gate, Hold, Stall, When
from tests.checkpoints import files_of, random_files, write_checkpoint
from tests.children import Killer, child_env, started
from tests.remote_ends import FIXED, IN_FLIGHT, Hasty, Told, open_courier, open_fetcher, settings_of, stray_files

PART = 64 << 10
SLICES = 20
LATEST, NAMED, PREFIX = "r2://jobs/job/latest", "r2://jobs/job/chk_1", "r2://jobs/job/chk_1/sub"
PULL = """
import sys
from r2d1 import Fetcher, Settings
Fetcher(Settings.from_env(concurrency=8)).pull(sys.argv[1], dest=sys.argv[2])
"""


async def ship(s3, directory, slices: int = 4) -> dict[str, bytes]:
    files = {"big.bin": os.urandom(slices * PART), "sub/small.bin": b"small"}
    folder = write_checkpoint(directory, "chk_1", 1, files)
    async with open_courier(s3, part_size=PART) as courier:
        await courier.ship(folder, "job")
    return files


@pytest.mark.parametrize("killed_at", [1, 12, 21])
async def test_a_killed_pull_is_resumed(s3, tmp_path, killed_at):
    """SIGKILL at the first, a middle and the last range: nothing under the final name; few bytes come twice."""
    files = await ship(s3, tmp_path / "up", SLICES)
    dest, killer = tmp_path / "down", Killer()
    when = When(operation="GetObject", matches=lambda call: "range" in call.headers, nth=killed_at)
    s3.faults.add(Fault(when, killer.hook))
    with started(PULL, LATEST, dest, env=child_env(s3.env())) as child:
        killer.victims.append(child)
        assert child.wait(timeout=60) == -signal.SIGKILL
    assert [path.name for path in dest.iterdir()] == [".r2d1"]
    before = len(s3.requests)
    async with open_fetcher(s3, tuning=FIXED) as fetcher:
        info = await fetcher.pull(LATEST, dest)
    assert files_of(info.local_dir) == files
    assert info.verified
    assert not info.cached
    assert stray_files(dest) == []
    ranges = [record for record in s3.requests[before:] if "range" in record.headers]
    assert SLICES + 1 - killed_at <= len(ranges) <= SLICES + 1 - killed_at + 2 * IN_FLIGHT


REFUSALS = {
    "401": (Answer(401, "Unauthorized"), AccessRefused),
    "403": (Answer(403, "AccessDenied"), AccessRefused),
    "404 of the bucket": (Answer(404, "NoSuchBucket"), BucketNotFound),
    "404 of a web server": (Answer(404, body=b"<html>", headers={"Content-Type": "text/html"}), RemoteError),
    "500 for ever": (Answer(500, "InternalError"), RemoteUnavailable),
    "503 for ever": (Answer(503, "SlowDown"), RemoteUnavailable),
}
OPERATIONS = ["GetObject", "ListObjectsV2"]


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_every_refusal_raises(s3, tmp_path, refusal):
    """Whatever is asked for, a store that refuses each request of a kind is an error and never ``found=False``."""
    await ship(s3, tmp_path / "up")
    answer, kind = REFUSALS[refusal]
    async with open_fetcher(s3) as fetcher:
        for uri, operation in itertools.product((LATEST, NAMED, PREFIX), OPERATIONS):
            s3.faults.clear()
            s3.faults.add(Fault(When(operation=operation), answer, times=None))
            with pytest.raises(kind):
                await fetcher.pull(uri, tmp_path / "down")
    assert [path.name for path in (tmp_path / "down").iterdir() if not path.name.startswith(".")] == []


@pytest.mark.parametrize("wrong", ["access key", "secret key", "bucket", "dead host", "closed port"])
async def test_every_wrong_setting_raises(s3, tmp_path, monkeypatch, wrong):
    """Wrong keys, an unknown bucket and a host that is not there raise, even where nothing was ever shipped."""
    settings = settings_of(s3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = f"http://127.0.0.1:{listener.getsockname()[1]}"
    changed, kind = {
        "access key": ({"access_key": "f" * 32}, AccessRefused),
        "secret key": ({"secret_key": Secret("f" * 64)}, AccessRefused),
        "bucket": ({"bucket": "another"}, BucketNotFound),
        "dead host": ({"endpoint_url": "http://nobody.invalid"}, RemoteUnavailable),
        "closed port": ({"endpoint_url": closed}, RemoteUnavailable),
    }[wrong]
    if wrong == "dead host":
        monkeypatch.setattr(socket, "getaddrinfo", unknown_host)
    async with AsyncFetcher(replace(settings, **changed), rng=Hasty(), observer=Told()) as fetcher:
        for uri in (LATEST, NAMED, PREFIX, "r2://nothing/here"):
            with pytest.raises(kind):
                await fetcher.pull(uri, tmp_path / "down")


def unknown_host(*_args: object, **_kwargs: object) -> object:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def test_damage_that_stays_raises(s3, tmp_path):
    """A slice that is always damaged is an error that names it, and nothing is placed."""
    await ship(s3, tmp_path / "up")
    third = When(matches=lambda call: call.headers.get("range") == f"bytes={2 * PART}-{3 * PART - 1}")
    s3.faults.add(Fault(third, FlipReply(at=5), times=None))
    async with open_fetcher(s3) as fetcher:
        for uri in (LATEST, NAMED):
            with pytest.raises(IntegrityError, match=r"big\.bin.*bytes 131072 to 196608"):
                await fetcher.pull(uri, tmp_path / "down")
    assert not (tmp_path / "down" / "chk_1").exists()


@pytest.mark.parametrize("what", ["no answer", "a stalled body"])
async def test_silence_raises(s3, tmp_path, what):
    """A store that takes requests and says nothing, or stops in a body, is a time-out that raises."""
    await ship(s3, tmp_path / "up")
    gate = Gate()
    s3.faults.add(Fault(When(), Hold(gate) if what == "no answer" else Stall(gate, after=1), times=None))
    settings, tell = settings_of(s3), Teller(None)
    impatient = R2Store(settings, tell=tell, idle_s=0.05)
    store = Resilient(impatient, policy=RetryPolicy(attempts=2, base_s=0), brake=Brake(Hasty()), tell=tell)
    async with AsyncFetcher(settings, given=Remote(store, None), observer=Told()) as fetcher:
        for uri in (LATEST, NAMED, PREFIX):
            with pytest.raises(RemoteUnavailable, match="nothing moved for"):
                await fetcher.pull(uri, tmp_path / "down")
    gate.release()


def test_missing_settings_raise(tmp_path, bare_environ):
    """No credentials at all is an error before anything is asked, and names every spelling."""
    with pytest.raises(ConfigError, match="R2D1_R2_ACCESS_KEY"):
        AsyncFetcher.from_env()


async def test_nothing_there_is_no_failure(s3, tmp_path):
    """The bucket answered and holds nothing: ``found=False``, and the destination exists afterwards."""
    async with open_fetcher(s3) as fetcher:
        for number, uri in enumerate((LATEST, NAMED, PREFIX, "r2://nothing/here")):
            info = await fetcher.pull(uri, tmp_path / str(number))
            assert not info.found
            assert (tmp_path / str(number)).is_dir()


async def test_an_object_in_a_prefixes_place_is_no_fresh_start(s3, tmp_path):
    """Its key is refused, with what to pull in its place; below the destination nothing is written."""
    s3.put("datasets/mnist/train.bin", b"x")
    async with open_fetcher(s3) as fetcher:
        for uri in ("r2://datasets/mnist/train.bin", "r2://datasets/mnist/train.bin/"):
            with pytest.raises(UriError, match=r"is one object, not a prefix: pull .* 'r2://datasets/mnist'"):
                await fetcher.pull(uri, tmp_path / "down")
    assert list((tmp_path / "down").iterdir()) == []


async def test_what_is_known_of_the_absent_is_said(s3, tmp_path):
    """Deleted, being shipped, and never heard of are three things; a newest one that cannot be told is no failure."""
    write_checkpoint(tmp_path / "up", "chk_1", 1, random_files(a=10))
    write_checkpoint(tmp_path / "up", "chk_2", 2, random_files(a=10))
    async with open_courier(s3) as courier:
        for name in ("chk_1", "chk_2"):
            await courier.ship(tmp_path / "up" / name, "job")
    head = "jobs/job/.r2d1/heads/chk_{}.json"
    s3.put(head.format(1), s3.get(head.format(1)).replace(b'"deleted":false', b'"deleted":true'))
    ship = s3.get("jobs/job/.r2d1/ships/chk_2/0.json")
    s3.put("jobs/job/.r2d1/ships/chk_3/0.json", ship)
    async with open_fetcher(s3) as fetcher:

        async def why(name: str) -> str:
            info = await fetcher.pull(f"r2://jobs/job/{name}", tmp_path / "down")
            assert not info.found
            return info.why

        assert await why("chk_1") == "it was deleted; newest now is chk_2 (epoch 2)"
        assert await why("chk_3") == "a ship of it was begun and is not committed yet"
        assert await why("chk_4") == ""
        s3.put(head.format(2), b"no head")
        assert (await why("chk_1")).startswith("it was deleted; which one is newest now cannot be told: ")


async def test_a_bucket_in_the_uri_is_told(s3, tmp_path):
    """It would pass for a fresh start; what lies below a prefix of that name is pulled all the same."""
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull(f"r2://{s3.bucket}/jobs/job/latest", tmp_path / "down")
        assert (info.found, "perhaps r2://jobs/job/latest" in info.why) == (False, True)
        s3.put(f"{s3.bucket}/jobs/job/latest/x", b"x")
        assert (await fetcher.pull(f"r2://{s3.bucket}/jobs/job/latest", tmp_path / "down")).found
