"""The engines start, stop and are missing in an orderly way: no process outlives its test, no failure is silent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.engines import install, servers
from tests.engines.servers import S3Engine

pytestmark = pytest.mark.engines

_PATIENCE_S = 30.0
_STARTS: dict[str, Callable[[Path], AbstractContextManager[S3Engine]]] = {
    "cloudflare": servers.cloudflare,
    "seaweedfs": servers.seaweedfs,
    "rclone": servers.rclone,
}


@pytest.mark.parametrize("name", _STARTS)
def test_nothing_is_left(name: str, tmp_path: Path) -> None:
    """After a server was stopped its processes are gone, its data too, and its log is kept."""
    with _STARTS[name](tmp_path) as engine:
        server = engine.server
        group = group_of(server.supervisor.pid)
        assert group
    assert server.supervisor.returncode == 0
    assert [pid for pid in group if os.path.exists(f"/proc/{pid}")] == []
    assert not server.folder.exists()
    assert server.log.exists()


@pytest.mark.parametrize("victim", ["tests", "supervisor"])
def test_killed_tests_leave_no_server(tmp_path: Path, victim: str) -> None:
    """When the test process or the supervisor is killed without a chance to clean up, servers end all the same."""
    program = (
        "import sys; from pathlib import Path; from tests.engines import servers\n"
        "with servers.cloudflare(Path(sys.argv[1])) as engine:\n"
        "    print(engine.server.supervisor.pid, flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=install.HERE.parent.parent,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child, ExitStack() as stack:
        supervisor = int(child.stdout.readline())
        group = group_of(supervisor)
        assert len(group) > 1  # node and workerd
        ends = [os.pidfd_open(pid) for pid in group]
        for fd in ends:
            stack.callback(os.close, fd)
        os.kill(child.pid if victim == "tests" else supervisor, signal.SIGKILL)
        for fd in ends:
            assert select.select([fd], [], [], _PATIENCE_S)[0], "a server outlives the tests"
        child.kill()


def test_servers_beside_one_another(cloudflare: S3Engine, tmp_path: Path) -> None:
    """A second set of engines starts on ports of its own, as two test processes on one machine do."""
    with servers.cloudflare(tmp_path) as other:
        assert other.endpoint != cloudflare.endpoint
        assert servers.takes_objects(other.endpoint)
        assert servers.takes_objects(cloudflare.endpoint)


@pytest.mark.parametrize("missing", ["node", "npm"])
def test_missing_program_is_named(missing: str, tmp_path: Path) -> None:
    """Without Node or npm the tests fail with a text that says what is missing and what to do; they are not skipped."""
    for name in {"node", "npm"} - {missing}:
        (tmp_path / name).write_text("#!/bin/sh\necho v99.0.0\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(install.NotInstalled, match=f"`{missing}` is not in PATH.*Node.js"):
        install.miniflare(path=str(tmp_path))


def test_old_node_is_named(tmp_path: Path) -> None:
    """A Node that is too old for the engine is told from none."""
    for name in ("node", "npm"):
        (tmp_path / name).write_text("#!/bin/sh\necho v18.20.0\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(install.NotInstalled, match=r"v18\.20\.0; the engines need Node\.js 20"):
        install.miniflare(path=str(tmp_path))


def test_server_that_ends_shows_its_log(tmp_path: Path) -> None:
    """A server that cannot start is reported at once, with what it wrote."""
    command = ["sh", "-c", "echo the disk is full; exit 3"]
    with servers.running("broken", tmp_path, lambda _: command) as server:
        with pytest.raises(servers.NotReady, match="the disk is full"):
            servers.wait_until_ready(server, lambda: False)
    assert server.supervisor.returncode == 3


def group_of(supervisor: int) -> list[int]:
    """The processes that a supervisor's server consists of."""
    found = [stat_of(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    known = [stat for stat in found if stat is not None]
    leaders = {pid for pid, parent, _ in known if parent == supervisor}
    return [pid for pid, _, group in known if group in leaders]


def stat_of(pid: int) -> tuple[int, int, int] | None:
    """Process, parent and group; None for one that has gone meanwhile."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pid, int(fields[1]), int(fields[2])
