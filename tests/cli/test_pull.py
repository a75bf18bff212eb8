"""``r2d1 pull``: what it prints, and the codes it ends with."""

from __future__ import annotations

import signal

import pytest

from r2d1.testing import Fault, Gate, Hold, When
from tests.checkpoints import files_of, random_files, write_checkpoint
from tests.cli.shell import answer, last_line, run, started, store_env

FILES = {"checkpoint.pt": b"weights", "sub/config.json": b"{}"}


@pytest.fixture
def env(tmp_path):
    """A bucket with one checkpoint of the job ``my_run``."""
    env = store_env(tmp_path)
    folder = write_checkpoint(tmp_path / "made", "chk_0042", 42, FILES)
    assert run("ship", folder, "--job-id", "my_run", env=env).exit_code == 0
    return env


def test_the_folder_is_printed(env, tmp_path):
    """Stdout is the folder's path and nothing else; the last line of stderr says done."""
    dest = tmp_path / "pulled"
    result = run("pull", "r2://jobs/my_run/latest", "--dest", dest, env=env)
    assert result.exit_code == 0
    assert result.stdout == f"{dest / 'chk_0042'}\n"
    assert last_line(result) == f"r2d1 pull: done: chk_0042, epoch 42, is in {dest / 'chk_0042'} (verified)"
    assert files_of(dest / "chk_0042") == FILES


def test_json_tells_what_was_found(env, tmp_path):
    """The object names checkpoint, folder, manifest and metadata."""
    dest = tmp_path / "pulled"
    said = answer(run("pull", "r2://jobs/my_run/chk_0042", "--dest", dest, "--json", env=env))
    assert (said["found"], said["name"], said["epoch"], said["verified"]) == (True, "chk_0042", 42, True)
    assert said["local_dir"] == str(dest / "chk_0042")
    assert str(said["manifest"]).startswith("blake3:")
    assert said["metadata"] == {"loss": 0.5}


def test_a_second_pull_finds_it_and_force_fetches_anew(env, tmp_path):
    """``cached`` tells the one from the other."""
    pull = ("pull", "r2://jobs/my_run/latest", "--dest", tmp_path / "pulled", "--json")
    cached = [answer(run(*pull, *more, env=env))["cached"] for more in ([], [], ["--force"])]
    assert cached == [False, True, False]


@pytest.mark.parametrize("uri", ["r2://jobs/other/latest", "r2://jobs/my_run/chk_0043", "r2://datasets/none"])
def test_nothing_there_is_3(uri, env, tmp_path):
    """Nothing found ends with 3 and says how to allow it; allowed, it ends with 0. The destination exists."""
    dest = tmp_path / "pulled"
    result = run("pull", uri, "--dest", dest, env=env)
    assert (result.exit_code, result.stdout) == (3, "")
    assert last_line(result) == (
        f"r2d1 pull: failed: nothing is there: {uri}. For a first run, --allow-missing makes this exit 0"
    )
    assert dest.is_dir()
    assert answer(run("pull", uri, "--dest", dest, "--json", env=env))["found"] is False
    assert run("pull", uri, "--dest", dest, "--allow-missing", env=env).exit_code == 0


@pytest.mark.parametrize("uri", ["s3://jobs/x/latest", "jobs/x/latest", "r2://jobs/../x/latest", "r2://"])
def test_what_is_no_uri_is_2(uri, env, tmp_path):
    """A wrong URI ends with 2."""
    assert run("pull", uri, "--dest", tmp_path / "pulled", env=env).exit_code == 2


def test_a_file_for_a_destination_is_2(env, tmp_path):
    """``--dest`` names a directory."""
    (tmp_path / "file").write_text("")
    assert run("pull", "r2://jobs/my_run/latest", "--dest", tmp_path / "file", env=env).exit_code == 2


def newer_here(directory):
    """What an earlier run left on this disk: a whole checkpoint that was never shipped, and one in part."""
    write_checkpoint(directory, "chk_0050", 50, FILES)
    write_checkpoint(directory, "chk_0041", 41, FILES)
    write_checkpoint(directory, "chk_0060", 60, FILES, files=["missing.bin"])


def test_a_newer_checkpoint_that_was_never_shipped_is_told(env, tmp_path):
    """``latest`` is what the bucket has; that this disk has a newer one is a warning, until it is shipped."""
    dest = tmp_path / "pulled"
    newer_here(dest)
    pull = ("pull", "r2://jobs/my_run/latest", "--dest", dest)
    result = run(*pull, env=env)
    assert result.exit_code == 0
    (line,) = [line for line in result.stderr.splitlines() if "warning" in line]
    assert "of job 'my_run', and not shipped to it from here: chk_0050 (epoch 50). " in line
    assert f"`r2d1 watch {dest} --job-id my_run --once`" in line
    assert run("ship", dest / "chk_0050", "--job-id", "my_run", env=env).exit_code == 0
    assert "warning" not in run(*pull, env=env).stderr


def test_a_fresh_start_beside_what_was_never_shipped(env, tmp_path):
    """Nothing in the bucket, something on the disk: that is told before the run begins anew."""
    newer_here(tmp_path / "pulled")
    result = run("pull", "r2://jobs/other/latest", "--dest", tmp_path / "pulled", "--allow-missing", env=env)
    assert result.exit_code == 0
    assert "not shipped to it from here: chk_0050 (epoch 50), chk_0041 (epoch 41). " in result.stderr


