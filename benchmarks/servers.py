"""The servers that everyone is measured against: an S3 server, and TLS in front of it. All on the loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks import tools
from benchmarks.peers import BUCKET, KEY, SECRET, End
from tests.tls import Authority

#: The classes that R2 bills by; what is in neither is free.
CLASS_A = frozenset(
    {
        "PutObject",
        "CreateMultipartUpload",
        "UploadPart",
        "CompleteMultipartUpload",
        "ListObjects",
        "ListParts",
        "ListMultipartUploads",
        "CreateBucket",
    }
)
CLASS_B = frozenset({"GetObject", "HeadObject", "HeadBucket", "GetBucketLocation"})

_HAPROXY = """
global
  maxconn 4000
  nbthread 2
  tune.bufsize 65536
defaults
  mode tcp
  timeout client 120s
  timeout server 120s
  timeout connect 5s
frontend front
  bind 127.0.0.1:{front} ssl crt {pem} alpn http/1.1
  default_backend back
backend back
  server s 127.0.0.1:{back}
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the server counted since it was last told to forget. ``samples``: (ms, bytes up to then, requests then)."""

    operations: dict[str, int]
    bytes: int
    connections: int
    most_at_once: int
    samples: list[tuple[int, int, int]]

    @property
    def requests(self) -> int:
        return sum(self.operations.values())

    @property
    def class_a(self) -> int:
        return sum(count for name, count in self.operations.items() if name in CLASS_A)

    @property
    def class_b(self) -> int:
        return sum(count for name, count in self.operations.items() if name in CLASS_B)


class Server:
    """A running S3 server. ``tls`` is ``None`` where nothing could be put in front of it."""

    name = "JuiceFS's gateway, which counts nothing"

    def __init__(self, port: int, tls: End | None, processes: list[subprocess.Popen[bytes]], log: IO[bytes]) -> None:
        self._port, self._log = port, log
        self.plain, self.tls = End(f"http://127.0.0.1:{port}"), tls
        self._processes = processes

    def cpu_seconds(self) -> float:
        """What the servers have used up to now."""
        ticks = 0
        for each in self._processes:
            fields = Path(f"/proc/{each.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def reset(self) -> None:
        """Forget all objects and figures, if this server can; links are as fast as they can be."""

    def forget_objects(self) -> None:
        """Forget all objects, if this server can, and leave the links as they are."""

    def reset_figures(self) -> None:
        """Count anew, if this server counts."""

    def figures(self) -> Figures | None:
        """What it counted; ``None`` if it does not count."""
        return None

    @contextlib.contextmanager
    def link(self, latency_ms: float, mb_per_s: float) -> Iterator[End]:
        """A plain connection to it with this latency, and this rate each way per connection (0: unlimited)."""
        (port,) = _free_ports(1)
        shaping = [sys.executable, "-m", "benchmarks.shaping", *map(str, (port, self._port, latency_ms, mb_per_s))]
        with _process(shaping, self._log, tools.CHECKOUT) as process:
            _await_port(port, process)
            yield End(f"http://127.0.0.1:{port}")


class S3Bench(Server):
    """Our own: it counts, logs, forgets, and shapes its links itself."""

    name = "s3bench"

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/_bench/{path}", timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def reset(self) -> None:
        self.ask("reset")

    def forget_objects(self) -> None:
        self.ask("forget_objects")

    def reset_figures(self) -> None:
        self.ask("reset_figures")

    def figures(self) -> Figures:
        said = self.ask("figures")
        return Figures(**{**said, "samples": [tuple(each) for each in said["samples"]]})

    @contextlib.contextmanager
    def link(self, latency_ms: float, mb_per_s: float) -> Iterator[End]:
        self.ask(f"shape?latency_ms={latency_ms}&mb_per_s={mb_per_s}")
        try:
            yield self.plain
        finally:
            self.ask("shape?latency_ms=0&mb_per_s=0")


@contextlib.contextmanager
def serving(folder: Path, kind: str = "") -> Iterator[Server]:
    """A server with TLS in front, until the block is left: ``s3bench``, ``juicefs``, or what can be had.

    ``folder`` is for their files. Without haproxy there is no TLS.
    """
    folder.mkdir(parents=True, exist_ok=True)
    program = tools.s3bench() if kind != "juicefs" else None
    if kind == "s3bench" and program is None:
        raise tools.Missing("there is no cargo here to build s3bench with")
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(folder / "servers.log", "ab"))
        (port,) = _free_ports(1)
        if program is not None:
            process = stack.enter_context(_process([str(program), "--port", str(port)], log, folder))
        else:
            process = stack.enter_context(_juicefs(folder, port, log))
        _await_port(port, process)
        tls, proxy = stack.enter_context(_tls(folder, port, log))
        server = S3Bench if program is not None else Server
        yield server(port, tls, [process, *proxy], log)


@contextlib.contextmanager
def _juicefs(folder: Path, port: int, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    juicefs, meta = str(tools.juicefs()), f"sqlite3://{folder}/meta.db"
    env = {**os.environ, "MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "HOME": str(folder)}
    storage = ["--storage", "file", "--bucket", f"{folder}/blocks/", "--trash-days", "0"]
    subprocess.run([juicefs, "format", meta, BUCKET, *storage], env=env, stdout=log, stderr=log, check=True)
    (metrics,) = _free_ports(1)
    flags = ["--keep-etag", "--object-meta", "--no-usage-report", "--no-banner", "--backup-meta", "0"]
    places = ["--cache-dir", f"{folder}/cache", "--cache-size", "0", "--log", f"{folder}/juicefs.log"]
    command = [juicefs, "gateway", meta, f"127.0.0.1:{port}", *flags, *places, "--metrics", f"127.0.0.1:{metrics}"]
    with _process(command, log, folder, env) as process:
        yield process


@contextlib.contextmanager
def _tls(folder: Path, port: int, log: IO[bytes]) -> Iterator[tuple[End | None, list[subprocess.Popen[bytes]]]]:
    try:
        haproxy = tools.haproxy()
    except tools.Missing as missing:
        print(f"no TLS: {missing}", file=sys.stderr)
        yield None, []
        return
    authority = Authority()
    pem, ca = authority.write_server_pem(folder / "server.pem"), folder / "ca.pem"
    ca.write_bytes(authority.pem)
    (front,) = _free_ports(1)
    config = folder / "haproxy.cfg"
    config.write_text(_HAPROXY.format(front=front, back=port, pem=pem), encoding="utf-8")
    with _process([*haproxy, "-q", "-db", "-f", str(config)], log, folder) as process:
        _await_port(front, process)
        yield End(f"https://127.0.0.1:{front}", ca), [process]


@contextlib.contextmanager
def _process(
    command: list[str], log: IO[bytes], folder: Path, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=env)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise tools.Missing(f"{process.args!r} ended with {process.returncode}; see servers.log")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise tools.Missing(f"{process.args!r} does not listen on {port}")
