"""A build that is killed goes on where it stopped, at any point, and ends with the same bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from r2d1.datasets import BuildOptions, build_mix, verify_shard_set
from tests.datasets.making import GOLDEN, files_of, write_parquet, write_registry

#: Builds a golden mix and kills itself with SIGKILL when it has renamed a number of files into (or below) a folder.
SCRIPT = """
    import os, signal, sys
    from r2d1.datasets import BuildOptions, build_mix

    out, cache, registry, folder, left = *sys.argv[1:5], int(sys.argv[5])

    def count(event, arguments):
        global left
        if event == "os.rename" and str(arguments[1]).startswith(folder):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    options = BuildOptions(unit=4, samples_per_shard=128, workers=1)
    build_mix("golden-a-bytes", out=out, cache=cache, registry=registry, options=options)
"""


def run(out, cache, renames, folder=None):
    """One attempt; returns whether it got to the end."""
    script = textwrap.dedent(SCRIPT)
    command = [sys.executable, "-c", script, out, cache, GOLDEN / "registry.json", folder or out.parent, str(renames)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    code = subprocess.run(command, env=env, check=False).returncode
    assert code in (0, -signal.SIGKILL)
    return code == 0


def inodes(out):
    """What identifies every finished piece of work in a workspace."""
    marks = [path for folder in ("references", "scan", "tokens", "marks") for path in (out / folder).glob("*")]
    return {path.relative_to(out): path.stat().st_ino for path in marks if path.suffix in (".json", ".parquet", ".u16")}


def build(out, cache):
    """The same build in this process, to its end."""
    options = BuildOptions(unit=4, samples_per_shard=128, workers=1)
    build_mix("golden-a-bytes", out=out, cache=cache, registry=GOLDEN / "registry.json", options=options)
    return files_of(out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of the same build, never interrupted."""
    return build(tmp_path_factory.mktemp("whole") / "out", GOLDEN / "cache")


def test_killed_again_and_again(tmp_path, whole):
    """Killed after every few files, a build gets a little further each time, does nothing twice, and ends right."""
    out = tmp_path / "out"
    kept, attempts = {}, 0
    while not run(out, GOLDEN / "cache", 27):
        attempts += 1
        assert not (out / "manifest.json").exists()
        found = inodes(tmp_path / "out.building")
        assert {path: found.get(path) for path in kept} == kept
        assert found.keys() > kept.keys() or out.exists()
        kept = {path: number for path, number in found.items() if path.parts[0] != "marks"}
    assert attempts >= 2
    assert files_of(out) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
def test_killed_while_the_set_moves_into_place(tmp_path, whole, lost):
    """Killed between two moves over an older set, there is no manifest that lies; the next run puts all right.

    That holds even if what had been moved was lost in between.
    """
    out = tmp_path / "out"
    shutil.copytree(GOLDEN / "expected" / "bytes", out)
    assert not run(out, GOLDEN / "cache", 5, folder=f"{out}/")
    assert not (out / "manifest.json").exists()
    assert 0 < len(list((tmp_path / "out.building" / "set").glob("shard-?????.u16"))) < 12
    if lost:
        shutil.rmtree(out)
    assert build(out, GOLDEN / "cache") == whole
    assert verify_shard_set(out).ok


def test_other_inputs_do_not_continue(tmp_path):
    """What was finished with other inputs is of no use: after a change the build starts over."""
    cache, out = tmp_path / "cache", tmp_path / "out"
    shutil.copytree(GOLDEN / "cache", cache)
    assert not run(out, cache, 25)
    assert inodes(tmp_path / "out.building")
    (cache / "tales" / "data" / "2024-a" / "part-000.parquet").unlink()
    assert build(out, cache) == build(tmp_path / "other", cache)


def test_an_error_keeps_what_was_finished(tmp_path):
    """A build that ends with an error goes on when the cause is gone, without reading finished slices again."""
    texts = [f"text number {n}" for n in range(50)]
    write_parquet(tmp_path / "cache" / "prose" / "a.parquet", {"text": texts})
    path = write_registry(tmp_path / "registry.json")

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.stage == "tokenize" and progress.done:
            raise Stop

    def small(on_progress):
        options = BuildOptions(unit=1, workers=1)
        return build_mix(
            "m", out=tmp_path / "out", cache=tmp_path / "cache", registry=path, options=options, on_progress=on_progress
        )

    with pytest.raises(Stop):
        small(stop)
    kept = inodes(tmp_path / "out.building")
    seen = {}
    small(lambda progress: seen.setdefault(progress.stage, inodes(tmp_path / "out.building")))
    assert {path: seen["order"][path] for path in kept} == kept
