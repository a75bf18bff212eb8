"""The object store suite on servers of others, through the R2 client. What a server lacks is said by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest

from r2d1.events import Teller
from r2d1.objects import ObjectStore
from r2d1.objects.r2 import R2Store
from r2d1.settings import Settings
from tests.contract.objects import ObjectStoreContract
from tests.engines.servers import Cloudflare, S3Engine

pytestmark = pytest.mark.engines


class TestCloudflareR2(ObjectStoreContract):
    """Cloudflare's local R2, reached as workerd answers, with nothing between. Real R2 has what is missing here."""

    # Its source lists these as gaps.
    verifies_crc64nvme = False
    lists_parts = False
    lists_uploads = False
    # Conditional headers of Complete are not passed on to the simulator, which gives parts random ETags.
    conditions_on_complete = False
    has_stable_part_etags = False

    @pytest.fixture
    async def store(self, cloudflare: Cloudflare) -> AsyncIterator[ObjectStore]:
        store = R2Store(settings_of(cloudflare.env()), tell=Teller(None))
        yield store
        await store.aclose()


class TestCloudflareR2ThroughAioboto3(TestCloudflareR2):
    """The same with bodies on aioboto3's connections."""

    takes_rows = False

    @pytest.fixture
    async def store(self, cloudflare: Cloudflare) -> AsyncIterator[ObjectStore]:
        store = R2Store(replace(settings_of(cloudflare.env()), transport="aioboto3"), tell=Teller(None))
        yield store
        await store.aclose()


class TestSeaweedFS(ObjectStoreContract):
    """SeaweedFS: the one of the three that verifies checksums and holds conditions on Complete."""

    # The signature covers the declared hash; the body is not compared with it.
    verifies_sha256 = False
    # A key is a path of its filer: names of at most 255 bytes, folders listed where their name sorts.
    takes_long_segments = False
    lists_in_order = False
    # S3's own rules, not R2's.
    forgets_completed = False
    refuses_uneven_parts = False

    @pytest.fixture
    async def store(self, seaweedfs: S3Engine) -> AsyncIterator[ObjectStore]:
        store = R2Store(settings_of(seaweedfs.env()), tell=Teller(None))
        yield store
        await store.aclose()


class TestRclone(ObjectStoreContract):
    """rclone over a folder, as people serve a disk that they have."""

    # Conditional headers of writes are ignored.
    conditions = False
    conditions_on_complete = False
    if_match_needs_an_object = False
    # Of all checks only Content-MD5 is looked at.
    verifies_crc64nvme = False
    verifies_sha256 = False
    # Parts are streamed to the disk as they come; the object's ETag is then the MD5 of the whole.
    refuses_small_parts = False
    refuses_uneven_parts = False
    takes_parts_again = False
    tells_etag_at_complete = False
    # Keys are paths of a file system.
    takes_object_beside_folder = False
    takes_long_segments = False

    @pytest.fixture
    async def store(self, rclone: S3Engine) -> AsyncIterator[ObjectStore]:
        store = R2Store(settings_of(rclone.env()), tell=Teller(None))
        yield store
        await store.aclose()


def settings_of(env: Mapping[str, str]) -> Settings:
    return Settings.from_env(environ=env)
