"""The R2 store's tests run on both of its data planes."""

from __future__ import annotations

import pytest

from r2d1.setting_rules import TRANSPORTS
from r2d1.settings import Settings

_ON_BOTH = ("test_r2", "test_r2_errors", "test_r2_settings")


class NeverMade:
    """No source is one."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in _ON_BOTH:
        metafunc.parametrize("transport", TRANSPORTS, indirect=True)


@pytest.fixture(autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What settings say that do not say it themselves. With ours, documents in memory travel like files, too."""
    chosen = getattr(request, "param", "wire")
    monkeypatch.setitem(Settings.__init__.__kwdefaults__, "transport", chosen)
    if hasattr(request, "param") and chosen == "wire":
        monkeypatch.setattr("r2d1.objects.r2.BytesSource", NeverMade)
    return str(chosen)
