"""What goes wrong with R2, and how it is told: the right class, one hint, and never a secret (cases 92 and 126)."""

from __future__ import annotations

import asyncio
import logging
import socket
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from r2d1.errors import (
    AccessRefused,
    BodyRefused,
    BucketNotFound,
    ConfigError,
    NotSent,
    NotSupported,
    ObjectNotFound,
    PreconditionFailed,
    RangeRefused,
    RemoteError,
    RemoteUnavailable,
    Throttled,
    UploadNotFound,
)
from r2d1.events import Teller
from r2d1.objects import Attributes, ByteRange, BytesSource
from r2d1.objects.r2 import R2Store
from r2d1.objects.r2_refusals import Refusal, error_for, retry_after_of
from r2d1.settings import Secret, Settings
from r2d1.testing import Answer, CutReply, Fault, Rules, S3Double, Swallow, When
from tests.contract.objects import Blocks, Gathered, crc64nvme_of, pattern
from tests.objects.raw_server import answering, http, serving, store_at
from tests.tls import Authority, connect_proxy

# -- refusals ----------------------------------------------------------------------------------------------

REFUSALS = [
    (401, "Unauthorized", AccessRefused, "access key"),
    (403, "SignatureDoesNotMatch", AccessRefused, "secret key"),
    (403, "AccessDenied", AccessRefused, "Object Read & Write"),
    (403, "RequestTimeTooSkewed", AccessRefused, "clock"),
    (403, "ObjectLockedByBucketPolicy", AccessRefused, "bucket lock"),
    (403, "ExpiredRequest", AccessRefused, "clock"),
    (400, "ExpiredToken", AccessRefused, "R2D1_SESSION_TOKEN"),
    (404, "NoSuchBucket", BucketNotFound, "R2D1_R2_BUCKET"),
    (404, "NoSuchKey", ObjectNotFound, ""),
    (404, "NoSuchUpload", UploadNotFound, "7 days"),
    (404, "RouteNotFound", RemoteError, "R2D1_ACCOUNT_ID"),
    (409, "ConditionalRequestConflict", Throttled, ""),
    (411, "MissingContentLength", RemoteError, "Content-Length"),
    (412, "PreconditionFailed", PreconditionFailed, ""),
    (416, "InvalidRange", RangeRefused, "shorter"),
    (429, "TooManyRequests", Throttled, "slows down"),
    (503, "SlowDown", Throttled, ""),
    (500, "InternalError", RemoteUnavailable, "later"),
    (502, "BadGateway", RemoteUnavailable, "later"),
    (503, "ServiceUnavailable", RemoteUnavailable, "later"),
    (504, "GatewayTimeout", RemoteUnavailable, "later"),
    (522, "Unknown", RemoteUnavailable, "later"),
    (501, "NotImplemented", NotSupported, "header"),
    (405, "MethodNotAllowed", NotSupported, "does not implement"),
    (507, "InsufficientStorage", RemoteError, "full"),
    (400, "BadDigest", BodyRefused, "again"),
    (400, "IncompleteBody", BodyRefused, "again"),
    (400, "ClientDisconnect", BodyRefused, "again"),
    (400, "XAmzContentSHA256Mismatch", BodyRefused, "again"),
    (400, "RequestTimeout", BodyRefused, "again"),
    (400, "InvalidPart", RemoteError, "same size"),
    (400, "EntityTooSmall", RemoteError, "5 MiB"),
    (301, "PermanentRedirect", RemoteError, "R2D1_R2_JURISDICTION"),
]


@pytest.fixture
def double() -> Iterator[S3Double]:
    with S3Double(rules=Rules.lenient()) as double:
        yield double


@pytest.mark.parametrize(("status", "code", "kind", "hint"), REFUSALS)
def test_each_refusal_has_its_class_and_hint(status: int, code: str, kind: type[RemoteError], hint: str) -> None:
    """Status and code decide the class; the text names operation, key, status, code, request and one hint."""
    error = error_for("PutObject", "a/key", Refusal(status, code, "said so", {"cf-ray": "8f-FRA"}))
    assert type(error) is kind
    assert hint.lower() in error.hint.lower()
    for part in ("PutObject", "a/key", str(status), code, "said so", "8f-FRA"):
        assert part in str(error)
    assert error.ambiguous == (kind is RemoteUnavailable)


