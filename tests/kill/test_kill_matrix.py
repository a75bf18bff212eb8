"""SIGKILL at every named point and at random requests: the next start ends in the same state, little sent again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from r2d1 import Courier, Settings
from r2d1.catalog import DDL
from r2d1.digest import digest_of
from r2d1.manifest import decode_manifest
from r2d1.sidecar import write_sidecar
from r2d1.testing import D1Double, S3Double
from r2d1.testing.d1 import held, reply_held
from r2d1.testing.faults import Call, Fault, Gate, Hook, When
from r2d1.testing.rules import Rules

CHILD = Path(__file__).with_name("courier_child.py")
PART = 5 * 2**20
IN_FLIGHT = 3  # as in the child
FILES = {"big.bin": 2 * PART + 12345, "small.bin": 20_000, "sub/.empty": 0}
PREFIX = "jobs/job/chk_0001"
HEAD = "jobs/job/.r2d1/heads/chk_0001.json"
RANDOM_KILLS = int(os.environ.get("R2D1_RANDOM_KILLS", "16"))


@dataclass(slots=True)
class Scene:
    """One checkpoint on disk, the doubles, and a courier process that can be killed."""

    root: Path
    s3: S3Double
    d1: D1Double
    child: subprocess.Popen[bytes] | None = None
    killed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, **self.s3.env(), **self.d1.settings_env()}
        command = [sys.executable, str(CHILD), str(self.root / "w")]
        self.child = subprocess.Popen(command, env=env, stderr=subprocess.PIPE)
        return self.child

    def kill(self, _: object = None) -> None:
        assert self.child is not None
        os.kill(self.child.pid, signal.SIGKILL)
        self.killed.set()

    def finish(self) -> None:
        """The next start: a courier that knows nothing but what is on the disk and in the bucket."""
        settings = Settings.from_env(
            environ={**self.s3.env(), **self.d1.settings_env()}, part_size=PART, concurrency=IN_FLIGHT
        )
        with Courier(settings) as courier:
            courier.watch(self.root / "w", job_id="job")
            courier.flush(timeout=60)

    def sent(self) -> int:
        return sum(count.received for count in self.s3.log.counts().values())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    folder = tmp_path / "w" / "chk_0001"
    rng = random.Random(1)
    for path, size in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(rng.randbytes(size))
    write_sidecar(folder, epoch=1, metadata={"loss": 0.5}, timestamp=1.0)
    with S3Double(rules=Rules(write_interval_s=0.0)) as s3, D1Double() as d1:
        d1.sql(DDL)
        yield Scene(tmp_path, s3, d1)


def check_end(scene: Scene) -> None:
    """What must be there in the end, whatever happened before."""
    manifests = [key for key in scene.s3.keys() if key.endswith("/r2d1.manifest.json")]
    assert manifests == [f"{PREFIX}/r2d1.manifest.json"]
    raw = scene.s3.get(manifests[0])
    manifest = decode_manifest(raw, key=manifests[0])
    for entry in manifest.files:
        data = scene.s3.get(f"{PREFIX}/{entry.object_key}")
        assert data == (scene.root / "w" / "chk_0001" / entry.path).read_bytes()
        assert entry.digest == digest_of(data)
    assert {entry.path for entry in manifest.files} == set(FILES)
    (row,) = scene.d1.sql("SELECT epoch, r2_prefix FROM checkpoints")
    assert (row["epoch"], row["r2_prefix"]) == (1, PREFIX)
    assert not scene.s3.model.open_uploads()


def run_killed(scene: Scene, *, again: int = IN_FLIGHT * PART) -> None:
    """Run to the kill, then again to the end, and count what was sent a second time: ``again`` bytes at most."""
    child = scene.start()
    _, errors = child.communicate(timeout=60)
    assert scene.killed.is_set(), f"the courier ended before it could be killed: {errors.decode()}"
    assert child.returncode == -signal.SIGKILL
    scene.s3.faults.clear()
    scene.finish()
    check_end(scene)
    assert scene.sent() <= sum(FILES.values()) + again + 100_000, "more was sent again than was in flight"


POINTS: dict[str, tuple[When, str]] = {
    "after the claim": (When(operation="PutObject", key="*/ships/*"), "after"),
    "before the first PUT": (When(method="PUT", key=f"{PREFIX}/*"), "before"),
    "in mid-part": (When(operation="UploadPart", nth=2), "before"),
    "after the last part": (When(operation="UploadPart", part=3), "after"),
    "before Complete": (When(operation="CompleteMultipartUpload"), "before"),
    "after Complete": (When(operation="CompleteMultipartUpload"), "after"),
    "after the sidecar": (When(operation="PutObject", key=f"{PREFIX}/chk_0001.json"), "after"),
    "after the manifest": (When(operation="PutObject", key="*/r2d1.manifest.json"), "after"),
    "after the hint": (When(operation="PutObject", key="*/latest/*"), "after"),
    "before the head": (When(operation="PutObject", key=HEAD), "before"),
    "after the head": (When(operation="PutObject", key=HEAD), "after"),
}
#: From here on every part is known to have arrived: killed there, none is sent again.
ALL_SENT = list(POINTS).index("before Complete")


def hook(scene: Scene, moment: str) -> Hook:
    return Hook(before=scene.kill) if moment == "before" else Hook(after=scene.kill)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(scene: Scene, point: str) -> None:
    """Killed at this point, the next courier converges and sends at most what was in flight again."""
    when, moment = POINTS[point]
    scene.s3.faults.add(Fault(when, hook(scene, moment)))
    run_killed(scene, again=0 if list(POINTS).index(point) >= ALL_SENT else IN_FLIGHT * PART)


@pytest.mark.parametrize("sends", ["the call is sent", "the call is committed"])
def test_killed_while_d1_is_called(scene: Scene, sends: str) -> None:
    """Killed when D1 was called, before or after it committed, the row is there in the end."""
    gate = Gate()
    scene.d1.script(None, held(gate) if sends == "the call is sent" else reply_held(gate))  # the first call only reads

    def kill_then() -> None:
        gate.arrived.wait_blocking()
        scene.kill()
        gate.release()

    killer = threading.Thread(target=kill_then)
    killer.start()
    run_killed(scene)
    killer.join()


def test_killed_after_the_reply_of_d1(scene: Scene) -> None:
    """Killed after D1's reply, before the journal could say so, the row is simply written again."""

    def row_is_there(call: Call) -> bool:
        return bool(scene.d1.sql("SELECT 1 FROM checkpoints"))

    scene.s3.faults.add(Fault(When(operation="GetObject", key=HEAD, matches=row_is_there), Hook(before=scene.kill)))
    run_killed(scene)


@pytest.mark.parametrize("seed", range(RANDOM_KILLS))
def test_killed_at_a_random_request(scene: Scene, seed: int) -> None:
    """Killed at any request, before or after it is done, the end is the same."""
    rng = random.Random(seed)
    nth = rng.randint(1, 20)
    scene.s3.faults.add(Fault(When(nth=nth), hook(scene, rng.choice(["before", "after"]))))
    run_killed(scene)
