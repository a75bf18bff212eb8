"""Servers of others on free ports of the loopback: started, asked whether they are ready, stopped with all they began."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.engines import install
from tests.engines.signed import Key, ask

BUCKET = "checkpoints"
KEY = Key("0123456789abcdef0123456789abcdef", "fedcba9876543210" * 4)
ACCOUNT_ID = "0123456789abcdef0123456789abcdef"
DATABASE_ID = "11111111-2222-3333-4444-555555555555"
API_TOKEN = "token-of-the-engines-no-secret"

_HERE = Path(__file__).parent
_READY_LIMIT_S = 60.0
_LOG_TAIL = 4_000
#: Each port is given once: a server may listen on one of its own only long after it is ready.
_PORTS = iter(range(10_000 + (os.getpid() * 37) % 10_000, 32_000))


class NotReady(Exception):
    """A server ended or did not answer in time; the text holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs. ``folder`` holds its data and is gone when it stops, ``log`` is kept."""

    name: str
    folder: Path
    log: Path
    supervisor: subprocess.Popen[bytes] = field(repr=False)

    @property
    def ended(self) -> bool:
        return self.supervisor.poll() is not None

    def tail(self, since: int = 0) -> str:
        """The end of what the server wrote after the first ``since`` bytes of its log."""
        return self.log.read_bytes()[since:][-_LOG_TAIL:].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class S3Engine:
    """An S3 server with the bucket ``BUCKET``, open to ``KEY``."""

    server: Server
    endpoint: str

    def env(self) -> dict[str, str]:
        """The variables that point r2d1 at it."""
        return {
            "R2D1_R2_ENDPOINT_URL": self.endpoint,
            "R2D1_R2_BUCKET": BUCKET,
            "R2D1_R2_ACCESS_KEY": KEY.access_key,
            "R2D1_R2_SECRET_KEY": KEY.secret_key,
        }


@dataclass(frozen=True, slots=True)
class Cloudflare(S3Engine):
    """Cloudflare's local R2 and D1; ``d1_base_url`` is the REST API's."""

    d1_base_url: str

    def env(self) -> dict[str, str]:
        return {
            **S3Engine.env(self),
            "R2D1_ACCOUNT_ID": ACCOUNT_ID,
            "R2D1_API_TOKEN": API_TOKEN,
            "R2D1_D1_DATABASE_ID": DATABASE_ID,
            "R2D1_D1_BASE_URL": self.d1_base_url,
        }


@contextmanager
def cloudflare(logs: Path) -> Iterator[Cloudflare]:
    """Miniflare: R2 behind its S3 endpoint and D1 behind the Worker beside this file, in one process."""
    node, modules = install.miniflare()
    (port,) = free_ports(1)
    options = {
        "accessKey": KEY.access_key,
        "secretKey": KEY.secret_key,
        "buckets": [BUCKET],
        "account": ACCOUNT_ID,
        "token": API_TOKEN,
        "databases": {DATABASE_ID: "engines"},
    }
    script = str(_HERE / "miniflare" / "engine.mjs")
    with running(
        "cloudflare", logs, lambda data: [node, script, str(modules), str(port), str(data), json.dumps(options)]
    ) as server:
        engine = Cloudflare(
            server, f"http://127.0.0.1:{port}/cdn-cgi/local/r2/s3", f"http://127.0.0.1:{port}/client/v4"
        )
        wait_until_ready(server, lambda: takes_objects(engine.endpoint))
        yield engine


@contextmanager
def seaweedfs(logs: Path) -> Iterator[S3Engine]:
    """SeaweedFS: master, volume, filer and S3 in one process."""
    weed = install.seaweedfs()
    port, *others = free_ports(9)
    with running("seaweedfs", logs, lambda data: _weed(weed, data, port, others)) as server:
        engine = S3Engine(server, f"http://127.0.0.1:{port}")
        wait_until_ready(server, lambda: has_bucket(engine.endpoint) and takes_objects(engine.endpoint))
        yield engine


def _weed(weed: Path, data: Path, port: int, others: Sequence[int]) -> list[str]:
    identity = {
        "name": "owner",
        "credentials": [{"accessKey": KEY.access_key, "secretKey": KEY.secret_key}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    config = data / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3_grpc, admin = others
    flags = {
        "dir": data,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "webdav": "false",
        "admin.ui": "false",
        "admin.port": admin,
        "admin.port.grpc": admin + 10_000,  # where its workers look for it, whatever is said here
        "master.port": master,
        "master.port.grpc": master_grpc,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 1024,
        "volume.port": volume,
        "volume.port.grpc": volume_grpc,
        "volume.max": 64,
        "filer.port": filer,
        "filer.port.grpc": filer_grpc,
        "filer.localSocket": data / "filer.sock",
        "s3.port": port,
        "s3.port.grpc": s3_grpc,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.localSocket": data / "s3.sock",
        "s3.config": config,
    }
    return [str(weed), "-logtostderr=true", "mini", *(f"-{name}={value}" for name, value in flags.items())]


@contextmanager
def rclone(logs: Path) -> Iterator[S3Engine]:
    """rclone's S3 server over a folder."""
    program = install.rclone()
    (port,) = free_ports(1)
    key = f"{KEY.access_key},{KEY.secret_key}"
    with running(
        "rclone",
        logs,
        lambda data: [str(program), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", key, str(data)],
    ) as server:
        engine = S3Engine(server, f"http://127.0.0.1:{port}")
        wait_until_ready(server, lambda: has_bucket(engine.endpoint) and takes_objects(engine.endpoint))
        yield engine


@contextmanager
def running(name: str, logs: Path, command: Callable[[Path], Sequence[str]]) -> Iterator[Server]:
    """Run what ``command`` gives for a data folder, under the supervisor; at the end nothing of it is left."""
    with ExitStack() as stack:
        # A short path: servers put sockets below it, and a socket's path has at most 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="r2d1-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        log = logs / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as output:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_HERE / "supervise.py"), str(folder), *command(folder)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
                env=_environment(folder),
            )
        server = Server(name, folder, log, supervisor)
        stack.callback(stop, server)
        yield server


