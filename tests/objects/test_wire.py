"""Our own connections to the store: how they are made, kept and cut, and TLS above them."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from r2d1.errors import NotSent, RemoteUnavailable
from r2d1.events import Teller
from r2d1.objects import ByteRange, SmallPut
from r2d1.objects.r2 import R2Store
from r2d1.objects.wire_connect import Endpoint, NotConnected, connect
from r2d1.settings import Secret, Settings
from r2d1.tasks import Halt, in_stoppable_thread
from r2d1.testing import Fault, Gate, Hold, Rules, S3Double, When
from tests.contract.objects import Blocks, Gathered, pattern
from tests.objects.raw_server import http
from tests.tls import Authority

MIB = 1 << 20


@contextmanager
def deaf() -> Iterator[tuple[str, int]]:
    """An address that takes a connection from nobody: its queue is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        full = []
        try:
            for _ in range(4):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(address)
                full.append(one)
            yield address
        finally:
            for one in full:
                one.close()


@pytest.fixture
def tls_double(tmp_path: Path) -> Iterator[S3Double]:
    authority = Authority()
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    with S3Double(rules=Rules.lenient(), certfile=authority.write_server_pem(tmp_path / "server.pem")) as double:
        yield double


def store_to(url: str) -> R2Store:
    settings = Settings(endpoint_url=url, bucket="b-b", access_key="k", secret_key=Secret("secret"))
    return R2Store(settings, tell=Teller(None))


# -- connecting ----------------------------------------------------------------------------------------------


async def test_a_dead_address_does_not_hold_up_a_living_one() -> None:
    """Of two addresses of a name the one that answers is used, though the other comes first (RFC 8305)."""
    with deaf() as dead, socket.socket() as alive:
        alive.bind(("127.0.0.1", 0))
        alive.listen()
        endpoint = Endpoint.of("http://two.example", tls=None, proxy=None, idle_s=5)
        addresses = [(socket.AF_INET, dead), (socket.AF_INET, alive.getsockname())]
        link, chosen = await in_stoppable_thread(lambda halt: connect(endpoint, addresses, halt))
        assert chosen == alive.getsockname()
        link.close()


async def test_every_dead_address_is_named_by_the_last_reason() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = closed.getsockname()
    endpoint = Endpoint.of("http://127.0.0.1:1", tls=None, proxy=None, idle_s=5)
    with pytest.raises(NotConnected, match="cannot be reached: Connection refused"):
        connect(endpoint, [(socket.AF_INET, address)] * 2, Halt())


@pytest.mark.parametrize("native", [True, False])
async def test_cancelling_ends_a_connection_attempt(native: bool) -> None:
    """A server that takes no connections does not keep a cancelled call for the ten seconds it may take."""
    with deaf() as (host, port):
        store = store_to(f"http://{host}:{port}")
        task = asyncio.create_task(store.put("k", Blocks(b"x" * MIB)))
        with anyio.move_on_after(0.5):
            await asyncio.shield(task)
        assert not task.done()
        task.cancel()
        with anyio.fail_after(5):
            if native:
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await asyncio.wait([task])
        await store.aclose()


