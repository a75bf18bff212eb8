"""A private certificate authority and a CONNECT proxy for tests, both on the loopback."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """An authority, and one certificate of it for 127.0.0.1 and localhost."""

    def __init__(self) -> None:
        self._key, self.certificate = _issued("test authority", None, None)
        server_key, server = _issued("127.0.0.1", self._key, self.certificate)
        self._server_pem = _pem(server_key) + server.public_bytes(serialization.Encoding.PEM)
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            context.load_cert_chain(self.write_server_pem(Path(folder, "server.pem")))
        return context

    def write_server_pem(self, path: Path) -> Path:
        """Key and certificate of the server in one file."""
        path.write_bytes(self._server_pem)
        return path

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.pem.decode())


def _issued(
    name: str, issuer_key: ec.EllipticCurvePrivateKey | None, issuer: x509.Certificate | None
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if issuer_key is None:
        usage = x509.KeyUsage(
            key_cert_sign=True,
            crl_sign=True,
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)  # Python 3.13 insists on it
    else:
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        builder = builder.add_extension(identifier, critical=False)
    return key, builder.sign(issuer_key or key, hashes.SHA256())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@dataclass(slots=True)
class ConnectProxy:
    """A running proxy: its URL with user and password, the request lines it got, and all bytes from clients."""

    url: str = field(repr=False)
    authorization: str = field(repr=False)
    asked: list[str] = field(default_factory=list)
    seen: bytearray = field(default_factory=bytearray)

    async def serve(self, client: anyio.abc.SocketStream) -> None:
        async with client:
            head = b""
            while b"\r\n\r\n" not in head:
                try:
                    head += await client.receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return  # the client thought better of it
            lines = head.decode().split("\r\n")
            self.asked.append(lines[0])
            if f"proxy-authorization: {self.authorization}".lower() not in [line.lower() for line in lines]:
                await client.send(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            host, _, port = lines[0].split()[1].rpartition(":")
            async with await anyio.connect_tcp(host, int(port)) as server, anyio.create_task_group() as tasks:
                await client.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                tasks.start_soon(_pump, server, client, bytearray(), tasks.cancel_scope)
                await _pump(client, server, self.seen, tasks.cancel_scope)


async def _pump(
    source: anyio.abc.SocketStream, target: anyio.abc.SocketStream, seen: bytearray, scope: anyio.CancelScope
) -> None:
    try:
        while True:
            block = await source.receive()
            seen += block
            await target.send(block)
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        scope.cancel()


@asynccontextmanager
async def connect_proxy(*, user: str, password: str) -> AsyncIterator[ConnectProxy]:
    """A proxy on a free port that knows CONNECT only and asks for user and password."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
        proxy = ConnectProxy(f"http://{user}:{password}@127.0.0.1:{port}", f"Basic {credentials}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, proxy.serve)
            yield proxy
            tasks.cancel_scope.cancel()
