"""The main job through TLS, with a private authority that both clients are told of by ``R2D1_CA_BUNDLE``."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from r2d1 import AsyncFetcher, Settings
from r2d1.catalog import open_catalog
from r2d1.errors import RemoteError
from r2d1.events import Teller
from r2d1.retry import RetryPolicy
from tests.engines import journeys
from tests.engines.servers import Cloudflare
from tests.engines.test_main_job import check_row

pytestmark = pytest.mark.engines


async def test_main_job_through_tls(
    cloudflare: Cloudflare, tls: Cloudflare, ca_bundle: str, real_model_dir: Path, tmp_path: Path
) -> None:
    """A real model goes there and back through TLS, and the row too; every certificate is verified."""
    job_id = f"tls-{uuid4().hex[:8]}"
    env = {**tls.env(), "R2D1_CA_BUNDLE": ca_bundle}
    journeys.check_outcome(await journeys.by_asyncio(env, real_model_dir, tmp_path, job_id))
    await check_row(cloudflare, job_id)


def test_shell_through_tls(tls: Cloudflare, ca_bundle: str, tmp_path: Path) -> None:
    """The command line takes the authority from its environment, by our variable and by the usual one."""
    for variable in ("R2D1_CA_BUNDLE", "SSL_CERT_FILE"):
        listed = journeys.r2d1({**tls.env(), variable: ca_bundle}, "ls", "r2://jobs/nobody", "--json")
        assert listed["status"] == "done"


async def test_unknown_authority_is_refused(tls: Cloudflare, tmp_path: Path) -> None:
    """Without the bundle neither client talks to the server, and the error names the setting that helps."""
    settings = Settings.from_env(environ=tls.env())
    async with AsyncFetcher(settings) as fetcher:
        with pytest.raises(RemoteError, match="R2D1_CA_BUNDLE") as caught:
            await fetcher.pull("r2://jobs/nobody/latest", dest=tmp_path)
    assert not caught.value.transient
    catalog = open_catalog(settings, tell=Teller(None), policy=RetryPolicy(attempts=1))
    assert catalog is not None
    with pytest.raises(RemoteError, match="R2D1_CA_BUNDLE"):
        await catalog.rows("nobody")
    await catalog.aclose()