# -- keeping -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def hanging_up(times: list[int]) -> AsyncIterator[str]:
    """A server that takes one request a connection and hangs up without having said so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        times.append(length)
        writer.write(http("200 OK", ETag='"e"', Connection="keep-alive"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_connection_that_ended_is_not_used_again() -> None:
    """A kept connection is looked at before it is used: the next request goes over a new one."""
    times: list[int] = []
    async with hanging_up(times) as url:
        store = store_to(url)
        for _ in range(3):
            await store.put("k", Blocks(b"x" * 1000))
            await asyncio.sleep(0.05)  # its farewell is on the way
        await store.aclose()
    assert times == [1000] * 3


def row(prefix: str) -> list[SmallPut]:
    return [SmallPut(f"{prefix}/{number}", Blocks(b"x" * 1000), lambda: None) for number in range(5)]


async def test_a_row_that_waits_for_its_answer_holds_up_no_other() -> None:
    """Rows take turns for the work, not for the waiting, and one that is cancelled in mid-wait leaves its turn."""
    with S3Double(rules=Rules.lenient()) as double:
        gate = Gate()
        double.faults.add(Fault(When(operation="PutObject", key="slow/2"), Hold(gate)))
        store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(None))
        slow = asyncio.create_task(store.put_several(row("slow")))
        await gate.arrived.wait()
        with anyio.fail_after(20):
            assert len(await store.put_several(row("quick"))) == 5
            slow.cancel()
            with pytest.raises(asyncio.CancelledError):
                await slow
            assert len(await store.put_several(row("later"))) == 5
        gate.release()
        await store.aclose()


async def test_one_connection_serves_many_requests(tls_double: S3Double, tmp_path: Path) -> None:
    """Up, down and refused, one after the other: a refusal of a body costs a new connection, nothing else does."""
    settings = Settings.from_env(environ=tls_double.env() | {"R2D1_CA_BUNDLE": str(tmp_path / "ca.pem")})
    store = R2Store(settings, tell=Teller(None))
    data = pattern(3 * MIB)
    for n in range(5):
        await store.put(f"k{n}", Blocks(data))
        sink = Gathered()
        await store.get_range(f"k{n}", ByteRange(5, 2 * MIB), sink)
        assert sink.data == data[5 : 2 * MIB]
    assert tls_double.connections == 1
    await store.aclose()


# -- cutting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["PutObject", "GetObject"])
async def test_cancelling_cuts_the_connection_at_once(tls_double: S3Double, tmp_path: Path, operation: str) -> None:
    """A thread that waits for the server's answer ends with the call, over TLS too, and nothing is left open."""
    settings = Settings.from_env(environ=tls_double.env() | {"R2D1_CA_BUNDLE": str(tmp_path / "ca.pem")})
    store, gate = R2Store(settings, tell=Teller(None)), Gate()
    await store.put("k", Blocks(pattern(MIB)))
    tls_double.faults.add(Fault(When(operation=operation), Hold(gate)))
    call = (
        store.put("k", Blocks(pattern(MIB)))
        if operation == "PutObject"
        else store.get_range("k", ByteRange(0, 9), Gathered())
    )
    task = asyncio.create_task(call)
    with anyio.fail_after(30):
        await gate.arrived.wait()
    task.cancel()
    with anyio.fail_after(5), pytest.raises(asyncio.CancelledError):
        await task
    gate.release()
    await store.put("again", Blocks(b"y"))
    await store.aclose()


async def test_a_pull_through_tls_that_breaks_off_says_so(tls_double: S3Double, tmp_path: Path) -> None:
    """TLS that ends without a farewell in the middle of a body is an early end, and what came was written."""
    from r2d1.testing import CutReply

    settings = Settings.from_env(environ=tls_double.env() | {"R2D1_CA_BUNDLE": str(tmp_path / "ca.pem")})
    store, sink, data = R2Store(settings, tell=Teller(None)), Gathered(), pattern(2 * MIB)
    await store.put("k", Blocks(data))
    tls_double.faults.add(Fault(When(operation="GetObject"), CutReply(after=MIB)))
    with pytest.raises(RemoteUnavailable) as caught:
        await store.get_range("k", ByteRange(0, 2 * MIB), sink)
    assert caught.value.etag == hashlib.md5(data).hexdigest()
    assert data.startswith(sink.data)
    assert sink.data
    await store.aclose()


# -- TLS in TLS ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def tls_proxy(certfile: Path, asked: list[str]) -> AsyncIterator[str]:
    """A CONNECT proxy that is itself reached by https."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certfile)

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
        finally:
            target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split("\r\n")[0])
        host, _, port = head.split()[1].rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_tls_within_tls(tls_double: S3Double, tmp_path: Path) -> None:
    """Through a proxy that is reached by https, both certificates verified."""
    asked: list[str] = []
    environ = tls_double.env() | {"R2D1_CA_BUNDLE": str(tmp_path / "ca.pem")}
    async with tls_proxy(tmp_path / "server.pem", asked) as url:
        store = R2Store(Settings.from_env(environ=environ | {"HTTPS_PROXY": url}), tell=Teller(None))
        data, sink = pattern(3 * MIB), Gathered()
        await store.put("k", Blocks(data))
        await store.get_range("k", ByteRange(0, 3 * MIB), sink)
        assert sink.data == data
        await store.aclose()
        assert asked
        strangers = {name: value for name, value in environ.items() if name != "R2D1_CA_BUNDLE"}
        store = R2Store(Settings.from_env(environ=strangers | {"HTTPS_PROXY": url}), tell=Teller(None))
        with pytest.raises(NotSent, match="certificate is not trusted"):
            await store.put("k", Blocks(data))
        await store.aclose()


# -- slowness ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def trickling(every_s: float, size: int) -> AsyncIterator[str]:
    """A server that sends an object of 1 MiB in pieces of ``size`` bytes, one each ``every_s`` seconds."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        ranges = {"Content_Range": f"bytes 0-{MIB - 1}/{MIB}", "Content_Length": str(MIB)}
        writer.write(http("206 Partial Content", ETag='"e"', **ranges))
        try:
            for _ in range(0, MIB, size):
                writer.write(b"x" * size)
                await writer.drain()
                await asyncio.sleep(every_s)
        except ConnectionError:
            return  # the client has had enough
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_trickle_is_as_good_as_silence() -> None:
    """A byte now and then does not keep a request alive: it is given up, to be made again, after the idle time."""
    async with trickling(0.05, 1) as url:
        settings = Settings(endpoint_url=url, bucket="b-b", access_key="k", secret_key=Secret("s"))
        store = R2Store(settings, tell=Teller(None), idle_s=0.5)
        with anyio.fail_after(30), pytest.raises(RemoteUnavailable, match=r"nothing moved for 0\.5 seconds"):
            await store.get_range("k", ByteRange(0, MIB), Gathered())
        await store.aclose()


