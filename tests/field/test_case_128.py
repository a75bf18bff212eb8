"""Field case 128: pulled bytes get unpickled. Ours are bytes from one end to the other, whatever they would do."""

from __future__ import annotations

import ast
import json
import pickle
from pathlib import Path

import r2d1
from tests.checkpoints import files_of, write_checkpoint
from tests.children import child_env, run_script

PACKAGE = Path(r2d1.__file__).parent
#: Modules that run what the bytes say. The one place speaks to a child process of its own, never of what came.
DANGEROUS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
ALLOWED = {"datasets/workers.py"}

#: Everything a user does with a checkpoint, in a process that counts each look-up that any unpickling begins with.
STORY = """
import json, sys
found = []
sys.addaudithook(lambda event, args: found.append(event) if event == "pickle.find_class" else None)
from click.testing import CliRunner
from r2d1.cli import cli

up, down = sys.argv[1:]
for command in (
    ["watch", up, "--job-id", "job", "--once"],
    ["ls", "r2://jobs/job"],
    ["verify", "r2://jobs/job/latest", "--deep"],
    ["pull", "r2://jobs/job/latest", "--dest", down],
    ["pull", "r2://jobs/job/latest", "--dest", down],
):
    assert CliRunner().invoke(cli, command, catch_exceptions=False).exit_code == 0, command
print(json.dumps(found))
"""


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return (Path.mkdir, (self.marker,))


def test_a_checkpoint_that_would_act(s3, tmp_path):
    """Shipped, listed, verified and pulled twice: the marker never appears, and the bytes are what they were."""
    marker = tmp_path / "marker"
    bomb = pickle.dumps(Bomb(marker))
    files = {"model.pt": bomb, "optimizer.pkl": bomb, "array.npy": bomb}
    write_checkpoint(tmp_path / "up", "chk_1", 1, files)
    found = json.loads(run_script(STORY, tmp_path / "up", tmp_path / "down", env=child_env(s3.env())))
    assert found == []
    assert not marker.exists()
    assert files_of(tmp_path / "down" / "chk_1") == files
    pickle.loads(bomb)
    assert marker.exists()  # so it was armed


def test_nothing_in_the_package_could():
    """No module imports what unpickles or loads, but the one whose other end is its own child process."""
    guilty = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            is_load = isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "np.load", "numpy.load")
            if is_load or any(name.partition(".")[0] in DANGEROUS for name in names):
                guilty.add(path.relative_to(PACKAGE).as_posix())
    assert guilty == ALLOWED
