"""One request to a base: every answer is judged, redirects lead a token nowhere, and a connection ends when it must."""

from __future__ import annotations

import asyncio
import ssl
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from r2d1.bases import Base, BaseReader, WrongBytes, open_reader, sha256_of
from r2d1.errors import (
    ConfigError,
    NameRefused,
    NotSent,
    ObjectNotFound,
    RangeRefused,
    RemoteError,
    RemoteUnavailable,
)
from r2d1.objects import ByteRange
from r2d1.objects.wire_web import REDIRECTS, _is_home, _parsed
from r2d1.secret import Secret
from r2d1.settings import Settings
from tests.datasets.web import dead_url
from tests.objects.raw_server import Handler, answering, http, serving
from tests.tls import Authority, connect_proxy

SPAN = ByteRange(10, 30)
OBJECT = bytes(range(100))
DATA = OBJECT[10:30]
TOKEN = Secret("token-of-the-base")


def ranged(body: bytes = DATA, *, said: str = "10-29/100", **headers: str) -> bytes:
    return http("206 Partial Content", body, Content_Range=f"bytes {said}", **headers)


def moved(to: str, status: str = "302 Found") -> bytes:
    return http(status, b"elsewhere", Location=to)


@asynccontextmanager
async def reading(handler: Handler, *, token: Secret | None = TOKEN) -> AsyncIterator[BaseReader]:
    async with serving(handler) as url, open_reader(Base(url, token)) as reader:
        yield reader


def noting(heads: list[str], *answers: bytes) -> Handler:
    """A handler that keeps the heads, in lower case, beside answering."""
    answer = answering(*answers)

    async def handle(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(head.lower())
        await answer(head, reader, writer)

    return handle


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[tuple[ssl.SSLContext, Settings]]:
    made = Authority()
    (tmp_path / "ca.pem").write_bytes(made.pem)
    environ = {"R2D1_STORE_URL": (tmp_path / "bucket").as_uri(), "R2D1_CA_BUNDLE": str(tmp_path / "ca.pem")}
    yield made.server_context(), Settings.from_env(environ=environ)


# Answers


@pytest.mark.parametrize(
    "answer",
    [
        ranged(),
        http("200 OK", OBJECT),
        http("200 OK", DATA, Content_Range="bytes 10-29/100"),
        ranged(
            b"5\r\n" + DATA[:5] + b"\r\nf\r\n" + DATA[5:] + b"\r\n0\r\n\r\n",
            Content_Length="",
            Transfer_Encoding="chunked",
        ),
        ranged(Content_Length=""),
    ],
    ids=["range", "whole", "a range called 200", "chunked", "until the connection ends"],
)
async def test_a_right_answer(answer: bytes) -> None:
    async with reading(answering(answer)) as reader:
        found = await reader.read_range("key", SPAN)
        assert found.data == DATA
        assert await reader.read_checked("key", SPAN, sha256_of(DATA), len) == 20


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (ranged(DATA + b"x"), RemoteUnavailable, "more of 20 bytes came"),
        (ranged(DATA + b"x" * 1000, Content_Length=""), RemoteUnavailable, "more of 20 bytes came"),
        (
            ranged(b"16\r\n" + DATA + b"xx\r\n", Content_Length="", Transfer_Encoding="chunked"),
            RemoteUnavailable,
            "more of",
        ),
        (ranged(DATA[:7]), RemoteUnavailable, "7 of 20 bytes came"),
        (ranged(DATA[:7], Content_Length="20"), RemoteUnavailable, "ended early"),
        (http("200 OK", OBJECT[:17]), RemoteUnavailable, "7 of 20 bytes came"),
        (ranged(said="9-28/100"), RemoteError, "10-29 were asked for, 9-28 came"),
        (ranged(said="10-29"), RemoteError, "Content-Range is missing or cannot be read"),
        (ranged(said="10-29/100\r\nContent-Range: bytes 0-19/100"), RemoteError, "missing or cannot be read"),
        (ranged(Content_Encoding="gzip"), RemoteError, "compressed"),
        (http("204 No Content"), RemoteError, "204"),
        (http("404 Not Found", b"", Content_Length="9"), ObjectNotFound, "prefix included"),
        (http("416 Range Not Satisfiable"), RangeRefused, "416"),
        (http("503 Service Unavailable", Retry_After="7"), RemoteUnavailable, "503"),
        (http("304 Not Modified", Content_Length=""), RemoteError, "304"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", RemoteUnavailable, "not HTTP"),
        (b"", RemoteUnavailable, "broke before the answer came"),
    ],
)
async def test_a_wrong_answer_and_no_token_in_what_is_raised(answer: bytes, kind: type[RemoteError], said: str) -> None:
    """What is wrong is said; nothing that a debugger could print of the error holds the token."""
    async with reading(answering(answer)) as reader:
        with pytest.raises(kind, match=said) as caught:
            await reader.read_range("key", SPAN)
    shows = all_that_shows(caught.value)
    assert "BaseReader" in shows
    assert TOKEN.reveal() not in shows


