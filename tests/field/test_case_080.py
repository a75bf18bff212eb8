"""Field case 80: ambient AWS variables hijack the R2 settings. Here the explicit settings win, alone and at once."""

from __future__ import annotations

import re
import socket

import pytest

from r2d1 import AsyncCourier, AsyncFetcher
from r2d1.testing import Fault, Hook, When
from tests.checkpoints import files_of, write_checkpoint

NOWHERE = "http://127.0.0.1:1"
JUNK = {
    "AWS_REGION": "us-west-1",
    "AWS_DEFAULT_REGION": "eu-north-1",
    "AWS_PROFILE": "nope",
    "AWS_DEFAULT_PROFILE": "nope",
    "AWS_ACCESS_KEY_ID": "AKIAJUNKJUNKJUNKJUNK",
    "AWS_SECRET_ACCESS_KEY": "junk-secret",
    "AWS_SESSION_TOKEN": "junk",
    "AWS_SECURITY_TOKEN": "junk",
    "AWS_ENDPOINT_URL": NOWHERE,
    "AWS_ENDPOINT_URL_S3": NOWHERE,
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "maybe",
    "AWS_CA_BUNDLE": "/nope",
    "REQUESTS_CA_BUNDLE": "/nope",
    "CURL_CA_BUNDLE": "/nope",
    "AWS_CONFIG_FILE": "/nope/config",
    "AWS_SHARED_CREDENTIALS_FILE": "/nope/credentials",
    "AWS_DATA_PATH": "/nope/models",
    "AWS_RETRY_MODE": "nonsense",
    "AWS_MAX_ATTEMPTS": "many",
    "AWS_DEFAULTS_MODE": "nonsense",
    "AWS_USE_FIPS_ENDPOINT": "true",
    "AWS_USE_DUALSTACK_ENDPOINT": "true",
    "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT": "nonsense",
    "AWS_S3_DISABLE_MULTIREGION_ACCESS_POINTS": "true",
    "AWS_STS_REGIONAL_ENDPOINTS": "nonsense",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_supported",
    "AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES": "1",
    "AWS_SDK_UA_APP_ID": "junk",
    "AWS_EXECUTION_ENV": "junk",
    "AWS_LAMBDA_FUNCTION_NAME": "junk",
    "_X_AMZN_TRACE_ID": "Root=1-junk",
    "AWS_EC2_METADATA_DISABLED": "false",
    "AWS_METADATA_SERVICE_TIMEOUT": "1000",
    "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "1000",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/junk",
    "AWS_ROLE_ARN": "arn:aws:iam::1:role/junk",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/nope/token",
    "AWS_ACCOUNT_ID": "1",
    "BOTO_CONFIG": "/nope/boto",
}


@pytest.fixture
def metadata_service(monkeypatch):
    """An instance metadata service that takes connections and never answers; returns its socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for name in ("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            monkeypatch.setenv(name, url)
        yield listener


def nobody_came(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize("door", ["from_env", "from_config"])
async def test_junk_in_the_environment(s3, d1, tmp_path, monkeypatch, bare_environ, metadata_service, door):
    """With every AWS variable set to junk, checkpoints are shipped and pulled with the given keys and region ``auto``."""
    for name, value in JUNK.items():
        monkeypatch.setenv(name, value)
    given = {**s3.env(), **d1.settings_env()}
    if door == "from_env":
        for name, value in given.items():
            monkeypatch.setenv(name, value)
    scopes: set[str] = set()
    seen: set[str] = set()

    def look(call) -> None:
        scopes.update(re.findall(r"Credential=([^,]+)", call.headers["authorization"]))
        seen.update(name for name in call.headers if name.startswith(("x-amz", "x-amzn")))

    s3.faults.add(Fault(When(), Hook(before=look), times=None))
    files = {"a.bin": b"a" * 100_000, "b.bin": b"b"}
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    make = (lambda kind: kind.from_env()) if door == "from_env" else (lambda kind: kind.from_config(given))
    async with make(AsyncCourier) as courier:
        await courier.ship(folder, "job")
    async with make(AsyncFetcher) as fetcher:
        info = await fetcher.pull("r2://jobs/job/latest", tmp_path / "down")
    assert files_of(info.local_dir) == files
    assert {(s.split("/")[0], *s.split("/")[2:]) for s in scopes} == {(s3.access_key, "auto", "s3", "aws4_request")}
    assert seen <= {"x-amz-content-sha256", "x-amz-date", "x-amz-checksum-crc64nvme"}
    assert all("junk" not in str(record.headers) for record in s3.requests)
    assert nobody_came(metadata_service)
    assert [row["epoch"] for row in d1.sql("SELECT epoch FROM checkpoints")] == [1]
