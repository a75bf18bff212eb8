"""Field case 127: a client certificate offered to the wrong party. We have none to offer, whoever asks for it."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager

import pytest

from r2d1 import AsyncCourier, Settings
from r2d1.errors import RemoteError
from r2d1.sources import VARIABLES
from r2d1.testing import D1Double
from tests.checkpoints import write_checkpoint
from tests.remote_ends import Hasty, Told
from tests.tls import Authority


class Curious:
    """A TLS server that asks every client for a certificate, keeps what it is shown, and refuses the request."""

    def __init__(self, authority: Authority) -> None:
        self.shown: list[object] = []
        self.asked: list[bytes] = []
        self.context = authority.server_context()
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.context.load_verify_locations(cadata=authority.pem.decode())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.shown.append(writer.get_extra_info("peercert"))
        self.asked.append(await reader.readline())
        while (await reader.readline()).strip():
            pass
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def open(self):
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0, ssl=self.context)
        async with server:
            yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
def authority():
    return Authority()


@pytest.fixture
def bundle(authority, tmp_path):
    """The file of R2D1_CA_BUNDLE as some make it: with a certificate and its key in it, before the authority."""
    path = authority.write_server_pem(tmp_path / "bundle.pem")
    path.write_bytes(path.read_bytes() + authority.pem)
    return path


async def ship(environ: dict[str, str], tmp_path) -> None:
    folder = write_checkpoint(tmp_path / "up", "chk_1", 1, {"a.bin": b"a"})
    settings = Settings.from_env(environ=environ)
    async with AsyncCourier(settings, observer=Told(), rng=Hasty(), drain_timeout=0.1) as courier:
        await courier.ship(folder, "job")


async def test_endpoints_that_ask(s3, authority, bundle, tmp_path):
    """Neither the endpoint of R2 nor that of D1 is shown one."""
    curious = Curious(authority)
    async with curious.open() as url:
        with pytest.raises(RemoteError, match="403"):
            await ship({**s3.env(), "R2D1_R2_ENDPOINT_URL": url, "R2D1_CA_BUNDLE": str(bundle)}, tmp_path)
        assert curious.shown == [None]
        with D1Double() as d1:
            d1_env = {**d1.settings_env(), "R2D1_D1_BASE_URL": f"{url}/client/v4"}
            await ship({**s3.env(), **d1_env, "R2D1_CA_BUNDLE": str(bundle)}, tmp_path)
    assert len(curious.shown) > 1
    assert all(certificate is None for certificate in curious.shown)
    assert {line.split()[0] for line in curious.asked} >= {b"GET", b"POST"}


async def test_a_proxy_that_asks(s3, authority, bundle, tmp_path):
    """Nor is a proxy that is reached through TLS."""
    curious = Curious(authority)
    async with curious.open() as proxy:
        environ = {
            **s3.env(),
            "R2D1_R2_ENDPOINT_URL": "https://r2.invalid",
            "HTTPS_PROXY": proxy,
            "R2D1_CA_BUNDLE": str(bundle),
        }
        with pytest.raises(RemoteError, match="proxy"):
            await ship(environ, tmp_path)
    assert curious.asked[0].startswith(b"CONNECT r2.invalid:443 ")
    assert all(certificate is None for certificate in curious.shown)


def test_no_setting_names_one():
    """Nothing that r2d1 reads means a client certificate: the only files are those of authorities."""
    names = {name for variable in VARIABLES for name in variable.names}
    assert {name for name in names if "CERT" in name or "BUNDLE" in name} == {"R2D1_CA_BUNDLE", "SSL_CERT_FILE"}