def all_that_shows(error: BaseException) -> str:
    """The error and its causes, and the variables of every frame they came through but this file's own."""
    shown, left = [], [error]
    for each in left:
        left.extend(filter(None, (each.__cause__, each.__context__)))
        frames = traceback.TracebackException.from_exception(each, capture_locals=True).stack
        shown.append(f"{each!r} {each} {[frame.locals for frame in frames if frame.filename != __file__]}")
    return "\n".join(shown)


async def test_an_error_is_told_without_its_page() -> None:
    """The head of a refusal is enough: its body is not waited for."""

    async def refuse(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http("404 Not Found", b"", Content_Length="1000000", Connection="keep-alive"))
        assert await reader.read() == b""

    async with reading(refuse) as reader:
        with pytest.raises(ObjectNotFound):
            await reader.read_range("key", SPAN)


async def test_wrong_bytes_are_not_kept() -> None:
    """Bytes of another hash reach nobody, and the error names both."""
    kept: list[object] = []
    async with reading(answering(ranged(bytes(20)))) as reader:
        with pytest.raises(WrongBytes, match=f"{sha256_of(bytes(20))}, not {sha256_of(DATA)}"):
            await reader.read_checked("key", SPAN, sha256_of(DATA), kept.append)
    assert kept == []


async def test_headers_that_come_twice_are_one_list() -> None:
    async with reading(answering(ranged(ETag='"e"\r\nVary: Origin\r\nVary: Range'))) as reader:
        assert (await reader.read_range("key", SPAN)).headers["vary"] == "Origin, Range"


async def test_a_whole_object_and_its_limit() -> None:
    """All of it in any framing; more than the limit, a part and a compressed one are refused."""
    answers = [http("200 OK", OBJECT), http("200 OK", OBJECT, Content_Length=""), ranged()]
    async with reading(answering(*answers, http("200 OK", OBJECT, Content_Encoding="br"))) as reader:
        assert await reader.read_whole("key", limit=100) == OBJECT
        with pytest.raises(RemoteError, match="more than 99 bytes came"):
            await reader.read_whole("key", limit=99)
        for _ in range(2):
            with pytest.raises(RemoteError, match="206|compressed"):
                await reader.read_whole("key", limit=100)


# Connections


async def test_the_rest_of_a_whole_object_is_left_unread() -> None:
    """A base without ranges: the connection is closed as soon as the range has come, long before the end."""
    hung_up = asyncio.Event()

    async def give(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http("200 OK", OBJECT, Content_Length=str(1 << 40), Connection="keep-alive"))
        assert await reader.read() == b""
        hung_up.set()

    async with reading(give) as reader:
        assert (await reader.read_range("key", SPAN)).data == DATA
        with anyio.fail_after(10):
            await hung_up.wait()


async def test_a_cancelled_read_closes_its_connection() -> None:
    """In the middle of a body that does not go on: the caller is free at once and the server sees the end."""
    arrived, hung_up = asyncio.Event(), asyncio.Event()

    async def stop(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ranged(DATA[:7], Content_Length="20"))
        await writer.drain()
        arrived.set()
        assert await reader.read() == b""
        hung_up.set()

    async with reading(stop) as reader:
        task = asyncio.create_task(reader.read_range("key", SPAN))
        await arrived.wait()
        task.cancel()
        with anyio.fail_after(10):  # far less than a silent connection is borne
            with pytest.raises(asyncio.CancelledError):
                await task
            await hung_up.wait()


