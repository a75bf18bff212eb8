"""``r2d1 demo``: a whole story with a happy end, told in words, that leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from r2d1.cli.demo import demo
from r2d1.demo import network, trainer
from r2d1.demo.story import EPOCHS, KILLED_IN
from tests.cli.shell import answer, finished, last_line, run, started

#: Credentials of which nothing may be used: a call to any of these places would fail.
FOREIGN = {
    "R2D1_R2_ENDPOINT_URL": "http://127.0.0.1:9",
    "R2D1_R2_BUCKET": "production",
    "R2D1_R2_ACCESS_KEY": "a" * 32,
    "R2D1_R2_SECRET_KEY": "b" * 64,
    "R2D1_API_TOKEN": "c" * 40,
    "R2D1_STORE_URL": "file:///nonexistent/place",
}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The directory for temporary files of this test alone."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def examples() -> list[str]:
    """The lines that the help of the demo prints as examples."""
    return [line.strip() for line in (demo.epilog or "").splitlines()]


def test_the_story(temporary, tmp_path):
    """It ends well whatever credentials there are, says what happened with numbers, and leaves nothing behind."""
    assert "r2d1 demo" in examples()
    ended = finished("demo", env=FOREIGN, home=tmp_path)
    assert ended.exit_code == 0, ended.stderr
    text = ended.stdout
    for words in ("killed (exit -9)", f"chk_{KILLED_IN - 1:04d}", "every one verified", "the same in every bit"):
        assert words in text
    assert "the resumed run equals the uninterrupted one" in last_line(ended)
    assert list(temporary.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"tmp"}


def test_what_is_kept_can_be_looked_at(temporary, tmp_path):
    """With ``--keep`` the bucket stays, and the other commands work on it; numbers are in the JSON."""
    assert "r2d1 demo --keep ./demo" in examples()
    ended = finished("demo", "--keep", "./demo", "--json", env=FOREIGN, home=tmp_path)
    said = answer(ended)
    assert (said["is_equal"], said["resumed_from"], said["epochs"]) == (True, KILLED_IN - 1, EPOCHS)
    assert said["loss"] == said["loss_uninterrupted"]
    assert said["shipped"] == EPOCHS
    kinds = {json.loads(line)["event"] for line in ended.stderr.splitlines()}
    assert {"ShipStarted", "Committed", "PullFinished", "Notice"} <= kinds
    env = {"R2D1_STORE_URL": (tmp_path / "demo" / "bucket").as_uri()}
    found = answer(run("ls", "r2://jobs/demo", "--json", env=env))["checkpoints"]
    assert [one["epoch"] for one in found] == list(range(EPOCHS, 0, -1))
    assert not (tmp_path / "demo" / "machine-1" / f"chk_{KILLED_IN:04d}.json").exists()


def test_a_directory_with_something_in_it_is_2(tmp_path):
    """Nothing of anybody's is mixed with the demo's."""
    (tmp_path / "mine").write_text("")
    assert run("demo", "--keep", tmp_path).exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_an_interrupted_demo_leaves_nothing(temporary, tmp_path):
    """Ctrl-C in the middle: 130, no process of it is left, no file either."""
    import signal

    with started("demo", env={}, home=tmp_path) as child:
        child.wait_for("epoch 1:", where="out")
        child.send(signal.SIGINT)
        assert child.end().exit_code == 130
    assert list(temporary.iterdir()) == []
    assert not [line for line in _command_lines() if str(temporary) in line]


def _command_lines() -> list[str]:
    """The command line of every process of this machine (of none where there is no ``/proc``)."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it ended between the listing and this look
            continue
    return lines


@pytest.mark.parametrize("engine", ["python", "numpy"])
def test_a_resumed_network_takes_the_same_steps(engine, tmp_path):
    """Saved, loaded and trained on, it has the very numbers of one that was never interrupted; and it learns."""
    straight, first = network.make(engine), network.make(engine)
    losses = [straight.train(*network.batch(step)) for step in range(60)]
    for step in range(30):
        first.train(*network.batch(step))
    network.save_weights(first, tmp_path)
    network.save_momentum(first, tmp_path)
    resumed = network.load(tmp_path, engine)
    for step in range(30, 60):
        resumed.train(*network.batch(step))
    assert resumed.state() == straight.state()
    assert losses[-1] < losses[0]


def test_the_engines_agree():
    """NumPy or not, it is the same network."""
    plain, arrays = network.make("python"), network.make("numpy")
    arrays.rate = plain.rate
    for step in range(5):
        batch = network.batch(step)
        assert plain.train(*batch) == pytest.approx(arrays.train(*batch))
    assert plain.state()[0] == pytest.approx(arrays.state()[0])


def test_the_trainer_resumes_by_itself(tmp_path, capsys):
    """It goes on from the newest checkpoint that has a sidecar."""
    trainer.main([str(tmp_path), "--epochs", "2", "--engine", "python"])
    trainer.main([str(tmp_path), "--epochs", "3", "--engine", "python"])
    assert [json.loads(line)["epoch"] for line in capsys.readouterr().out.splitlines()] == [1, 2, 3]


def test_it_runs_without_numpy(tmp_path):
    """From a plain install, without NumPy, the trainer is pure Python."""
    program = (
        "import sys\nsys.modules['numpy'] = None\nimport importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'numpy' else find(name, *a)\n"
        "from r2d1.demo.trainer import main\n"
        f"main([{str(tmp_path)!r}, '--epochs', '1'])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(network.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["epoch"] == 1


def test_a_trainer_that_hangs_does_so_without_stdin(tmp_path, monkeypatch):
    """It stays until it is killed, or an orphan, and never goes on with the next epoch."""
    parents = iter([7, 7, 7, 1])
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    with pytest.raises(SystemExit, match="who started it is gone"):
        trainer.main([str(tmp_path), "--engine", "python", "--epochs", "2", "--hang-in", "1"])
    assert next(parents, None) is None
    assert [path.name for path in tmp_path.iterdir()] == ["chk_0001"]
