"""Field case 15: new SDKs' checksum headers and trailers break R2 and look like bad keys. Ours works out of the box."""

from __future__ import annotations

import os

import pytest

from r2d1.digest import digest_of
from r2d1.errors import RemoteError
from r2d1.testing import Answer, Fault, When
from tests.checkpoints import MIB, files_of, write_checkpoint
from tests.remote_ends import Told, assert_nothing_left, open_courier, open_fetcher

PROFILES = {501: "NotImplemented", 401: "Unauthorized", 500: "InternalError"}


def has_checksum(call) -> bool:
    """Any sign of a checksum, a trailer or a chunked body."""
    named = ("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer")
    is_streaming = "STREAMING" in call.headers.get("x-amz-content-sha256", "")
    return is_streaming or any(name.startswith(named) or "aws-chunked" in value for name, value in call.headers.items())


def refuse(s3, status: int) -> None:
    """Answer every request with such a header like this, for ever."""
    s3.faults.add(Fault(When(matches=has_checksum), Answer(status, PROFILES[status]), times=None))


@pytest.mark.parametrize("status", PROFILES)
async def test_a_store_that_refuses_checksums(s3, tmp_path, status):
    """Small files and parts are shipped and pulled whatever the store answers to such headers; a notice says it once."""
    refuse(s3, status)
    files = {"small.bin": b"small", "big.bin": os.urandom(11 * MIB)}
    write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    told = Told()
    async with open_courier(s3, tuning={"part_size": 5 * MIB}, observer=told) as courier:
        await courier.ship(tmp_path / "up" / "chk_1", "job")
    async with open_fetcher(s3) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files
    assert info.manifest == digest_of(s3.get("jobs/job/chk_1/r2d1.manifest.json"))
    assert digest_of(files["big.bin"]) in s3.get("jobs/job/chk_1/r2d1.manifest.json").decode()
    assert len([text for text in told.notices("warning") if "checksum" in text]) <= 1
    assert_nothing_left(s3, tmp_path / "up", tmp_path / "down")


async def test_md5_alone_never_sends_such_a_header(s3, tmp_path):
    """With ``upload_check="md5"`` no request carries one, and bodies are still checked."""
    refuse(s3, 501)
    write_checkpoint(tmp_path, "chk_1", 1, {"small.bin": b"small", "big.bin": os.urandom(11 * MIB)})
    async with open_courier(s3, tuning={"part_size": 5 * MIB, "upload_check": "md5"}) as courier:
        await courier.ship(tmp_path / "chk_1", "job")
    assert s3.faults.fired() == 0
    bodies = [record for record in s3.requests if record.operation == "UploadPart"]
    assert all("content-md5" in record.headers for record in bodies)


async def test_a_refusal_does_not_blame_the_keys(s3, tmp_path):
    """A store that answers 501 to every body is reported as that, and not as wrong credentials."""
    s3.faults.add(Fault(When(operation="PutObject", key="*/a.bin"), Answer(501, "NotImplemented"), times=None))
    write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"a"})
    async with open_courier(s3) as courier:
        with pytest.raises(RemoteError) as caught:
            await courier.ship(tmp_path / "chk_1", "job")
    assert "credentials are not the cause" in str(caught.value)
    assert "access key" not in str(caught.value)
