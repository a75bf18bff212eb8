"""Field case 46: a crash between upload and commit. Whenever it comes, readers see whole checkpoints and a rerun converges."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from r2d1 import Fetcher, Settings
from r2d1.catalog import DDL
from r2d1.testing import D1Double, Fault, Gate, S3Double, When
from r2d1.testing.d1 import held
from tests.checkpoints import files_of, write_checkpoint
from tests.children import Killer
from tests.cli.shell import answer, run, started

FILES = {f"{name}.bin": os.urandom(20_000) for name in "abcd"}
HEADS = "jobs/job/.r2d1/heads/"
PLAIN = "jobs/job/chk_2"


@dataclass(frozen=True, slots=True)
class Scene:
    """A job with one checkpoint in the bucket and the next one on the disk."""

    root: Path
    s3: S3Double
    d1: D1Double

    @property
    def env(self) -> dict[str, str]:
        return {**self.s3.env(), **self.d1.settings_env()}

    def watch(self) -> dict[str, object]:
        """``r2d1 watch --once`` to its end."""
        result = run("watch", self.root / "w", "--job-id", "job", "--once", "--json", env=self.env)
        assert result.exit_code == 0, result.stderr
        return answer(result)

    def pulled(self, dest: str) -> tuple[int, dict[str, bytes]]:
        """What a reader gets as the latest."""
        with Fetcher(Settings.from_env(environ=self.env)) as fetcher:
            info = fetcher.pull("r2://jobs/job/latest", self.root / dest)
        assert info.verified
        return info.epoch, files_of(info.local_dir)

    def end(self) -> dict[str, object]:
        """All that outlives the couriers: heads, manifests, keys, rows, open uploads."""
        keys = self.s3.keys("jobs/")
        documents = [key for key in keys if key.startswith(HEADS) or key.endswith("/r2d1.manifest.json")]
        return {
            "keys": keys,
            "documents": {key: json.loads(self.s3.get(key)) for key in documents},
            "rows": self.d1.sql("SELECT job_id, name, epoch, timestamp, r2_prefix, metadata FROM checkpoints"),
            "open": self.s3.open_uploads,
        }


def make_scene(root: Path, s3: S3Double, d1: D1Double) -> Scene:
    d1.sql(DDL)
    scene = Scene(root, s3, d1)
    write_checkpoint(root / "w", "chk_1", 1, FILES)
    scene.watch()
    write_checkpoint(root / "w", "chk_2", 2, FILES)
    return scene


@pytest.fixture
def scene(tmp_path, s3, d1) -> Iterator[Scene]:
    yield make_scene(tmp_path, s3, d1)


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory) -> dict[str, object]:
    """The end of a run that nobody killed."""
    with S3Double() as s3, D1Double() as d1:
        scene = make_scene(tmp_path_factory.mktemp("unharmed"), s3, d1)
        scene.watch()
        return scene.end()


def row_is_there(scene: Scene) -> bool:
    return len(scene.d1.sql("SELECT name FROM checkpoints")) == 2


def kill_at(scene: Scene, point: str) -> None:
    """Run the watch as its users do, and kill it at this point."""
    if point == "D1 was called":
        kill_in_d1(scene)
        return
    killer = Killer()
    when = {
        "before the first PUT": When(method="PUT", key=f"{PLAIN}/*"),
        "between the files": When(method="PUT", key=f"{PLAIN}/*", nth=3),
        "after the last PUT": When(method="PUT", key=f"{PLAIN}/r2d1.manifest.json"),
        "after the manifest": When(method="PUT", key="jobs/job/.r2d1/latest/*"),
        "after the head": When(method="HEAD", key="jobs/job/.r2d1/latest/*"),
        "D1 has answered": When(matches=lambda call: row_is_there(scene)),
    }[point]
    scene.s3.faults.add(Fault(when, killer.hook))
    with started("watch", "w", "--job-id", "job", "--once", env=scene.env, home=scene.root) as child:
        killer.victims.append(child.process)
        assert child.end().exit_code == -signal.SIGKILL
    scene.s3.faults.clear()


def kill_in_d1(scene: Scene) -> None:
    gate = Gate()
    scene.d1.script(None, held(gate))  # the first call reads
    with started("watch", "w", "--job-id", "job", "--once", env=scene.env, home=scene.root) as child:
        gate.arrived.wait_blocking()
        child.send(signal.SIGKILL)
        assert child.end().exit_code == -signal.SIGKILL
    gate.release()


#: Where a courier is killed: the epoch that readers see afterwards, and how many files may be sent a second time.
POINTS = {
    "before the first PUT": (1, len(FILES)),  # they all are under way at once
    "between the files": (1, len(FILES)),
    "after the last PUT": (1, 0),
    "after the manifest": (1, 0),
    "after the head": (2, 0),
    "D1 was called": (2, 0),
    "D1 has answered": (2, 0),
}


@pytest.mark.parametrize("point", POINTS)
def test_killed_here(scene, unharmed, point):
    """A reader gets the old or the new checkpoint, whole; the next run ends as if nothing had been, little sent again."""
    epoch, most_again = POINTS[point]
    kill_at(scene, point)
    assert scene.pulled("between") == (epoch, FILES)
    scene.watch()
    assert scene.end() == unharmed
    assert scene.pulled("after") == (2, FILES)
    puts = Counter(r.key for r in scene.s3.requests if r.method == "PUT" and r.key.startswith(f"{PLAIN}/"))
    again = [key for key, count in puts.items() if key.endswith(".bin") and count > 1]
    assert len(again) <= most_again, again
