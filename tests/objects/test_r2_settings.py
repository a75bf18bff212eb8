"""The R2 store and its surroundings: only the settings count, for keys, endpoint, proxy and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from r2d1.errors import ConfigError, NotSent
from r2d1.events import Teller
from r2d1.objects import ByteRange, BytesSource, ObjectStore
from r2d1.objects.local import LocalStore
from r2d1.objects.opening import open_store
from r2d1.objects.r2 import R2Store
from r2d1.objects.resilient import Resilient
from r2d1.settings import Secret, Settings
from r2d1.testing import Call, Fault, Reset, Rules, S3Double, When
from tests.contract.objects import Blocks, Gathered, pattern
from tests.tls import Authority, connect_proxy


@pytest.fixture
def double() -> Iterator[S3Double]:
    with S3Double(rules=Rules.lenient()) as double:
        yield double


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tls_double(tmp_path: Path, authority: Authority) -> Iterator[S3Double]:
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    pem = authority.write_server_pem(tmp_path / "server.pem")
    with S3Double(rules=Rules.lenient(), certfile=pem) as double:
        yield double


async def round_trip(store: ObjectStore) -> None:
    """A streamed body up and down, and the end."""
    data = pattern(1_000_000)
    try:
        await store.put("k", Blocks(data))
        sink = Gathered()
        await store.get_range("k", ByteRange(0, len(data)), sink)
        assert sink.data == data
    finally:
        await store.aclose()


@pytest.fixture
def hostile_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Double]:
    """Everything that could lead botocore astray, and a server that notes whether it was asked for anything."""
    home = tmp_path / "home"
    (home / ".aws" / "models" / "s3" / "2006-03-01").mkdir(parents=True)
    (home / ".aws" / "models" / "s3" / "2006-03-01" / "service-2.json").write_text("not json")
    config = (
        "[default]\nregion = eu-west-9\nca_bundle = /nope\ns3 =\n  addressing_style = virtual\n"
        "  use_accelerate_endpoint = true\nrequest_checksum_calculation = when_supported\nretry_mode = standard\n"
    )
    (home / ".aws" / "config").write_text(config)
    (home / ".aws" / "credentials").write_text("[default]\naws_access_key_id = AKIAFILE\naws_secret_access_key = x\n")
    with S3Double() as trap:
        variables = {
            "HOME": str(home),
            "AWS_ACCESS_KEY_ID": "AKIAENV",
            "AWS_SECRET_ACCESS_KEY": "env-secret",
            "AWS_SESSION_TOKEN": "junk-token",
            "AWS_PROFILE": "nope",
            "AWS_DEFAULT_PROFILE": "nope",
            "AWS_REGION": "us-west-1",
            "AWS_DEFAULT_REGION": "us-west-1",
            "AWS_ENDPOINT_URL": trap.url,
            "AWS_ENDPOINT_URL_S3": trap.url,
            "AWS_CA_BUNDLE": "/nope",
            "REQUESTS_CA_BUNDLE": "/nope",
            "CURL_CA_BUNDLE": "/nope",
            "AWS_CONFIG_FILE": str(home / ".aws" / "config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(home / ".aws" / "credentials"),
            "AWS_DATA_PATH": str(home / ".aws" / "models"),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": trap.url,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{trap.url}/creds",
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/x",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(home / "token"),
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_supported",
            "AWS_RETRY_MODE": "standard",
            "AWS_MAX_ATTEMPTS": "9",
            "AWS_DEFAULTS_MODE": "auto",
            "AWS_USE_FIPS_ENDPOINT": "true",
            "AWS_USE_DUALSTACK_ENDPOINT": "true",
            "AWS_S3_USE_ARN_REGION": "true",
            "AWS_EXECUTION_ENV": "AWS_Lambda_python3.11",
            "AWS_LAMBDA_FUNCTION_NAME": "f",
            "_X_AMZN_TRACE_ID": "trace",
            "AWS_SDK_UA_APP_ID": "app",
            "AWS_CSM_ENABLED": "true",
            "HTTP_PROXY": trap.url,
            "http_proxy": trap.url,
            "ALL_PROXY": trap.url,
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, trap.url)
        yield trap
        assert trap.connections == 0


async def test_nothing_of_the_environment_takes_part(
    tls_double: S3Double, hostile_environment: S3Double, tmp_path: Path
) -> None:
    """Junk in AWS_* variables, files, proxies and a metadata service changes no byte of a request (case 80)."""
    seen: list[Call] = []

    def note(call: Call) -> bool:
        seen.append(call)
        return False

    tls_double.faults.add(Fault(When(matches=note), Reset()))
    settings = Settings.from_env(environ=tls_double.env() | {"R2D1_CA_BUNDLE": str(tmp_path / "ca.pem")})
    await round_trip(R2Store(settings, tell=Teller(None)))
    assert [call.operation for call in seen] == ["PutObject", "GetObject"]
    for call in seen:
        assert "x-amz-security-token" not in call.headers
        assert "x-amzn-trace-id" not in call.headers
        assert f"Credential={tls_double.access_key}/" in call.headers["authorization"]
        assert "/auto/s3/aws4_request" in call.headers["authorization"]
        assert call.headers["user-agent"].startswith("r2d1/")
        assert "Lambda" not in call.headers["user-agent"]
        assert "x-amz-checksum-crc32" not in call.headers
        assert "x-amz-checksum-mode" not in call.headers
    assert {record.connection for record in tls_double.requests} == {1}


async def test_a_session_token_is_sent() -> None:
    """Temporary credentials carry their token with every request."""
    with S3Double(session_token="a-token") as double:
        settings = Settings.from_env(environ=double.env())
        assert settings.session_token == Secret("a-token")
        await round_trip(R2Store(settings, tell=Teller(None)))


async def test_proxy_and_private_ca(tls_double: S3Double, authority: Authority, tmp_path: Path) -> None:
    """Through a CONNECT proxy with a password, to a server with a certificate of a private authority (case 85)."""
    environ = tls_double.env() | {"R2D1_CA_BUNDLE": str(tmp_path / "ca.pem")}
    async with connect_proxy(user="me", password="pass word") as proxy:
        url = proxy.url.replace("pass word", "pass%20word")
        await round_trip(R2Store(Settings.from_env(environ=environ | {"HTTPS_PROXY": url}), tell=Teller(None)))
        host = tls_double.url.removeprefix("https://")
        assert set(proxy.asked) == {f"CONNECT {host} HTTP/1.1"}
        asked = len(proxy.asked)
        direct = environ | {"HTTPS_PROXY": url, "NO_PROXY": "127.0.0.1"}
        await round_trip(R2Store(Settings.from_env(environ=direct), tell=Teller(None)))
        assert len(proxy.asked) == asked


async def test_certificates_are_verified_behind_a_proxy(tls_double: S3Double) -> None:
    """A proxy does not switch verification off: a certificate of strangers is refused there too (case 85)."""
    environ = {name: value for name, value in tls_double.env().items() if name != "R2D1_CA_BUNDLE"}
    async with connect_proxy(user="u", password="p") as proxy:
        store = R2Store(Settings.from_env(environ=environ | {"HTTPS_PROXY": proxy.url}), tell=Teller(None))
        with pytest.raises(NotSent, match="certificate"):
            await store.put("k", BytesSource(b"x"))
        await store.aclose()
        assert proxy.asked
    assert not tls_double.requests


async def test_an_endpoint_with_a_path(double: S3Double) -> None:
    """The endpoint may have a path before the bucket: some servers and gateways do."""
    settings = Settings.from_env(environ=double.env() | {"R2D1_R2_ENDPOINT_URL": f"{double.url}/gateway/s3/"})
    store = R2Store(settings, tell=Teller(None))
    assert store.where == f"{double.url}/gateway/s3/{double.bucket}"
    seen: list[str] = []

    def note(call: Call) -> bool:
        seen.append(call.key)
        return True

    double.faults.add(Fault(When(matches=note), Reset()))
    with pytest.raises(Exception, match="k"):
        await store.head("k")
    await store.aclose()
    assert seen == [f"s3/{double.bucket}/k"]


def test_missing_credentials_are_named() -> None:
    """A store without keys is refused before anything is opened, naming all that is missing."""
    with pytest.raises(ConfigError, match="R2D1_R2_SECRET_KEY"):
        open_store(Settings(bucket="b", endpoint_url="http://127.0.0.1:1", access_key="k"), tell=Teller(None))


async def test_the_settings_choose_the_store(tmp_path: Path, double: S3Double) -> None:
    """A store URL is a directory, anything else R2 with retries."""
    local = open_store(Settings(store_url=(tmp_path / "b").as_uri()), tell=Teller(None))
    remote = open_store(Settings.from_env(environ=double.env()), tell=Teller(None))
    assert isinstance(local, LocalStore)
    assert isinstance(remote, Resilient)
    assert (local.where, remote.where) == (f"file://{tmp_path}/b", f"{double.url}/{double.bucket}")
    await local.aclose()
    await remote.aclose()