async def test_a_refusal_over_the_wire(double: S3Double) -> None:
    """Everything in the answer arrives in the error: status, code, message, ray, Retry-After."""
    store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(None))
    double.faults.add(Fault(When(), Answer(503, "SlowDown", "too fast", retry_after=7)))
    with pytest.raises(Throttled) as caught:
        await store.put("some key", BytesSource(b"x"))
    await store.aclose()
    error = caught.value
    assert (error.operation, error.subject, error.status, error.code) == ("PutObject", "some key", 503, "SlowDown")
    assert (error.reason, error.retry_after) == ("too fast", 7.0)
    assert error.request_id
    error.attempts = 4
    assert "4 attempts" in str(error)
    assert error.request_id in str(error)


@pytest.mark.parametrize(
    ("rotate", "kind", "hint"),
    [(("unknown", "s"), AccessRefused, "unknown"), ((None, "other"), AccessRefused, "secret key")],
)
async def test_wrong_keys(double: S3Double, rotate: tuple[str | None, str], kind: type[RemoteError], hint: str) -> None:
    """An unknown key id and a wrong secret are told apart, and both name the command that shows them."""
    settings = Settings.from_env(environ=double.env())
    double.rotate(rotate[0] or double.access_key, rotate[1])
    store = R2Store(settings, tell=Teller(None))
    with pytest.raises(kind, match="r2d1 secrets") as caught:
        await store.get("k", limit=1)
    await store.aclose()
    assert hint in caught.value.hint


async def test_a_bucket_that_is_not_there(double: S3Double) -> None:
    """A missing bucket is never taken for an absent object."""
    settings = Settings.from_env(environ=double.env() | {"R2D1_R2_BUCKET": "elsewhere"})
    store = R2Store(settings, tell=Teller(None))
    with pytest.raises(BucketNotFound):
        await store.get("k", limit=1)
    with pytest.raises(BucketNotFound):
        [info async for info in store.list("")]
    await store.aclose()


@pytest.mark.parametrize(
    ("value", "seconds"), [("5", 5.0), ("", None), (None, None), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)]
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    """Seconds and dates are understood, dates of the past are now, nonsense is nothing."""
    assert retry_after_of(value) == seconds


# -- answers that are not S3's -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["404 Not Found", "403 Forbidden", "500 Oops", "400 Bad Request"])
async def test_a_page_instead_of_an_answer(status: str) -> None:
    """HTML is told of as an error of the endpoint; a 404 page never passes for an absent object."""
    page = http(status, b"<html><body>hello</body></html>", Content_Type="text/html")
    async with serving(answering(page)) as url, store_at(url) as store:
        for call in (store.get("k", limit=9), store.put("k", BytesSource(b"x"))):
            with pytest.raises(RemoteError) as caught:
                await call
            assert not isinstance(caught.value, ObjectNotFound)
            assert caught.value.status == int(status[:3])
        with pytest.raises(RemoteError):
            [info async for info in store.list("")]


async def test_a_page_with_a_good_status() -> None:
    """A captive portal's 200 is an error, not an empty listing."""
    page = http("200 OK", b"<html><body>please log in</body></html>", Content_Type="text/html")
    async with serving(answering(page)) as url, store_at(url) as store:
        with pytest.raises(RemoteError):
            [info async for info in store.list("")]
        with pytest.raises(RemoteError):
            await store.create_upload("k")
        with pytest.raises(RemoteError):
            await store.put("k", BytesSource(b"x"))


LISTED = "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k</Key>{}</Contents></ListBucketResult>"
PART = "<ListPartsResult><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber>{}</Part></ListPartsResult>"


async def listed(store: R2Store) -> list[object]:
    return [info async for info in store.list("p/")]


