"""The object store suite on every store that needs no server of others: directory, memory, R2 over two doubles."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from r2d1.events import Teller
from r2d1.objects import ObjectStore
from r2d1.objects.local import LocalStore
from r2d1.objects.opening import open_store
from r2d1.objects.r2 import R2Store
from r2d1.retry import RetryPolicy
from r2d1.settings import Secret, Settings
from r2d1.testing import Bucket, MemoryStore, Rules, S3Double
from tests.contract.objects import ObjectStoreContract


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    s3_backends["123456789012"]["aws"].create_bucket("checkpoints", "us-east-1")
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def double() -> Iterator[S3Double]:
    with S3Double(rules=Rules(write_interval_s=0.0)) as double:
        yield double


class TestLocalStore(ObjectStoreContract):
    """A directory: parts of any size, as long as they are equal."""

    part_size = 64 << 10
    refuses_small_parts = False
    takes_rows = False  # nothing is far away

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        store = LocalStore(tmp_path / "bucket")
        yield store
        await store.aclose()


class TestMemoryStore(ObjectStoreContract):
    """The store of the simulation, with R2's rules except for the least size of a part."""

    part_size = 64 << 10
    refuses_small_parts = False

    @pytest.fixture
    async def store(self) -> AsyncIterator[ObjectStore]:
        store = MemoryStore(Bucket(Rules.lenient(), clock=time.time))
        yield store
        await store.aclose()


class TestR2Store(ObjectStoreContract):
    """R2's rules over a real socket, bodies on our own connections."""

    @pytest.fixture
    async def store(self, double: S3Double) -> AsyncIterator[ObjectStore]:
        store = R2Store(settings_for(double), tell=Teller(None))
        yield store
        await store.aclose()


class TestR2StoreThroughAioboto3(ObjectStoreContract):
    """The same with bodies on aioboto3's connections."""

    takes_rows = False

    @pytest.fixture
    async def store(self, double: S3Double) -> AsyncIterator[ObjectStore]:
        store = R2Store(replace(settings_for(double), transport="aioboto3"), tell=Teller(None))
        yield store
        await store.aclose()


class TestResilientStore(TestR2Store):
    """Our own connections through the wrapper that repeats: it changes nothing where nothing fails."""

    @pytest.fixture
    async def store(self, double: S3Double) -> AsyncIterator[ObjectStore]:
        store = open_store(settings_for(double), tell=Teller(None), policy=RetryPolicy(base_s=0.001))
        yield store
        await store.aclose()


class TestR2StoreOnMoto(ObjectStoreContract):
    """A server written by others. It verifies no bodies, joins uneven parts, and is lax about what is gone."""

    verifies_md5 = False
    verifies_crc64nvme = False
    verifies_sha256 = False
    refuses_uneven_parts = False
    forgets_aborted = False
    forgets_completed = False
    if_match_needs_an_object = False
    conditions_are_atomic = False

    @pytest.fixture
    async def store(self, moto: str) -> AsyncIterator[ObjectStore]:
        settings = Settings(
            endpoint_url=moto, bucket="checkpoints", access_key="moto", secret_key=Secret("moto-secret")
        )
        store = R2Store(settings, tell=Teller(None))
        yield store
        await store.aclose()


def settings_for(double: S3Double) -> Settings:
    return Settings.from_env(environ=double.env())
