"""The R2 store's tests run on both of its data planes."""

from __future__ import annotations

import pytest

from r2d1.setting_rules import TRANSPORTS
from r2d1.settings import Settings

_ON_BOTH = ("test_r2", "test_r2_errors", "test_r2_settings")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in _ON_BOTH:
        metafunc.fixturenames.append("transport")
        metafunc.parametrize("transport", TRANSPORTS, indirect=True)


@pytest.fixture
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What settings say that do not say it themselves."""
    monkeypatch.setitem(Settings.__init__.__kwdefaults__, "transport", request.param)
    return str(request.param)
