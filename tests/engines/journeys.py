"""The main job, watch → ship → commit → pull → verify, from each of the three doors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2d1 import AsyncCourier, AsyncFetcher, Courier, Fetcher, FetchInfo, Settings, ShipReport
from r2d1.observers import to_log
from tests.checkpoints import files_of, write_sidecar

#: Long enough for a slow machine; a test that waits so long has failed.
PATIENCE_S = 100.0
NAME, EPOCH = "chk_0042", 42
METADATA = {"loss": 0.25, "note": "naïve 🚀"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was shipped and what came back."""

    source: Path
    pulled: Path
    info: Mapping[str, Any]
    again: Mapping[str, Any]


def write_model(model: Path, directory: Path) -> Path:
    """The real model as a trainer leaves it: the folder first, the sidecar last."""
    folder = directory / NAME
    shutil.copytree(model, folder)
    write_sidecar(folder, EPOCH, metadata=METADATA)
    return folder


async def by_asyncio(env: Mapping[str, str], model: Path, work: Path, job_id: str) -> Outcome:
    """Watch an empty directory, write the model into it, flush; pull ``latest`` elsewhere, twice."""
    settings = Settings.from_env(environ=env)
    watched, dest = work / "watched", work / "pulled"
    watched.mkdir()
    async with AsyncCourier(settings, observer=to_log, drain_timeout=PATIENCE_S) as courier:
        await courier.watch(watched, job_id=job_id)
        folder = write_model(model, watched)
        _check_report(await courier.flush(timeout=PATIENCE_S))
    async with AsyncFetcher(settings) as fetcher:
        info = await fetcher.pull(f"r2://jobs/{job_id}/latest", dest=dest)
        again = await fetcher.pull(f"r2://jobs/{job_id}/{NAME}", dest=dest)
    return Outcome(folder, info.local_dir, _fields(info), _fields(again))


def blocking(env: Mapping[str, str], model: Path, work: Path, job_id: str) -> Outcome:
    """The same without ``await``, as a trainer's main thread does it."""
    settings = Settings.from_env(environ=env)
    watched, dest = work / "watched", work / "pulled"
    watched.mkdir()
    with Courier(settings, drain_timeout=PATIENCE_S) as courier:
        courier.watch(watched, job_id=job_id)
        folder = write_model(model, watched)
        _check_report(courier.flush(timeout=PATIENCE_S))
    fetcher = Fetcher(settings)
    info = fetcher.pull(f"r2://jobs/{job_id}/latest", dest=dest)
    again = fetcher.pull(f"r2://jobs/{job_id}/{NAME}", dest=dest)
    return Outcome(folder, info.local_dir, _fields(info), _fields(again))


def by_shell(env: Mapping[str, str], model: Path, work: Path, job_id: str) -> Outcome:
    """``watch --once`` and ``pull`` as processes that know nothing but their environment."""
    watched, dest = work / "watched", work / "pulled"
    watched.mkdir()
    folder = write_model(model, watched)
    r2d1(env, "watch", str(watched), "--job-id", job_id, "--once")
    info = r2d1(env, "pull", f"r2://jobs/{job_id}/latest", "--dest", str(dest), "--json")
    again = r2d1(env, "pull", f"r2://jobs/{job_id}/{NAME}", "--dest", str(dest), "--json")
    return Outcome(folder, Path(info["local_dir"]), info, again)


def r2d1(env: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """Run one command in a child process and return the JSON object it ends with, if it prints one."""
    done = _run(env, arguments)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    if "--json" not in arguments:
        return {}
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def failing(env: Mapping[str, str], *arguments: str) -> str:
    """Run one command that must fail, and return all it said."""
    done = _run(env, arguments)
    assert done.returncode == 1, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def _run(env: Mapping[str, str], arguments: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "r2d1", *arguments],
        env={**_plain_environment(), **env},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def check_outcome(outcome: Outcome) -> None:
    """Every byte came back, verified, and the second pull found all of it there."""
    assert outcome.pulled != outcome.source
    assert files_of(outcome.pulled) == files_of(outcome.source)
    sidecars = [folder.with_name(f"{folder.name}.json").read_bytes() for folder in (outcome.source, outcome.pulled)]
    assert sidecars[0] == sidecars[1]
    told = {name: outcome.info[name] for name in ("found", "name", "epoch", "verified", "cached", "metadata")}
    assert told == {
        "found": True,
        "name": NAME,
        "epoch": EPOCH,
        "verified": True,
        "cached": False,
        "metadata": METADATA,
    }
    assert outcome.again["cached"]
    assert outcome.again["manifest"] == outcome.info["manifest"]


def _check_report(report: ShipReport) -> None:
    assert [(shipped.name, shipped.epoch, shipped.is_new) for shipped in report.shipped] == [(NAME, EPOCH, True)]
    assert report.rows_owed == ()


def _fields(info: FetchInfo) -> dict[str, Any]:
    names = ("found", "name", "epoch", "verified", "cached", "metadata", "manifest")
    return {name: getattr(info, name) for name in names}


def _plain_environment() -> dict[str, str]:
    """What a process needs to start, without any setting of ours or of others."""
    root = str(Path(__file__).parent.parent.parent)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LANG") if name in os.environ}
    return {**kept, "PYTHONPATH": root, "PYTHONWARNINGS": "default"}
