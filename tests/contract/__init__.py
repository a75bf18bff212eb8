"""One contract suite a seam, run on every implementation of it."""

import pytest

pytest.register_assert_rewrite("tests.contract.catalog", "tests.contract.objects")
