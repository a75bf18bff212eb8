"""Field case 58: lists and retention pick other projects' rows. A job's name is taken literally, everywhere."""

from __future__ import annotations

import pytest

from tests.checkpoints import files_of, write_checkpoint
from tests.cli.shell import answer, run

#: Prefixes of one another, and what LIKE and GLOB would take for wildcards.
JOBS = ("run1", "run10", "run_1", "run%", "run?", "RUN1", "run1.")
EPOCHS = (1, 2, 3)


@pytest.fixture
def env(s3, d1, tmp_path):
    """Every job has the same names and epochs in one bucket and one database, and bytes of its own."""
    env = {**s3.env(), **d1.settings_env()}
    for number, job in enumerate(JOBS):
        up = tmp_path / f"up-{number}"
        for epoch in EPOCHS:
            write_checkpoint(up, f"chk_{epoch}", epoch, {"a.bin": f"{job} {epoch}".encode()})
        assert run("watch", up, "--job-id", job, "--once", env=env).exit_code == 0
    return env


def bucket_and_rows(s3, d1) -> dict[str, tuple[dict[str, bytes], list[dict[str, object]]]]:
    """By job: every object, and every row."""
    state = {}
    for job in JOBS:
        objects = {key: s3.get(key) for key in s3.keys(f"jobs/{job}/")}
        state[job] = (objects, d1.sql("SELECT * FROM checkpoints WHERE job_id = ? ORDER BY epoch", (job,)))
    return state


def test_no_command_crosses_jobs(s3, d1, env, tmp_path):
    """``ls``, ``status`` and ``pull`` show each job its own; ``rm``, ``gc`` and ``reindex`` change no other one."""
    for number, job in enumerate(JOBS):
        listed = answer(run("ls", f"r2://jobs/{job}", "--json", env=env))["checkpoints"]
        assert [one["epoch"] for one in listed] == [3, 2, 1]
        assert answer(run("status", "--job-id", job, "--json", env=env))["newest"]["r2_prefix"] == f"jobs/{job}/chk_3"
        down = tmp_path / f"down-{number}"
        assert run("pull", f"r2://jobs/{job}/latest", "--dest", down, env=env).exit_code == 0
        assert files_of(down / "chk_3") == {"a.bin": f"{job} 3".encode()}
    for job in ("run_1", "run1", "run%"):
        before = bucket_and_rows(s3, d1)
        assert run("rm", f"r2://jobs/{job}", "--after", "1", env=env).exit_code == 0
        assert run("gc", f"r2://jobs/{job}", "--age-days", "0", "--delete", env=env).exit_code == 0
        assert run("reindex", f"r2://jobs/{job}", env=env).exit_code == 0
        after = bucket_and_rows(s3, d1)
        assert [row["epoch"] for row in after[job][1]] == [1]
        assert {other: after[other] for other in JOBS if other != job} == {
            other: before[other] for other in JOBS if other != job
        }
    assert sorted(answer(run("ls", "--json", env=env))["jobs"]) == sorted(JOBS)
