"""The whole main job on Cloudflare's R2 and D1 together, with a real model, from the three doors."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.engines import journeys
from tests.engines.servers import Cloudflare
from tests.engines.test_catalog_contract import client_of

pytestmark = pytest.mark.engines


@pytest.fixture
def job_id() -> str:
    """A job that no other test has: the engines are shared."""
    return f"run {uuid4().hex[:8]} é"


async def test_by_asyncio(cloudflare: Cloudflare, real_model_dir: Path, tmp_path: Path, job_id: str) -> None:
    """A real model is watched, shipped, committed, pulled and right, and D1 tells of it."""
    outcome = await journeys.by_asyncio(cloudflare.env(), real_model_dir, tmp_path, job_id)
    journeys.check_outcome(outcome)
    await check_row(cloudflare, job_id)


def test_blocking(cloudflare: Cloudflare, real_model_dir: Path, tmp_path: Path, job_id: str) -> None:
    """The same from a plain script."""
    journeys.check_outcome(journeys.blocking(cloudflare.env(), real_model_dir, tmp_path, job_id))


async def test_by_shell(cloudflare: Cloudflare, real_model_dir: Path, tmp_path: Path, job_id: str) -> None:
    """The same with nothing but two commands in child processes."""
    journeys.check_outcome(journeys.by_shell(cloudflare.env(), real_model_dir, tmp_path, job_id))
    await check_row(cloudflare, job_id)
    listed = journeys.r2d1(cloudflare.env(), "ls", f"r2://jobs/{job_id}", "--json")
    assert journeys.NAME in str(listed)


async def check_row(cloudflare: Cloudflare, job_id: str) -> None:
    """The documented query of an orchestrator finds the row, and the row is a copy of the head."""
    client = client_of(cloudflare.d1_base_url)
    try:
        rows = await client.query(
            "SELECT name, epoch, r2_prefix, json_extract(metadata, '$.loss') AS loss, typeof(epoch) AS kind "
            "FROM checkpoints WHERE job_id = ? ORDER BY epoch DESC LIMIT 1;",
            [job_id],
        )
    finally:
        await client.aclose()
    prefix = f"jobs/{job_id}/{journeys.NAME}"
    assert rows == [{"name": journeys.NAME, "epoch": 42, "r2_prefix": prefix, "loss": 0.25, "kind": "integer"}]
