"""Publishing to Cloudflare's R2 engine and reading through its public endpoint: doctor, publish, labels, prefetch."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from r2d1.datasets import build_spec, generate_key, load_key, prefetch, publish_labels, publish_shard_set, sign_spec
from r2d1.doctor import Status, diagnose
from r2d1.settings import Settings
from tests.datasets.published import make_set
from tests.engines.servers import BUCKET, Cloudflare

pytestmark = pytest.mark.engines


@pytest.fixture
def settings(cloudflare: Cloudflare) -> Settings:
    public = cloudflare.endpoint.removesuffix("/s3") + f"/public/{BUCKET}"
    return replace(Settings.from_env(environ=cloudflare.env()), public_base=public)


def test_the_doctor_finds_nothing_wrong(settings: Settings) -> None:
    """Bucket, public ranges, CORS and D1 pass; what the engine lacks is a note."""
    findings = asyncio.run(diagnose(settings, cors_origin="http://localhost:3000"))  # it serves local pages only
    failed = [each.line for each in findings if each.status is Status.FAILED]
    assert failed == []
    assert {"public range", "cors", "d1 write", "If-Match"} <= {each.check for each in findings}


def test_a_set_is_published_and_read_by_anyone(settings: Settings, tmp_path: Path) -> None:
    """Published twice (the second time nothing is sent), then prefetched from the signed spec alone."""
    made = make_set(tmp_path / "set", with_record=True)
    prefix = f"sets/{uuid4().hex}"
    assert publish_shard_set(made.directory, settings, prefix=prefix).sent == 7
    assert publish_shard_set(made.directory, settings, prefix=prefix).sent == 0
    public_key = generate_key(tmp_path / "key.pem")
    spec = sign_spec(build_spec(made.directory), load_key(tmp_path / "key.pem"))
    base = f"{settings.public_base}/{prefix}"
    with prefetch(spec, None, tmp_path / "cache", [base], trusted=[public_key]) as units:
        for unit in units:
            assert units.path(unit).read_bytes() == made.unit(unit)
    assert len(list((tmp_path / "cache").iterdir())) == made.manifest.n_units


def test_labels_in_parts(settings: Settings, tmp_path: Path) -> None:
    """A label in parts keeps its hash as metadata: the second run sends nothing."""
    labels = tmp_path / "labels"
    labels.mkdir()
    (labels / "large.bin").write_bytes(b"label " * 3_000_000)
    prefix = f"labels/{uuid4().hex}"
    first = publish_labels(labels, settings, prefix=prefix, multipart_above=16 << 20)
    assert first.sent == 1
    assert publish_labels(labels, settings, prefix=prefix, multipart_above=16 << 20).sent == 0
