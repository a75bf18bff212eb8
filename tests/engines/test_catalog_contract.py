"""The catalog suite on Cloudflare's own D1 engine, through the D1 client."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest

from r2d1.catalog import Catalog, D1Catalog
from r2d1.d1 import D1Client
from r2d1.events import Teller
from r2d1.retry import Brake, RetryPolicy
from r2d1.secret import Secret
from tests.contract.catalog import CatalogContract, Plant
from tests.engines.servers import ACCOUNT_ID, API_TOKEN, DATABASE_ID, Cloudflare

pytestmark = pytest.mark.engines


class TestCloudflareD1(CatalogContract):
    """The engine that D1 runs on, with nothing lowered."""

    @pytest.fixture
    async def client(self, cloudflare: Cloudflare) -> AsyncIterator[D1Client]:
        client = client_of(cloudflare.d1_base_url)
        await client.query("DROP TABLE IF EXISTS checkpoints")
        yield client
        await client.aclose()

    @pytest.fixture
    def catalog(self, client: D1Client) -> Catalog:
        return D1Catalog(client)

    @pytest.fixture
    async def plant(self, cloudflare: Cloudflare) -> AsyncIterator[Plant]:
        other = client_of(cloudflare.d1_base_url)
        yield other.query
        await other.aclose()


def client_of(base_url: str) -> D1Client:
    """A client that meets every failure at once and is not paced: the engine has no limit of calls."""
    return D1Client(
        base_url=base_url,
        account_id=ACCOUNT_ID,
        database_id=DATABASE_ID,
        api_token=Secret(API_TOKEN),
        policy=RetryPolicy(attempts=1),
        tell=Teller(None),
        brake=Brake(random.Random(1)),
        rate_per_s=10_000.0,
    )
