"""The two launchers: pull, watch, a trainer as a child process, flush; again with what the first run left."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import files_of
from tests.cli.shell import Child, Ended, finished, started, store_env

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


#: A trainer that has written a checkpoint and is in the middle of the next; told to end, it still writes that.
TRAINS_ON = """
import os, signal, time
from r2d1.demo.trainer import main
told = []
signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
signal.alarm(90)  # an orphan of a test that failed does not stay for ever
main(["checkpoints", "--engine", "python", "--epochs", "1"])
print("TRAINER", os.getpid(), flush=True)
while not told: time.sleep(0.05)
main(["checkpoints", "--engine", "python", "--epochs", "2"])
"""
NEVER_ENDS = TRAINS_ON.replace("while not told:", "while True:")

#: Starts a launcher of the examples with other patience: ``python -c THIS <its name> <TRAINER_S> <FLUSH_S> <arguments>``.
HASTY = f"""
import asyncio, json, sys
sys.path.insert(0, {str(EXAMPLES)!r})
name, trainer_s, flush_s, command = sys.argv[1:5]
if name == "bob":
    import bob as module
    json.dump({{"job_id": "my_run", "checkpoint_dir": "checkpoints", "secrets": {{}},
               "command": [sys.executable, "-c", command]}}, open("job.json", "w"))
    start = lambda: module.main("job.json")
else:
    import launcher as module
    start = lambda: asyncio.run(module.main("my_run", "checkpoints", [sys.executable, "-c", command]))
module.TRAINER_S, module.FLUSH_S, module.DRAIN_S = float(trainer_s), float(flush_s), 0.2
sys.exit(start())
"""


@contextmanager
def stopped_in_training(
    name: str,
    env: dict[str, str],
    home: Path,
    *,
    program: str = TRAINS_ON,
    trainer_s: float = 60,
    flush_s: float = 60,
    gate: Gate | None = None,
) -> Iterator[Child]:
    """A launcher that got SIGTERM while its trainer was training; in the end the trainer must be gone.

    With a gate, the first checkpoint had come that far.
    """
    arguments = (name, trainer_s, flush_s, program)
    with started(*arguments, env=env, home=home, command=[sys.executable, "-c", HASTY]) as child:
        child.wait_for("TRAINER", where="out")
        if gate is not None:
            gate.arrived.wait_blocking()
        child.send(signal.SIGTERM)
        yield child
        (pid,) = [int(line.split()[1]) for line in child.out.splitlines() if line.startswith("TRAINER")]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


LAUNCHERS = ("launcher", "bob")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_machine_that_is_taken_away(name, tmp_path):
    """SIGTERM is passed on to the trainer; what it wrote before it ended is shipped, and the code is the trainer's."""
    with stopped_in_training(name, store_env(tmp_path), tmp_path) as child:
        ended = child.end()
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].endswith("chk_0001, chk_0002")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_trainer_that_does_not_end_is_killed(name, tmp_path):
    """It has its time; what it had written by then is shipped all the same."""
    with stopped_in_training(name, store_env(tmp_path), tmp_path, program=NEVER_ENDS, trainer_s=0.2) as child:
        ended = child.end()
    assert (ended.exit_code, ended.stdout.splitlines()[-1].endswith(" chk_0001")) == (128 + 9, True), ended.stderr


@pytest.fixture
def gate(s3):
    """Where the bucket keeps the weights of every checkpoint waiting; it opens in the end."""
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject", key="*/model.json"), Hold(gate), times=None))
    yield gate
    gate.release()


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_flush_of_a_machine_that_is_taken_away_is_bounded(name, s3, gate, tmp_path):
    """What does not go out in time is named, with what it was doing; no orphan stays."""
    with stopped_in_training(name, s3.env(), tmp_path, flush_s=0.2, gate=gate) as child:
        ended = child.end()
    assert ended.exit_code == 1
    assert "FlushTimeout: not finished after 0.2 s" in ended.stderr
    assert "my_run/chk_0001 unfinished: still shipping" in ended.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_second_signal_stops_a_launcher_at_once(name, number, code, s3, gate, tmp_path):
    """It does not wait for the flush, says so in one line, and nothing of it is in the bucket for readers."""
    with stopped_in_training(name, s3.env(), tmp_path, flush_s=3600, gate=gate) as child:
        child.wait_for('"epoch": 2', where="out")
        child.send(number)
        ended = child.end()
    assert ended.exit_code == code
    assert "stopped at once; the next start goes on with what is left" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert s3.keys("jobs/my_run/.r2d1/heads/") == []


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
    (row,) = d1.sql(sql, ["bobs_run"])
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