@pytest.mark.parametrize("tag", ["\xe9tag", "\u20ac" * 200, "a\x85b"])
@pytest.mark.parametrize(
    ("ask", "body"),
    [
        (lambda store: store.head("k"), ""),
        (lambda store: store.get("k", limit=10), ""),
        (lambda store: store.get_range("k", ByteRange(0, 1), Gathered()), "x"),
        (lambda store: store.put("k", Blocks(b"x")), ""),
        (lambda store: store.put_part("k", "u-1", 1, Blocks(b"x")), ""),
        (listed, LISTED),
        (lambda store: store.list_parts("k", "u-1"), PART),
    ],
    ids=["head", "get", "get_range", "put", "put_part", "list", "list_parts"],
)
async def test_an_etag_that_cannot_be_repeated(
    ask: Callable[[R2Store], Awaitable[object]], body: str, tag: str
) -> None:
    """No later request could name it, so the answer that brings it is refused, and says who answered."""
    in_body = f"<ETag>{tag}</ETag><Size>1</Size>" if "{}" in body else ""
    headers = {} if in_body else {"ETag": f'"{tag}"'}
    async with (
        serving(answering(http("200 OK", body.format(in_body).encode(), **headers))) as url,
        store_at(url) as store,
    ):
        with pytest.raises(
            RemoteError, match=r"an ETag that is no printable ASCII: '.{1,400}'\. .*no S3 server"
        ) as caught:
            await ask(store)
    assert not caught.value.transient


async def test_something_that_is_no_http() -> None:
    """A server of another kind is named as that."""
    async with serving(answering(b"220 smtp ready\r\n\r\n")) as url, store_at(url) as store:
        with pytest.raises(RemoteUnavailable, match="not HTTP.*R2D1_R2_ENDPOINT_URL"):
            await store.head("k")


# -- no answer ---------------------------------------------------------------------------------------------


async def test_nobody_listens() -> None:
    """A refused connection had no effect, and says which address refused."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    async with store_at(f"http://127.0.0.1:{port}") as store:
        with pytest.raises(NotSent, match=f"127.0.0.1:{port} cannot be reached") as caught:
            await store.put("k", BytesSource(b"x"))
    assert (caught.value.transient, caught.value.ambiguous) == (True, False)


async def test_a_name_that_does_not_resolve() -> None:
    """A host name without an address names the account id as the likely cause."""
    async with store_at("http://no-such-host.invalid") as store:
        with pytest.raises(NotSent, match=r"no-such-host.invalid.*R2D1_ACCOUNT_ID"):
            await store.head("k")


async def test_lost_replies_are_ambiguous(double: S3Double) -> None:
    """When the request was sent and no whole answer came, it may have had its effect."""
    store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(None))
    double.faults.add(Fault(When(), Swallow()), Fault(When(operation="CreateMultipartUpload"), CutReply(after=20)))
    for call in (store.put("k", BytesSource(b"x")), store.create_upload("k")):
        with pytest.raises(RemoteUnavailable) as caught:
            await call
        assert (type(caught.value), caught.value.ambiguous) == (RemoteUnavailable, True)
    await store.aclose()
    assert double.keys() == ["k"]


async def test_silence_is_given_up() -> None:
    """A server that accepts and says nothing is left after the idle time."""

    async def wait(head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with serving(wait) as url, store_at(url, idle_s=0.1) as store:
        with pytest.raises(RemoteUnavailable, match=r"nothing moved for 0\.1 seconds"):
            await store.head("k")


async def test_a_certificate_of_strangers(tmp_path: Path) -> None:
    """An untrusted certificate is not retried, and names the setting that would make it trusted."""
    pem = Authority().write_server_pem(tmp_path / "server.pem")
    with S3Double(certfile=pem) as double:
        env = {name: value for name, value in double.env().items() if name != "R2D1_CA_BUNDLE"}
        store = R2Store(Settings.from_env(environ=env), tell=Teller(None))
        with pytest.raises(NotSent, match=r"not trusted.*R2D1_CA_BUNDLE") as caught:
            await store.put("k", BytesSource(b"x"))
        await store.aclose()
        assert not caught.value.transient
        assert not double.requests


async def test_a_proxy_that_refuses(tmp_path: Path) -> None:
    """A proxy that says 407 is named, with its own hint and without its password."""
    async with connect_proxy(user="u", password="right-password") as proxy:
        settings = Settings(
            endpoint_url="https://127.0.0.1:1",
            bucket="checkpoints",
            access_key="key-id",
            secret_key=Secret("very-secret"),
            https_proxy=Secret(proxy.url.replace("right-password", "wrong-password")),
        )
        store = R2Store(settings, tell=Teller(None))
        with pytest.raises(NotSent, match=r"proxy refused.*HTTPS_PROXY") as caught:
            await store.head("k")
        await store.aclose()
    assert (caught.value.status, caught.value.transient) == (407, False)
    assert "wrong-password" not in everything_about(caught.value)


async def test_a_proxy_that_is_not_there() -> None:
    """A proxy nobody answers for is named, without its password, also in what led to the error."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    settings = Settings(
        endpoint_url="https://127.0.0.1:1",
        bucket="checkpoints",
        access_key="key-id",
        secret_key=Secret("very-secret"),
        https_proxy=Secret(f"http://u:proxy-password@127.0.0.1:{port}"),
    )
    store = R2Store(settings, tell=Teller(None))
    with pytest.raises(NotSent, match=rf"proxy 127.0.0.1:{port} cannot be reached.*HTTPS_PROXY") as caught:
        await store.head("k")
    await store.aclose()
    assert "proxy-password" not in everything_about(caught.value)


