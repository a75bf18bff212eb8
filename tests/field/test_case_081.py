"""Field case 81: credentials expire in the middle. The error says so, nothing is lost, and new ones go on from there."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from r2d1 import AsyncCourier, AsyncFetcher, Settings
from r2d1.errors import AccessRefused, FlushError
from r2d1.testing import Answer, Call, Fault, Rules, S3Double, When
from tests.checkpoints import files_of, write_checkpoint
from tests.remote_ends import Hasty, Told, since

PART = 64 << 10
DATA = os.urandom(8 * PART)
OLD = ("0" * 31 + "1", "5ecret" * 10 + "aaaa", "session-token-of-the-first-hour")
NEW = ("0" * 31 + "2", "5ecret" * 10 + "bbbb", "session-token-of-the-second-hour")


@dataclass
class Hour:
    """The old credentials' life: over when a request arrives that ``ends`` it. The store then refuses all they sign."""

    ends: When
    is_over: bool = False

    def refuses(self, call: Call) -> bool:
        self.is_over = self.is_over or self.ends.is_for(call)
        return self.is_over and call.access_key == OLD[0]

    @property
    def fault(self) -> Fault:
        return Fault(When(matches=self.refuses), Answer(400, "ExpiredToken", "The provided token has expired."), None)


@pytest.fixture
def s3():
    access_key, secret_key, token = OLD
    rules = Rules.lenient()
    with S3Double(rules=rules, access_key=access_key, secret_key=secret_key, session_token=token) as double:
        yield double


@pytest.fixture
def env_file(s3, tmp_path):
    """The file that the credentials are read from; whoever renews them writes it anew."""
    path = tmp_path / "r2.env"
    path.write_text("".join(f"{name}={value}\n" for name, value in s3.env().items()))
    return path


def renew(s3, env_file) -> None:
    s3.rotate(*NEW)
    env_file.write_text("".join(f"{name}={value}\n" for name, value in s3.env().items()))


def settings_from(env_file) -> Settings:
    return Settings.from_env(env_file=env_file, environ={}, concurrency=1)


def courier_of(env_file, told: Told) -> AsyncCourier:
    return AsyncCourier(settings_from(env_file), observer=told, rng=Hasty(), drain_timeout=0.1)


def parts_taken(records) -> list[int]:
    return [record.part_number for record in records if record.operation == "UploadPart" and record.status == 200]


async def test_in_the_middle_of_an_upload(s3, env_file, tmp_path):
    """From part 4 on all is refused: told at once and by name. The next courier sends parts 4 to 8 of the same upload."""
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"big.bin": DATA})
    hour = Hour(When(operation="UploadPart", matches=lambda call: (call.part_number or 0) >= 4))
    s3.faults.add(hour.fault)
    told = Told()
    with pytest.raises(FlushError) as caught:
        async with courier_of(env_file, told) as courier:
            courier._lane.part_size = PART
            await courier.watch(folder.parent, "job")
            await courier.flush()
    said = str(caught.value)
    assert "job/chk_1" in said and "400 ExpiredToken" in said and "get new ones" in said
    assert not any(secret in said for secret in OLD)
    assert parts_taken(s3.requests) == [1, 2, 3]
    assert s3.open_uploads == 1  # it could not be aborted either, which is well here
    assert files_of(folder) == {"big.bin": DATA}
    renew(s3, env_file)
    before = len(s3.requests)
    async with courier_of(env_file, Told()) as courier:
        courier._lane.part_size = PART
        await courier.watch(folder.parent, "job")
        report = await courier.flush()
    assert [shipped.name for shipped in report.shipped] == ["chk_1"]
    assert parts_taken(since(s3, before)) == [4, 5, 6, 7, 8]
    assert s3.counts["CreateMultipartUpload"].requests == 1
    assert s3.open_uploads == 0
    assert s3.get("jobs/job/chk_1/big.bin") == DATA


async def test_in_the_middle_of_a_pull(s3, env_file, tmp_path):
    """A pull ends with the same words and never as a fresh start; the next one fetches what had not come."""
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"big.bin": DATA})
    async with courier_of(env_file, Told()) as courier:
        courier._lane.part_size = PART
        await courier.ship(folder, "job")
    s3.faults.add(Hour(When(matches=lambda call: call.headers.get("range", "").startswith(f"bytes={5 * PART}-"))).fault)
    async with AsyncFetcher(settings_from(env_file), observer=Told(), rng=Hasty()) as fetcher:
        with pytest.raises(AccessRefused, match=r"400 ExpiredToken.*get new ones"):
            await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert not (tmp_path / "down" / "chk_1").exists()
    renew(s3, env_file)
    before = len(s3.requests)
    async with AsyncFetcher(settings_from(env_file), observer=Told(), rng=Hasty()) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == {"big.bin": DATA}
    assert sum(record.sent for record in since(s3, before) if record.key.endswith("/big.bin")) == 3 * PART
