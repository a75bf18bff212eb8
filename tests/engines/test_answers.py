"""The doubles answer as Cloudflare's engines do, or the difference has a reason; docs/engines.md records all of it."""

from __future__ import annotations

import pytest

from tests.engines import comparing
from tests.engines.servers import Cloudflare, S3Engine

pytestmark = pytest.mark.engines

REWRITE = "`python -m tests.engines.comparing` writes the tables of docs/engines.md anew"


def test_answers_are_recorded(cloudflare: Cloudflare, seaweedfs: S3Engine, rclone: S3Engine) -> None:
    """Each server's answer to each request is the one in the page, and each difference of a double is explained."""
    s3 = comparing.s3_answers([cloudflare, seaweedfs, rclone])
    d1 = comparing.d1_answers(cloudflare)
    found = comparing.differences(s3) | comparing.differences(d1)
    assert found - comparing.EXPLAINED.keys() == set(), "mend the double, or say why it differs"
    assert comparing.EXPLAINED.keys() - found == set(), "these no longer differ: take them out"
    kept = comparing.recorded_in(comparing.PAGE.read_text()).splitlines()
    assert kept == comparing.recorded(s3, d1).splitlines(), REWRITE
