"""Case 85: a proxy and a private authority; both clients go through the one and trust the other, unless told not to."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.engines import journeys, relays
from tests.engines.servers import API_TOKEN, KEY, Cloudflare
from tests.engines.test_main_job import check_row

pytestmark = pytest.mark.engines


async def test_main_job_through_a_proxy(
    cloudflare: Cloudflare,
    tls: Cloudflare,
    ca_bundle: str,
    real_model_dir: Path,
    tmp_path: Path,
) -> None:
    """Everything of the main job, R2 and D1, goes through the proxy, which sees nothing but TLS."""
    job_id = f"proxy-{uuid4().hex[:8]}"
    with relays.proxy(user="courier", password="secret") as proxy:
        env = {**tls.env(), "R2D1_CA_BUNDLE": ca_bundle, "HTTPS_PROXY": proxy.url}
        journeys.check_outcome(await journeys.by_asyncio(env, real_model_dir, tmp_path, job_id))
    await check_row(cloudflare, job_id)
    both = [urlsplit(url).netloc for url in (tls.endpoint, tls.d1_base_url)]
    assert set(proxy.asked) == {f"CONNECT {netloc} HTTP/1.1" for netloc in both}
    assert len(proxy.seen) > 90_000_000
    for text in (KEY.access_key, API_TOKEN, job_id, "Authorization"):
        assert text.encode() not in proxy.seen


@pytest.mark.parametrize(
    ("no_proxy", "through"),
    [("", "both"), ("127.0.0.1", ""), ("example.org,localhost", "both"), ("*", ""), ("{r2}", "d1"), ("{d1}", "r2")],
)
async def test_no_proxy_is_respected(
    tls: Cloudflare,
    ca_bundle: str,
    tmp_path: Path,
    no_proxy: str,
    through: str,
) -> None:
    """``NO_PROXY`` decides for each client: what it names is reached directly, all else through the proxy."""
    hosts = {"r2": urlsplit(tls.endpoint).netloc, "d1": urlsplit(tls.d1_base_url).netloc}
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").write_bytes(b"w" * 100_000)
    with relays.proxy(user="courier", password="secret") as proxy:
        env = {**tls.env(), "R2D1_CA_BUNDLE": ca_bundle, "HTTPS_PROXY": proxy.url, "NO_PROXY": no_proxy.format(**hosts)}
        work = tmp_path / "work"
        work.mkdir()
        journeys.check_outcome(await journeys.by_asyncio(env, model, work, f"no-proxy-{uuid4().hex[:8]}"))
    expected = {name: host for name, host in hosts.items() if through in (name, "both")}
    assert set(proxy.asked) == {f"CONNECT {host} HTTP/1.1" for host in expected.values()}


def test_shell_through_a_proxy(tls: Cloudflare, ca_bundle: str) -> None:
    """The command line does the same from its environment, by the lower-case name as well."""
    with relays.proxy(user="courier", password="secret") as proxy:
        for name in ("HTTPS_PROXY", "https_proxy"):
            before = len(proxy.asked)
            env = {**tls.env(), "R2D1_CA_BUNDLE": ca_bundle, name: proxy.url}
            assert journeys.r2d1(env, "ls", "r2://jobs/nobody", "--json")["status"] == "done"
            assert len(proxy.asked) > before


async def test_refused_by_the_proxy(tls: Cloudflare, ca_bundle: str, tmp_path: Path) -> None:
    """A proxy that refuses is named in the error, and its password is not."""
    with relays.proxy(user="courier", password="right") as proxy:
        wrong = proxy.url.replace("right", "wrong-word")
        env = {**tls.env(), "R2D1_CA_BUNDLE": ca_bundle, "HTTPS_PROXY": wrong}
        done = journeys.failing(env, "pull", "r2://jobs/nobody/latest", "--dest", str(tmp_path))
    assert "proxy" in done.lower()
    assert "wrong-word" not in done
