"""The engines, one set for each test process, and their logs beside a failed test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines import install, relays, servers
from tests.tls import Authority

#: Name of a running engine's server → how long its log was when the test began.
_LOGS: dict[str, tuple[servers.Server, int]] = {}


@pytest.fixture(scope="session")
def logs() -> Path:
    """Where servers write; kept after the session, written anew by the next one."""
    return install.CACHE / "logs" / os.environ.get("PYTEST_XDIST_WORKER", "main")


@pytest.fixture(scope="session")
def cloudflare(logs: Path) -> Iterator[servers.Cloudflare]:
    with servers.cloudflare(logs) as engine:
        yield from _logged(engine)


@pytest.fixture(scope="session")
def seaweedfs(logs: Path) -> Iterator[servers.S3Engine]:
    with servers.seaweedfs(logs) as engine:
        yield from _logged(engine)


@pytest.fixture(scope="session")
def rclone(logs: Path) -> Iterator[servers.S3Engine]:
    with servers.rclone(logs) as engine:
        yield from _logged(engine)


@pytest.fixture(scope="session")
def authority() -> Authority:
    """A private authority, which no machine trusts by itself."""
    return Authority()


@pytest.fixture(scope="session")
def tls(cloudflare: servers.Cloudflare, authority: Authority) -> Iterator[servers.Cloudflare]:
    """Cloudflare's engines as ``https://`` with certificates of that authority."""
    with relays.behind_tls(cloudflare, authority) as engine:
        yield engine


@pytest.fixture
def ca_bundle(authority: Authority, tmp_path: Path) -> str:
    """The authority's certificate in a file."""
    path = tmp_path / "authority.pem"
    path.write_bytes(authority.pem)
    return str(path)


def _logged(engine: servers.S3Engine) -> Iterator[servers.S3Engine]:
    _LOGS[engine.server.name] = (engine.server, 0)
    yield engine
    del _LOGS[engine.server.name]


@pytest.fixture(autouse=True)
def _mark_logs() -> None:
    for name, (server, _) in _LOGS.items():
        _LOGS[name] = (server, server.log.stat().st_size)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows what the servers said meanwhile, and whether one has died."""
    report = yield
    if report.failed and item.path.parent == Path(__file__).parent:
        for name, (server, since) in _LOGS.items():
            state = "it has ended" if server.ended else "it runs"
            report.sections.append((f"{name} ({state}; {server.log})", server.tail(since)))
    return report
