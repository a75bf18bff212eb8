"""Field case 123: path traversal in names from the server. The whole pull is refused before anything is written."""

from __future__ import annotations

import json
import os

import pytest

from r2d1.digest import digest_of
from r2d1.errors import FormatError, NameRefused, R2D1Error, UriError
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Told, open_courier, open_fetcher

PREFIX = "jobs/job/chk_1"
HEAD = "jobs/job/.r2d1/heads/chk_1.json"
HOSTILE = [
    "../../evil", "/etc/evil", "a/../../b", "..\\x", "C:\\x", "", ".", "..", "a\0b", "x" * 300, "a//b", ".r2d1/pull/x",
]  # fmt: skip


async def ship(s3, directory, d1=None):
    folder = write_checkpoint(directory, "chk_1", 1, {"a.bin": b"a", "b.bin": b"b"})
    async with open_courier(s3, d1) as courier:
        await courier.ship(folder, "job")


def tamper(s3, **changes):
    """Change the second file of the stored manifest, and have the head vouch for it: the attacker owns the bucket."""
    manifest = json.loads(s3.get(f"{PREFIX}/r2d1.manifest.json"))
    manifest["files"][1] |= changes
    raw = json.dumps(manifest).encode()
    s3.put(f"{PREFIX}/r2d1.manifest.json", raw)
    head = json.loads(s3.get(HEAD))
    s3.put(HEAD, json.dumps({**head, "manifest": digest_of(raw)}).encode())


def tree(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.fixture
def sandbox(tmp_path):
    """A destination some levels deep, so that what climbs out of it would be seen."""
    (tmp_path / "sandbox" / "deep" / "dest").mkdir(parents=True)
    yield tmp_path / "sandbox"
    assert tree(tmp_path / "sandbox") == ["deep", "deep/dest"]
    assert not os.path.lexists("/etc/evil")


async def test_names_in_a_manifest(s3, tmp_path, sandbox):
    """A manifest with one bad path places nothing at all, and the name is shown escaped."""
    await ship(s3, tmp_path / "up")
    async with open_fetcher(s3) as fetcher:
        for path in HOSTILE:
            tamper(s3, path=path)
            for uri in ("r2://jobs/job/latest", "r2://jobs/job/chk_1"):
                with pytest.raises(FormatError) as error:
                    await fetcher.pull(uri, sandbox / "deep" / "dest")
                assert ascii(path)[1:20] in str(error.value), path
                assert str(error.value).isascii(), path
                assert "\0" not in str(error.value), path


async def test_a_key_that_leads_to_another_checkpoint(s3, tmp_path, sandbox):
    """``key`` cannot name an object outside the manifest's own prefix."""
    await ship(s3, tmp_path / "up")
    tamper(s3, key="../chk_2/secret.bin")
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(FormatError, match=r"\.\./chk_2"):
            await fetcher.pull("r2://jobs/job/latest", sandbox / "deep" / "dest")


@pytest.mark.parametrize(
    "prefix", ["../chk_1", "jobs/other/chk_1", "jobs/job/.r2d1/v/../../chk_1", "jobs/job/chk_2", "/etc"]
)
async def test_a_head_that_names_a_foreign_prefix(s3, tmp_path, sandbox, prefix):
    """A head can only name its own checkpoint's ships."""
    await ship(s3, tmp_path / "up")
    s3.put(HEAD, json.dumps({**json.loads(s3.get(HEAD)), "prefix": prefix}).encode())
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(FormatError, match="is no prefix of this checkpoint"):
            await fetcher.pull("r2://jobs/job/latest", sandbox / "deep" / "dest")


@pytest.mark.parametrize("path", ["../../evil", "a/../../b", "..\\x", "a//b", "./x", "x" * 300])
async def test_names_below_a_prefix(s3, sandbox, path):
    """A prefix pull with one bad key places nothing."""
    s3.put("datasets/mnist/good.bin", b"good")
    s3.put(f"datasets/mnist/{path}", b"evil")
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(NameRefused) as error:
            await fetcher.pull("r2://datasets/mnist", sandbox / "deep" / "dest")
    assert ascii(path)[1:20] in str(error.value)


async def test_names_in_a_checkpoint_of_the_old_line(s3, sandbox):
    """What 0.2 wrote has no manifest; its keys are no more trusted."""
    s3.put("jobs/job/checkpoints/chk_1/../../evil", b"evil")
    s3.put("jobs/job/checkpoints/chk_1/chk_1.json", b'{"epoch": 1}')
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(NameRefused):
            await fetcher.pull("r2://jobs/job/latest", sandbox / "deep" / "dest")


@pytest.mark.parametrize("job_id", ["..", "../x", "a/../..", "a\\b"])
async def test_run_ids_that_climb(s3, sandbox, job_id):
    """A run id never becomes a path."""
    async with open_fetcher(s3) as fetcher:
        with pytest.raises((NameRefused, UriError)):
            await fetcher.pull(f"r2://jobs/{job_id}/latest", sandbox / "deep" / "dest")


async def test_names_from_d1(s3, d1, tmp_path):
    """Rows with hostile names are told and stepped over; what the bucket vouches for is pulled."""
    await ship(s3, tmp_path / "up", d1)
    names = ["../../evil", "/etc/evil", "..", "", "latest", "a\\b"]
    for name in names:
        d1.sql("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)", ["job", name, 99, 1.0, "../../evil", "{}"])
    told = Told()
    async with open_fetcher(s3, d1, observer=told) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert (info.name, info.epoch) == ("chk_1", 1)
    for name in names:
        assert any(ascii(name) in text for text in told.notices("warning")), name
    assert sorted(path.name for path in (tmp_path / "down").iterdir()) == [".r2d1", "chk_1", "chk_1.json"]


async def test_steps_from_d1(s3, d1, tmp_path):
    """Rows whose epoch is none do not count, and stop nobody."""
    await ship(s3, tmp_path / "up", d1)
    for n, epoch in enumerate([-1, 2**53, 1.5, "x"]):
        row = ["job", f"chk_9{n}", epoch, 1.0, f"jobs/job/chk_9{n}", "{}"]
        d1.sql("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)", row)
    async with open_fetcher(s3, d1) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert info.name == "chk_1"


async def test_a_refusal_is_an_error_of_ours(s3, tmp_path, sandbox):
    """Whoever catches ``R2D1Error`` catches this."""
    await ship(s3, tmp_path / "up")
    tamper(s3, path="../x")
    async with open_fetcher(s3) as fetcher:
        with pytest.raises(R2D1Error):
            await fetcher.pull("r2://jobs/job/latest", sandbox / "deep" / "dest")