def test_a_checkpoint_that_was_deleted_is_no_fresh_start(env, tmp_path):
    """It is 3 as all that is not there, and what is there instead is said."""
    other = write_checkpoint(tmp_path / "other", "chk_0041", 41, FILES)
    assert run("ship", other, "--job-id", "my_run", env=env).exit_code == 0
    uri = "r2://jobs/my_run/chk_0042"
    assert run("rm", uri, env=env).exit_code == 0
    pull = ("pull", uri, "--dest", tmp_path / "pulled")
    result = run(*pull, env=env)
    assert result.exit_code == 3
    assert last_line(result) == (
        f"r2d1 pull: failed: nothing is there: {uri}: it was deleted; newest now is chk_0041 (epoch 41). "
        "`r2d1 ls` lists what is there"
    )
    missing = run(*pull, "--allow-missing", env=env)
    assert (missing.exit_code, "fresh start" in missing.stderr) == (0, False)
    assert answer(run(*pull, "--json", env=env))["why"].startswith("it was deleted; newest now is chk_0041")
    verified = run("verify", uri, "--json", env=env)
    assert answer(verified) | {"exit_code": 3, "found": False} == answer(verified)
    assert last_line(run("verify", uri, env=env)) == last_line(result).replace("r2d1 pull", "r2d1 verify")
    assert run("rm", "r2://jobs/my_run/chk_0041", env=env).exit_code == 0
    assert "it was deleted; the job has no other checkpoint" in last_line(run(*pull, env=env))


def test_the_key_of_one_object_is_no_prefix(env, tmp_path):
    """It is told from a fresh start, and what to pull in its place is named."""
    uri = "r2://jobs/my_run/chk_0042/checkpoint.pt"
    result = run("pull", uri, "--dest", tmp_path / "pulled", "--allow-missing", env=env)
    assert result.exit_code == 2
    assert f"'{uri}' is one object, not a prefix" in last_line(result)
    assert "'r2://jobs/my_run/chk_0042'" in last_line(result)


def test_a_prefix_is_not_said_to_be_verified(env, tmp_path):
    """It has no digests, and neither the help nor the last line claims so."""
    result = run("pull", "r2://jobs/my_run/chk_0042/sub", "--dest", tmp_path / "pulled", env=env)
    assert last_line(result).endswith("(not verified: it has no manifest)")
    assert "no digests to verify against" in " ".join(run("pull", "--help").stdout.split())


def test_quiet_tells_nothing_but_the_result(env, tmp_path):
    """With ``--quiet`` a good pull leaves stderr empty."""
    result = run("pull", "r2://jobs/my_run/latest", "--dest", tmp_path / "pulled", "--quiet", env=env)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.endswith("chk_0042\n")


def test_a_failure_never_looks_like_a_fresh_start(tmp_path):
    """A store that cannot be reached is 1, not 3, ``--allow-missing`` or not."""
    env = {"R2D1_STORE_URL": (tmp_path / "no" / "such" / "place").as_uri()}
    result = run("pull", "r2://jobs/my_run/latest", "--dest", tmp_path / "pulled", "--allow-missing", env=env)
    assert result.exit_code == 1


@pytest.mark.parametrize("is_s3", [True, False], ids=["s3", "directory"])
def test_damage_is_told_once_with_what_mends_it(is_s3, s3, tmp_path):
    """Shipping it again would send nothing, as the bucket has it: it is to be removed first."""
    env = s3.env() if is_s3 else store_env(tmp_path)
    folder = write_checkpoint(tmp_path / "made", "chk_0042", 42, {"a.bin": bytes(40_000)})
    assert run("ship", folder, "--job-id", "my_run", env=env).exit_code == 0
    key = "jobs/my_run/chk_0042/a.bin"
    s3.put(key, b"x" * 40_000) if is_s3 else (tmp_path / "bucket" / key).write_bytes(b"x" * 40_000)
    result = run("pull", "r2://jobs/my_run/latest", "--dest", tmp_path / "pulled", env=env)
    assert result.exit_code == 1
    assert last_line(result).endswith(". `r2d1 rm` it and ship it again, or pull another one by name")
    assert result.stderr.count("pull another one by name") == 1
    assert result.stderr.count("pulling chk_0042") == 1
    assert run("rm", "r2://jobs/my_run/chk_0042", env=env).exit_code == 0
    assert run("ship", folder, "--job-id", "my_run", env=env).exit_code == 0
    assert run("pull", "r2://jobs/my_run/latest", "--dest", tmp_path / "pulled", env=env).exit_code == 0


def test_a_first_ship_under_way_is_no_bare_nothing(s3, tmp_path):
    """While the first checkpoint of a job is on its way, ``latest`` and ``verify`` say so; it still is exit 3."""
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject", key="*/c.bin"), Hold(gate)))
    folder = write_checkpoint(tmp_path / "other", "chk_5", 5, random_files(c=10))
    pull = ("pull", "r2://jobs/new/latest", "--dest", tmp_path / "pulled")
    with started("ship", folder, "--job-id", "new", env=s3.env(), home=tmp_path) as child:
        gate.arrived.wait_blocking()
        result = run(*pull, env=s3.env())
        verified = run("verify", "r2://jobs/new/latest", env=s3.env())
        child.send(signal.SIGINT)
        child.end()
    gate.release()
    assert (result.exit_code, verified.exit_code) == (3, 3)
    for ended in (result, verified):
        assert "nothing is there: r2://jobs/new/latest: being shipped and not committed yet: chk_5" in last_line(ended)
