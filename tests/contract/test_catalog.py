"""The catalogs of the default ring held to their law: the SQLite twin, D1 over a real socket, the model."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from r2d1.catalog import Catalog, D1Catalog, SqliteCatalog
from r2d1.d1 import D1Client
from r2d1.events import Teller
from r2d1.retry import Brake, RetryPolicy
from r2d1.secret import Secret
from r2d1.testing.d1 import D1Double
from r2d1.testing.d1_rules import CallLimit, D1Rules
from r2d1.testing.model_catalog import ModelCatalog
from tests.contract.catalog import CatalogContract, Plant


class TestSqliteCatalog(CatalogContract):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "store?#%20" / ".r2d1" / "catalog.db"

    @pytest.fixture
    async def catalog(self, path: Path) -> AsyncIterator[Catalog]:
        made = SqliteCatalog(path)
        yield made
        await made.aclose()

    @pytest.fixture
    def plant(self, path: Path) -> Plant:
        async def run(sql: str) -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path, isolation_level=None)) as db:
                db.execute(sql)

        return run


class TestD1Catalog(CatalogContract):
    @pytest.fixture
    def double(self) -> Iterator[D1Double]:
        with D1Double(calls=CallLimit(1_000_000)) as double:
            yield double

    @pytest.fixture
    async def catalog(self, double: D1Double) -> AsyncIterator[Catalog]:
        client = D1Client(
            base_url=double.url,
            account_id=double.account_id,
            database_id=double.database_id,
            api_token=Secret(double.api_token),
            policy=RetryPolicy(attempts=1),
            tell=Teller(None),
            brake=Brake(random.Random(1)),
            rate_per_s=10_000.0,
        )
        made = D1Catalog(client)
        yield made
        await made.aclose()

    @pytest.fixture
    def plant(self, double: D1Double) -> Plant:
        async def run(sql: str) -> None:
            double.sql(sql)

        return run


class TestModelCatalog(CatalogContract):
    @pytest.fixture
    def rules(self) -> Iterator[D1Rules]:
        rules = D1Rules()
        yield rules
        rules.close()

    @pytest.fixture
    def catalog(self, rules: D1Rules) -> Catalog:
        return ModelCatalog(rules)

    @pytest.fixture
    def plant(self, rules: D1Rules) -> Plant:
        async def run(sql: str) -> None:
            rules.sql(sql)

        return run
