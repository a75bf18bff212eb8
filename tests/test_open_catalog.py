"""Which catalog the settings open: D1, the file beside an embedded store, or none (R2-only mode)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from r2d1.catalog import DDL, D1Catalog, Row, SqliteCatalog, open_catalog
from r2d1.errors import CatalogError
from r2d1.events import Event, Notice, Teller
from r2d1.retry import RetryPolicy
from r2d1.settings import Settings
from r2d1.testing import d1 as faults
from r2d1.testing.d1 import D1Double
from r2d1.testing.d1_rules import CallLimit
from tests.tls import Authority, connect_proxy

QUICK = RetryPolicy(attempts=3, base_s=0.001, cap_s=0.002)


def row(epoch: int = 1) -> Row:
    return Row("job", f"chk_{epoch}", epoch, 1.0, f"jobs/job/chk_{epoch}")


async def test_d1_by_settings() -> None:
    """With the D1 variables set, rows go to D1 over the wire, and ``where`` names the database only."""
    with D1Double() as double:
        settings = Settings.from_env(environ=double.settings_env())
        catalog = open_catalog(settings, tell=Teller(None), policy=QUICK)
        assert isinstance(catalog, D1Catalog)
        assert catalog.where == f"D1 {double.database_id}"
        await catalog.put([row()])
        await catalog.aclose()
        assert double.sql("SELECT name, epoch, typeof(epoch) AS t FROM checkpoints") == [
            {"name": "chk_1", "epoch": 1, "t": "integer"}
        ]
        assert len(double.requests) == 1


async def test_embedded_store_keeps_its_catalog_beside_it(tmp_path: Path) -> None:
    """With a directory as store the catalog is its file, whatever D1 variables are set."""
    with D1Double() as double:
        environ = double.settings_env() | {"R2D1_STORE_URL": (tmp_path / "store").as_uri()}
        catalog = open_catalog(Settings.from_env(environ=environ), tell=Teller(None), policy=QUICK)
        assert isinstance(catalog, SqliteCatalog)
        await catalog.put([row()])
        assert (tmp_path / "store" / ".r2d1" / "catalog.db").is_file()
        assert list(double.requests) == []


def test_half_of_the_credentials_are_no_catalog() -> None:
    """That is for the settings to tell, whose notice names what is missing."""
    told: list[Event] = []
    settings = Settings.from_env(environ={"R2D1_API_TOKEN": "token-0123456789-abcdef"})
    assert open_catalog(settings, tell=Teller(told.append), policy=QUICK) is None
    assert told == []
    assert "D1 is not used" in settings.notices()[0]


def test_without_credentials_one_notice_says_r2_only() -> None:
    """Without D1 credentials there is no catalog; it is said once."""
    told: list[Event] = []
    tell = Teller(told.append)
    settings = Settings.from_env(environ={})
    assert open_catalog(settings, tell=tell, policy=QUICK) is None
    assert open_catalog(settings, tell=tell, policy=QUICK) is None
    (notice,) = told
    assert isinstance(notice, Notice)
    assert notice.text.startswith("R2-only mode")
    assert "R2D1_D1_DATABASE_ID" in notice.text


async def test_every_write_is_safe_to_repeat() -> None:
    """Case 49: rows put and removed while answers are lost are there once, with the right values."""
    with D1Double(calls=CallLimit(1_000_000)) as double:
        settings = Settings.from_env(environ=double.settings_env())
        catalog = open_catalog(settings, tell=Teller(None), policy=QUICK, rate_per_s=10_000.0)
        assert catalog is not None
        double.script(faults.lost_reply(), faults.refused(500, 7500, "internal error"))
        await catalog.put([row(1), row(2)])
        double.script(faults.lost_reply())
        await catalog.remove("job", ["chk_1"])
        double.script(faults.lost_reply())
        assert await catalog.rows("job") == [row(2)]
        await catalog.aclose()
        assert len(double.requests) == 3 + 2 + 2


async def test_one_call_for_many_rows() -> None:
    """Case 56: a thousand rows are one call, however many statements."""
    with D1Double() as double:
        catalog = open_catalog(Settings.from_env(environ=double.settings_env()), tell=Teller(None), policy=QUICK)
        assert catalog is not None
        await catalog.put([row(n) for n in range(1_000)])
        assert len(await catalog.rows("job")) == 1_000
        await catalog.aclose()
        assert len(double.requests) == 2


async def test_table_without_the_documented_key_is_an_error() -> None:
    """A table of that name made otherwise is not written to, and D1's own words say why."""
    with D1Double() as double:
        double.sql("CREATE TABLE checkpoints (job_id, name, epoch, timestamp, r2_prefix, metadata)")
        catalog = open_catalog(Settings.from_env(environ=double.settings_env()), tell=Teller(None), policy=QUICK)
        assert catalog is not None
        with pytest.raises(CatalogError, match="ON CONFLICT clause does not match"):
            await catalog.put([row()])
        await catalog.aclose()


async def test_private_authority_and_proxy_by_settings(tmp_path: Path) -> None:
    """Case 85: ``R2D1_CA_BUNDLE`` and ``HTTPS_PROXY`` hold for D1."""
    authority = Authority()
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(authority.pem)
    with D1Double(ssl_context=authority.server_context()) as double:
        async with connect_proxy(user="me", password="word") as proxy:
            environ = double.settings_env() | {"R2D1_CA_BUNDLE": str(bundle), "HTTPS_PROXY": proxy.url}
            catalog = open_catalog(Settings.from_env(environ=environ), tell=Teller(None), policy=QUICK)
            assert catalog is not None
            await catalog.put([row()])
            await catalog.aclose()
        assert len(proxy.asked) == 1
        assert double.sql("SELECT count(*) AS n FROM checkpoints") == [{"n": 1}]


def test_table_is_the_published_one() -> None:
    """The statement that makes the table is word for word the published one, comment and all."""
    assert DDL == PUBLISHED


PUBLISHED = """CREATE TABLE IF NOT EXISTS checkpoints (
    job_id    TEXT    NOT NULL,
    name      TEXT    NOT NULL,
    epoch     INTEGER NOT NULL,
    timestamp REAL    NOT NULL,   -- doubles as heartbeat
    r2_prefix TEXT    NOT NULL,
    metadata  TEXT    DEFAULT '{}',
    PRIMARY KEY (job_id, name)
);"""


def test_importing_the_catalog_is_cheap() -> None:
    """httpx is imported by the first call to D1, not before."""
    code = "import sys, r2d1.catalog; sys.exit(any(name in sys.modules for name in ('httpx', 'aiohttp')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
