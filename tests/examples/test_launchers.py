"""The two launchers: pull, watch, a trainer as a child process, flush; again with what the first run left."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from tests.checkpoints import files_of
from tests.cli.shell import Ended, finished, store_env

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB_FILE = EXAMPLES / "bob_job.json"


def trainer(epochs: int) -> list[str]:
    return [sys.executable, "-m", "r2d1.demo.trainer", "checkpoints", "--engine", "python", "--epochs", str(epochs)]


def launch(home: Path, env: dict[str, str], epochs: int) -> Ended:
    """``launcher.py`` on a machine of its own."""
    home.mkdir(exist_ok=True)
    command = [sys.executable, str(EXAMPLES / "launcher.py")]
    return finished("my_run", "checkpoints", "--", *trainer(epochs), env=env, home=home, command=command)


def test_the_launcher_goes_on_where_another_machine_stopped(s3, d1, tmp_path):
    """Two epochs on one machine, the third on another that has nothing but the bucket."""
    env = {**s3.env(), **d1.settings_env()}
    first = launch(tmp_path / "one", env, 2)
    assert (first.exit_code, first.stdout.splitlines()[0]) == (0, "fresh start")
    assert first.stdout.splitlines()[-1] == "shipped chk_0001, chk_0002"
    second = launch(tmp_path / "two", env, 3)
    assert second.exit_code == 0, second.stderr
    assert second.stdout.splitlines()[0] == "resuming from epoch 2"
    assert second.stdout.splitlines()[-1] == "shipped chk_0003"
    one, two = (files_of(tmp_path / home / "checkpoints" / "chk_0002") for home in ("one", "two"))
    assert one == two


def test_the_launcher_passes_the_trainers_code_on(tmp_path):
    """A trainer that fails after a checkpoint: the code is its own, the checkpoint is shipped."""
    program = f"from r2d1.demo.trainer import main; main({trainer(1)[3:]!r}); raise SystemExit(7)"
    command = [sys.executable, str(EXAMPLES / "launcher.py")]
    arguments = ("my_run", "checkpoints", "--", sys.executable, "-c", program)
    ended = finished(*arguments, env=store_env(tmp_path), home=tmp_path, command=command)
    assert (ended.exit_code, ended.stdout.splitlines()[-1]) == (7, "shipped chk_0001")


def bob(home: Path, secrets: dict[str, str], epochs: int, env: dict[str, str] | None = None) -> Ended:
    """``bob.py`` with a job file like the one beside it."""
    home.mkdir(exist_ok=True)
    job = json.loads(JOB_FILE.read_text())
    job |= {"command": trainer(epochs), "secrets": {**job["secrets"], **secrets}}
    (home / "bob_job.json").write_text(json.dumps(job))
    return finished("bob_job.json", env=env or {}, home=home, command=[sys.executable, str(EXAMPLES / "bob.py")])


def test_bob_takes_all_from_the_secrets_block(tmp_path):
    """No settings in the environment; a second machine with the same job file resumes."""
    env = store_env(tmp_path)
    first = bob(tmp_path / "one", env, 2)
    assert first.exit_code == 0, first.stderr
    assert first.stdout.splitlines()[0] == "no checkpoint - fresh start"
    assert first.stdout.splitlines()[-1] == "in the bucket now: chk_0001, chk_0002"
    second = bob(tmp_path / "two", env, 3)
    assert second.stdout.splitlines()[0].startswith("resuming from epoch 2 at ")
    assert second.stdout.splitlines()[-1] == "in the bucket now: chk_0003"


def test_bob_wrote_the_rows(s3, d1, tmp_path):
    """The orchestrator's query, word for word, finds the newest epoch."""
    assert bob(tmp_path, {**s3.env(), **d1.settings_env()}, 2).exit_code == 0
    sql = "SELECT epoch, timestamp FROM checkpoints\nWHERE job_id = ? ORDER BY epoch DESC LIMIT 1;"
    (row,) = d1.sql(sql, ["my_run"])
    assert row["epoch"] == 2


def test_the_job_file_runs_as_it_is(tmp_path):
    """With its empty secrets the settings come from the environment, and its own trainer is run."""
    job = json.loads(JOB_FILE.read_text())
    assert job["command"][0] == "python"
    command = shlex.join([sys.executable, str(EXAMPLES / "bob.py"), str(JOB_FILE)])
    env = store_env(tmp_path)
    script = f'python() {{ "{sys.executable}" "$@"; }}; {command}'
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    (bin_dir / "python").symlink_to(sys.executable)
    with_python = {**env, "PATH": f"{Path(sys.executable).parent}:{bin_dir}:/usr/bin:/bin"}
    ended = finished("-c", script, env=with_python, home=tmp_path, command=["/bin/sh"])
    assert ended.exit_code == 0, ended.stderr
    assert "chk_0010" in ended.stdout.splitlines()[-1]


def test_bob_without_settings_says_what_is_missing(tmp_path):
    """Empty values count as missing; the error names the variables and no trainer is started."""
    ended = bob(tmp_path, {}, 1)
    assert ended.exit_code == 1
    assert "R2D1_R2_BUCKET" in ended.stderr
    assert not (tmp_path / "checkpoints").exists()