async def test_a_bad_bucket_name_is_a_setting(double: S3Double) -> None:
    """What botocore refuses to send is an error of the configuration."""
    settings = Settings.from_env(environ=double.env())
    store = R2Store(settings, tell=Teller(None))
    with pytest.raises(ConfigError):
        await store.head("")
    await store.aclose()


# -- secrets -----------------------------------------------------------------------------------------------


def everything_about(error: BaseException) -> str:
    """All that a log or a crash report would show of an error and of what led to it."""
    shown = ["".join(traceback.format_exception(error))]
    link: BaseException | None = error
    while link is not None:
        shown += [repr(link), str(link), repr(link.args)]
        link = link.__cause__
    return "\n".join(shown)


LOUD = ("", "botocore", "botocore.auth", "botocore.endpoint", "aiobotocore", "aioboto3", "boto3", "aiohttp", "asyncio")


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """DEBUG everywhere, for loggers that have a level of their own too."""
    levels = {name: logging.getLogger(name).level for name in LOUD}
    for name in LOUD:
        logging.getLogger(name).setLevel(logging.DEBUG)
    with caplog.at_level(logging.DEBUG):
        yield caplog
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


async def test_no_secret_is_shown(everything_logged: pytest.LogCaptureFixture) -> None:
    """With DEBUG on and every kind of failure, no log line and no error shows key, secret, token or signature."""
    token = "session-token-that-is-secret"
    data = pattern(300_000)
    echo = (
        b"<Error><Code>SignatureDoesNotMatch</Code><Message>bad Signature=0123abcd for Credential=%b/x</Message>"
        b"<StringToSign>AWS4-HMAC-SHA256</StringToSign><SignatureProvided>0123abcd</SignatureProvided></Error>"
    )
    with S3Double(rules=Rules.lenient(), session_token=token) as double:
        store = R2Store(Settings.from_env(environ=double.env()), tell=Teller(None))
        await store.put("k", Blocks(data), check=crc64nvme_of(data), attributes=Attributes(metadata={"a": "b"}))
        await store.get_range("k", ByteRange(0, 10), Gathered())
        double.faults.add(
            Fault(When(), Answer(403, body=echo % double.access_key.encode())),
            Fault(When(), Answer(403, "InvalidAccessKeyId", f"the key {double.access_key} does not exist")),
            Fault(When(), Answer(500)),
            Fault(When(), Swallow()),
            Fault(When(), CutReply()),
        )
        errors = []
        for _ in range(5):
            with pytest.raises(RemoteError) as caught:
                await store.get("k", limit=1_000_000)
            errors.append(caught.value)
        with double.refusing_connections(), pytest.raises(RemoteError) as caught:
            await store.get("k", limit=1)
        errors.append(caught.value)
        await store.aclose()
        secrets = (double.access_key, double.secret_key, token, "0123abcd", "Authorization", "AWS4-HMAC", "Signature=0")
        shown = everything_logged.text + "".join(everything_about(error) for error in errors) + repr(store)
    assert [secret for secret in secrets if secret in shown] == []