async def test_slow_is_not_silent() -> None:
    """A link that carries little, but more than a trickle, brings the whole piece however many idle times it takes."""
    async with trickling(0.02, 16 << 10) as url:
        settings = Settings(endpoint_url=url, bucket="b-b", access_key="k", secret_key=Secret("s"))
        store, sink = R2Store(settings, tell=Teller(None), idle_s=0.3), Gathered()
        await store.get_range("k", ByteRange(0, MIB), sink)
        assert len(sink.data) == MIB
        await store.aclose()


# -- servers that do not keep to the rules ---------------------------------------------------------------------


@asynccontextmanager
async def scripted(serve, context: ssl.SSLContext | None = None) -> AsyncIterator[R2Store]:
    """A store before a server of a test's own, whose connections ``serve`` speaks on."""
    ended = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
            await ended.wait()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0, ssl=context)
    scheme = "https" if context else "http"
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = Settings(endpoint_url=url, bucket="b-b", access_key="k", secret_key=Secret("s"))
    store = R2Store(settings, tell=Teller(None), idle_s=0.5)
    try:
        yield store
    finally:
        await store.aclose()
        ended.set()
        server.close()


PLACED = {"Content_Range": f"bytes 0-999/{MIB}", "ETag": '"e"'}


async def test_words_of_comfort_without_end_are_no_answer() -> None:
    """A server that says 102 for ever is given up after the idle time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with scripted(serve) as store:
        with anyio.fail_after(30), pytest.raises(RemoteUnavailable, match="nothing moved"):
            await store.get_range("k", ByteRange(0, 1000), Gathered())


async def test_an_error_in_drops_is_given_up() -> None:
    """A refusal whose text comes a byte at a time does not keep the request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 100000\r\n\r\n")
        while True:
            writer.write(b"x" * 200)
            await writer.drain()
            await asyncio.sleep(0.05)

    async with scripted(serve) as store:
        with anyio.fail_after(30), pytest.raises(RemoteUnavailable, match="nothing moved"):
            await store.get_range("k", ByteRange(0, 1000), Gathered())


async def test_a_body_that_goes_on_is_left() -> None:
    """Once all wanted bytes came, whatever a server adds to a chunked body is not waited for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = f'HTTP/1.1 206 OK\r\nETag: "e"\r\nContent-Range: bytes 0-999/{MIB}\r\nTransfer-Encoding: chunked\r\n\r\n'
        writer.write(head.encode() + b"3e8\r\n" + b"x" * 1000 + b"\r\n")

    async with scripted(serve) as store:
        sink = Gathered()
        with anyio.fail_after(30):
            await store.get_range("k", ByteRange(0, 1000), sink)
        assert sink.data == b"x" * 1000


async def test_a_date_that_nobody_can_read_is_no_matter() -> None:
    """Nothing that was asked for depends on ``Last-Modified``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http("206 Partial Content", b"x" * 1000, Last_Modified="the day before", **PLACED))

    async with scripted(serve) as store:
        assert (await store.get_range("k", ByteRange(0, 1000), Gathered())).modified == 0.0


async def test_what_a_server_adds_is_not_the_next_answer(tls_double: S3Double, tmp_path: Path) -> None:
    """Bytes after an answer, decrypted together with its end, do not answer the request that follows."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem")
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split()[0])
        if asked[-1] == b"PUT":
            writer.write(http("200 OK", ETag='"right"'))
            return
        writer.write(b'HTTP/1.1 206 OK\r\nETag: "e"\r\nContent-Range: bytes 0-999/1000\r\nContent-Length: 1000\r\n\r\n')
        await writer.drain()
        await asyncio.sleep(0.1)
        writer.write(b"y" * 1000 + http("200 OK", ETag='"stale"').replace(b"close", b"keep-alive"))

    async with scripted(serve, context) as plain:
        settings = Settings(
            endpoint_url=plain.where.removesuffix("/b-b"),
            bucket="b-b",
            access_key="k",
            secret_key=Secret("s"),
            ca_bundle=str(tmp_path / "ca.pem"),
        )
        store = R2Store(settings, tell=Teller(None), idle_s=5)
        await store.get_range("k", ByteRange(0, 1000), Gathered())
        assert await store.put("k", Blocks(b"z")) == "right"
        await store.aclose()
    assert asked == [b"GET", b"PUT"]