def stop(server: Server) -> None:
    """Let the supervisor end the server and everything it started."""
    supervisor = server.supervisor
    assert supervisor.stdin is not None
    supervisor.stdin.close()
    supervisor.wait(timeout=30)


def wait_until_ready(server: Server, probe: Callable[[], bool]) -> None:
    """Ask until the server answers as it should; ``NotReady`` with its log when it ends or takes too long."""
    deadline = time.monotonic() + _READY_LIMIT_S
    last = "no answer"
    while time.monotonic() < deadline:
        if server.ended:
            raise NotReady(f"{server.name} ended at once ({last})\n{server.tail()}")
        try:
            if probe():
                return
            last = "it refuses"
        except OSError as exc:
            last = repr(exc)
        time.sleep(0.02)  # a server tells nobody when it is ready
    raise NotReady(f"{server.name} is not ready after {_READY_LIMIT_S:g} s: {last}\n{server.tail()}")


def has_bucket(endpoint: str) -> bool:
    """Make the bucket; True when it is there."""
    return ask(endpoint, "PUT", f"/{BUCKET}", key=KEY).status in (200, 204, 409)


def takes_objects(endpoint: str) -> bool:
    """Write and delete an object, signed."""
    path = f"/{BUCKET}/ready"
    return ask(endpoint, "PUT", path, key=KEY, body=b"x").status == 200 and (
        ask(endpoint, "DELETE", path, key=KEY).status in (200, 204)
    )


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on, below those that the system gives to outgoing connections."""
    return [next(port for port in _PORTS if _is_free(port)) for _ in range(count)]


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _environment(folder: Path) -> Mapping[str, str]:
    """What a server needs of ours, and nothing that points it at a proxy, a configuration or a cloud."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**kept, "HOME": str(folder), "TMPDIR": str(folder), "RCLONE_CONFIG": os.devnull, "DO_NOT_TRACK": "1"}
