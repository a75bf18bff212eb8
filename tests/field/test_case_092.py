"""Field case 92: the message blames the wrong thing. Ours says operation, key, status, code, request, attempts, a hint."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from r2d1 import AsyncFetcher
from r2d1.errors import RemoteError
from r2d1.testing import Answer, Fault, Rules, S3Double, When
from tests.remote_ends import Hasty, Told, open_fetcher, settings_of
from tests.tls import Authority

HEAD = "jobs/job/.r2d1/heads/chk_1.json"
ANSWERS = {
    (403, "SignatureDoesNotMatch"): ("secret key does not belong to the access key", 1),
    (403, "AccessDenied"): ("Object Read & Write on this bucket", 1),
    (401, "Unauthorized"): ("access key is unknown to this account", 1),
    (404, "NoSuchBucket"): ("check R2D1_R2_BUCKET", 1),
    (501, "NotImplemented"): ("credentials are not the cause", 1),
    (503, "ServiceUnavailable"): ("trouble of its own", 8),
    (507, "InsufficientStorage"): ("make room", 1),
}


async def failure_of(fetcher: AsyncFetcher, dest) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        await fetcher.pull("r2://jobs/job/chk_1", dest)
    return caught.value


@pytest.mark.parametrize(("status", "code"), ANSWERS)
async def test_what_the_store_answers(s3, tmp_path, status, code):
    """Everything an operator needs is in one sentence, and one hint fits the cause."""
    hint, attempts = ANSWERS[status, code]
    s3.faults.add(Fault(When(key=HEAD), Answer(status, code, "said the store"), times=None))
    async with open_fetcher(s3) as fetcher:
        error = await failure_of(fetcher, tmp_path)
    text = str(error)
    assert text.startswith(f"GetObject {HEAD}: {status} {code} - said the store (")
    assert f"request {error.request_id}" in text
    assert error.request_id.endswith("-TST")
    assert hint in text
    assert error.attempts == attempts == len(s3.requests)
    assert ("8 attempts" in text) == (attempts == 8)
    assert text.count("Check ") + text.count(": check ") <= 1


async def test_a_wrong_secret_for_real(s3, tmp_path):
    """A secret key that is not the access key's is what a real signature check says it is."""
    settings = replace(settings_of(s3), secret_key=settings_of(s3).secret_key.__class__("0" * 64))
    async with AsyncFetcher(settings, observer=Told(), rng=Hasty()) as fetcher:
        error = await failure_of(fetcher, tmp_path)
    assert (error.status, error.code, error.attempts) == (403, "SignatureDoesNotMatch", 1)
    assert "0" * 64 not in str(error)


async def test_a_certificate_nobody_vouches_for(tmp_path):
    """A TLS failure is named as that, at once, with the setting that holds a private CA."""
    server = tmp_path / "server.pem"
    server.write_bytes(Authority()._server_pem)
    other = tmp_path / "other.pem"
    other.write_bytes(Authority().pem)
    with S3Double(rules=Rules.lenient(), certfile=server) as s3:
        settings = replace(settings_of(s3), ca_bundle=str(other))
        async with AsyncFetcher(settings, observer=Told(), rng=Hasty()) as fetcher:
            error = await failure_of(fetcher, tmp_path / "down")
    assert "certificate is not trusted" in str(error)
    assert "R2D1_CA_BUNDLE" in str(error)
    assert error.attempts == 1


async def test_a_name_nobody_knows(s3, tmp_path, monkeypatch):
    """A host that cannot be resolved is named, after some attempts, and nothing is said of keys."""

    def unknown(*_args, **_kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    settings = replace(settings_of(s3), endpoint_url="http://bucket.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    async with AsyncFetcher(settings, observer=Told(), rng=Hasty()) as fetcher:
        error = await failure_of(fetcher, tmp_path)
    assert "host name cannot be resolved: bucket.invalid" in str(error)
    assert "8 attempts" in str(error)
    assert "secret" not in str(error)


async def test_a_page_of_something_else(s3, tmp_path):
    """An HTML page in place of an answer does not pass for an absent checkpoint; the endpoint is blamed."""
    page = Answer(404, body=b"<html>no such site</html>", headers={"Content-Type": "text/html"})
    s3.faults.add(Fault(When(key=HEAD), page, times=None))
    async with open_fetcher(s3) as fetcher:
        error = await failure_of(fetcher, tmp_path)
    assert "R2D1_R2_ENDPOINT_URL" in str(error)