async def test_a_trickle_is_given_up() -> None:
    """Bytes that come without a pause, but too few a second: the read ends as one that is silent does."""

    async def trickle(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ranged(b"", said="0-3999/4000", Content_Length="4000"))
        for _ in range(40):
            writer.write(bytes(100))
            with anyio.move_on_after(0.04):
                await reader.read()

    async with serving(trickle) as url, open_reader(url, idle_s=0.1) as reader:
        with pytest.raises(RemoteUnavailable, match="too slow, or has stopped"):
            await reader.read_range("key", ByteRange(0, 4000))


async def test_one_connection_serves_many_reads() -> None:
    """A connection on which everything was read is used again, after a redirect's page, too."""
    connections: list[int] = []
    kept = {"Connection": "keep-alive"}

    async def handle(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        while True:
            is_front = " /front/" in head
            writer.write(http("307 Moved", b"there", Location="/back", **kept) if is_front else ranged(**kept))
            head = (await reader.readuntil(b"\r\n\r\n")).decode()

    async with serving(handle) as url, open_reader(f"{url}/front") as reader:
        for _ in range(5):
            assert (await reader.read_range("key", SPAN)).data == DATA
    assert connections == [1]


# Redirects


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_a_redirect_on_the_host_keeps_range_and_token(status: str) -> None:
    heads: list[str] = []
    async with reading(noting(heads, moved("/there?a=%20b", status), ranged())) as reader:
        assert (await reader.read_range("a key", SPAN)).data == DATA
    assert heads[0].startswith("get /a%20key http/1.1")
    assert heads[1].startswith("get /there?a=%20b http/1.1")
    assert all("range: bytes=10-29" in head and "bearer token-of-the-base" in head for head in heads)


async def test_a_token_does_not_come_back() -> None:
    """Once a redirect has led elsewhere, nobody gets the token, the base's own host neither."""
    here: list[str] = []
    there: list[str] = []
    async with reading(noting(here, b"", ranged())) as back:
        async with serving(noting(there, moved(back.url_of("again")))) as elsewhere:
            async with reading(noting(here, moved(elsewhere + "/x"))) as reader:
                back.web.close()
                with pytest.raises(RemoteUnavailable):
                    await reader.read_range("key", SPAN)
    assert "bearer token-of-the-base" in here[0]
    assert not any("authorization" in head for head in [*there, *here[1:]])
    assert len(there) == 1
    assert len(here) == 2


@pytest.mark.parametrize(
    ("before", "at", "is_home"),
    [
        ("https://h/a", "https://h/b", True),
        ("https://h/a", "https://h:443/b", True),
        ("https://h/a", "https://H/b", True),
        ("http://h/a", "https://h/b", True),
        ("https://h/a", "http://h/b", False),
        ("https://h:8000/a", "http://h:8000/b", False),
        ("https://h/a", "https://h:8443/b", False),
        ("https://h/a", "https://other/b", False),
        ("https://h/a", "https://h.other/b", False),
        ("https://h/a", "https://h@other/b", False),
    ],
)
def test_who_may_have_a_token(before: str, at: str, is_home: bool) -> None:
    assert _is_home(_parsed(before), _parsed(at)) is is_home


async def test_a_redirect_out_of_tls_has_no_token(authority: tuple[ssl.SSLContext, Settings]) -> None:
    """From https to http the range is still read, as its hash is checked, but the token stays behind."""
    context, settings = authority
    plain: list[str] = []
    safe: list[str] = []
    async with serving(noting(plain, ranged())) as http_url:
        async with serving(noting(safe, moved(f"{http_url}/plain")), tls=context) as url:
            async with open_reader(Base(url, TOKEN), settings=settings) as reader:
                assert (await reader.read_range("key", SPAN)).data == DATA
    assert "bearer token-of-the-base" in safe[0]
    assert "authorization" not in plain[0]


async def test_redirects_in_a_circle_end() -> None:
    heads: list[str] = []
    async with reading(noting(heads, moved("/round?X-Signature=so-secret"))) as reader:
        with pytest.raises(RemoteError, match="redirects in circles") as caught:
            await reader.read_range("key", SPAN)
    assert len(heads) == REDIRECTS + 1
    assert "so-secret" not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize(
    "to", ["ftp://127.0.0.1/x", "file:///etc/passwd", "http://h:port/", "http://[::1/", "javascript:x"]
)
async def test_a_redirect_to_no_web_address(to: str) -> None:
    async with reading(answering(moved(to))) as reader:
        with pytest.raises(RemoteError, match="to what is no HTTP URL"):
            await reader.read_range("key", SPAN)


async def test_a_redirect_into_nowhere_is_a_base_that_fails() -> None:
    """A host that cannot be reached behind a redirect: named, without the query."""
    async with reading(answering(moved("http://127.0.0.1:1/x?X-Signature=so-secret"))) as reader:
        with pytest.raises(NotSent, match=r"127\.0\.0\.1:1 cannot be reached: Connection refused") as caught:
            await reader.read_range("key", SPAN)
    assert "so-secret" not in str(caught.value)


async def test_a_preflight_follows_nothing() -> None:
    """A browser does not either: the doctor is to see the redirect."""
    heads: list[str] = []
    async with reading(noting(heads, moved("/there"))) as reader:
        assert (await reader.preflight("key", origin="https://app.example")).status == 302
    assert len(heads) == 1
    assert heads[0].startswith("options /key ")
    assert "access-control-request-headers: range" in heads[0]


# TLS and proxies


async def test_a_certificate_that_nobody_trusts(authority: tuple[ssl.SSLContext, Settings]) -> None:
    """It is no passing failure, and the hint names the setting."""
    context, _ = authority
    async with serving(answering(ranged()), tls=context) as url, open_reader(url) as reader:
        with pytest.raises(RemoteError, match=r"certificate is not trusted.*R2D1_CA_BUNDLE") as caught:
            await reader.read_range("key", SPAN)
    assert not caught.value.transient


async def test_a_bundle_that_cannot_be_read_is_said_at_once(authority: tuple[ssl.SSLContext, Settings]) -> None:
    _, settings = authority
    with pytest.raises(ConfigError, match="cannot read the certificates"):
        async with open_reader("https://data.example", settings=replace(settings, ca_bundle="/nowhere.pem")):
            pass


async def test_a_proxy_takes_us_there_and_its_password_is_not_shown(
    authority: tuple[ssl.SSLContext, Settings],
) -> None:
    """An https base is read through the proxy; with a wrong password the error shows neither it nor the right one."""
    context, settings = authority
    async with connect_proxy(user="me", password="pass-of-the-proxy") as proxy:
        async with serving(answering(ranged()), tls=context) as url:
            right = replace(settings, https_proxy=Secret(proxy.url))
            async with open_reader(Base(url, TOKEN), settings=right) as reader:
                assert (await reader.read_range("key", SPAN)).data == DATA
            assert len(proxy.seen) > 0
            assert TOKEN.reveal().encode() not in proxy.seen
            wrong = replace(settings, https_proxy=Secret(proxy.url.replace("pass-of", "wrong-of")))
            async with open_reader(url, settings=wrong) as reader:
                with pytest.raises(NotSent, match="the proxy refused to connect") as caught:
                    await reader.read_range("key", SPAN)
    assert "of-the-proxy" not in f"{caught.value!r} {caught.value}"


@pytest.mark.parametrize("url", ["http://a..b/", "http://.", f"http://{'a' * 70}.example/x"])
def test_a_host_that_is_no_name_is_refused(url):
    """What no name server can be asked for is a bad base, not a base that redirects."""
    with pytest.raises(ConfigError, match="the name of its host is none that can be looked up"):
        Base(url)


async def test_a_key_that_is_no_text():
    """A lone surrogate has no form in a URL."""
    async with open_reader(dead_url()) as reader:
        with pytest.raises(NameRefused, match=r"the key 'a/\\ud800' is no Unicode text"):
            await reader.read_whole("a/\ud800", limit=5)
