"""``r2d1 ls`` and ``r2d1 status``: the bucket, the catalog and the journal as they are."""

from __future__ import annotations

import json
import signal
import time

import pytest

from r2d1.testing import Answer, Fault, Gate, Hold, When
from r2d1.testing.d1 import refused
from tests.checkpoints import random_files, write_checkpoint
from tests.cli.shell import answer, last_line, run, started, store_env

JOB = "r2://jobs/job"


@pytest.fixture
def env(s3, d1, tmp_path):
    """A bucket and a database with two checkpoints of one job."""
    env = {**s3.env(), **d1.settings_env()}
    for epoch in (1, 2):
        now = time.time() - 600
        write_checkpoint(tmp_path / "w", f"chk_{epoch}", epoch, {"a.bin": b"x" * 1500, "b.bin": b""}, timestamp=now)
    assert run("watch", tmp_path / "w", "--job-id", "job", "--once", env=env).exit_code == 0
    return env


def plant_legacy(s3, name: str, epoch: int) -> None:
    """What r2d1 0.2 left: the files, and the sidecar last."""
    base = f"jobs/job/checkpoints/{name}"
    s3.put(f"{base}/w.pt", b"weights")
    s3.put(f"{base}/{name}.json", json.dumps({"name": name, "epoch": epoch, "files": ["w.pt"]}).encode())


def test_jobs(env):
    """Without a URI the ids of the jobs, one a line."""
    assert run("ls", env=env).stdout == "job\n"
    assert answer(run("ls", "--json", env=env))["jobs"] == ["job"]


def test_checkpoints_newest_first(env):
    """Name, epoch, age, size and state in columns."""
    lines = run("ls", JOB, env=env).stdout.splitlines()
    assert lines[0].split() == ["name", "epoch", "age", "size", "state"]
    assert [line.split() for line in lines[1:]] == [
        ["chk_2", "2", "10", "min", "1.5", "KiB", "committed"],
        ["chk_1", "1", "10", "min", "1.5", "KiB", "committed"],
    ]


def test_json_has_bytes_and_seconds(env):
    """Machines get numbers."""
    newest, _ = answer(run("ls", JOB, "--json", env=env))["checkpoints"]
    assert (newest["name"], newest["epoch"], newest["total_bytes"], newest["files"]) == ("chk_2", 2, 1500, 2)
    assert newest["prefix"] == "jobs/job/chk_2"
    assert 590 < newest["age_s"] < 700


def test_one_checkpoint(env):
    """A URI of one shows that one."""
    assert [line.split()[0] for line in run("ls", f"{JOB}/chk_1", env=env).stdout.splitlines()] == ["name", "chk_1"]


def test_nothing_is_done(env):
    """A job or name without checkpoints lists nothing and ends with 0."""
    for uri in ("r2://jobs/other", f"{JOB}/chk_9"):
        result = run("ls", uri, env=env)
        assert (result.exit_code, result.stdout) == (0, "")
        assert last_line(result) == "r2d1 ls: done: 0 checkpoints"


@pytest.mark.parametrize("uri", ["r2://datasets/mnist", "r2://jobs", "jobs/job", f"{JOB}/../x", f"{JOB}/latest"])
def test_other_uris_are_2(uri, env):
    """Only jobs and their checkpoints can be listed."""
    assert run("ls", uri, env=env).exit_code == 2


def test_the_old_line_is_included_and_marked(env, s3):
    """A whole checkpoint of 0.2 is listed among ours by epoch, one in part says what it lacks."""
    plant_legacy(s3, "chk_3", 3)
    plant_legacy(s3, "chk_4", 4)
    s3.delete("jobs/job/checkpoints/chk_4/w.pt")
    found = answer(run("ls", JOB, "--json", env=env))["checkpoints"]
    assert [(one["name"], one["state"]) for one in found] == [
        ("chk_3", "legacy 0.2"),
        ("chk_2", "committed"),
        ("chk_1", "committed"),
        ("chk_4", "legacy 0.2, incomplete"),
    ]
    assert found[0]["total_bytes"] == len(b"weights")
    assert "'w.pt', which its sidecar lists, is not there" in found[3]["note"]


def test_a_deleted_checkpoint_is_not_listed(env, s3):
    """A head that says ``deleted`` stands for nothing."""
    key = "jobs/job/.r2d1/heads/chk_2.json"
    s3.put(key, json.dumps({**json.loads(s3.get(key)), "deleted": True}).encode())
    assert [one["name"] for one in answer(run("ls", JOB, "--json", env=env))["checkpoints"]] == ["chk_1"]


def test_a_ship_under_way_is_shown(env, s3, tmp_path):
    """A name with a ship record and no head is being shipped."""
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject", key="*/c.bin"), Hold(gate)))
    folder = write_checkpoint(tmp_path / "other", "chk_5", 5, random_files(c=10))
    with started("ship", folder, "--job-id", "job", env=env, home=tmp_path) as child:
        gate.arrived.wait_blocking()
        found = answer(run("ls", JOB, "--json", env=env))["checkpoints"]
        said = answer(run("status", "--job-id", "job", tmp_path / "other", "--json", env=env))
        child.send(signal.SIGINT)
        child.end()
    gate.release()
    assert [(one["name"], one["state"]) for one in found][-1] == ("chk_5", "being shipped")
    assert said["journal"]["ships_under_way"] == ["chk_5"]


@pytest.mark.parametrize(
    ("key", "data", "state"),
    [
        ("jobs/job/chk_1/r2d1.manifest.json", None, "damaged"),
        ("jobs/job/.r2d1/heads/chk_1.json", b'{"version": 99}', "unreadable"),
        ("jobs/job/.r2d1/heads/chk_1.json", b"no json", "unreadable"),
    ],
)
def test_what_is_broken_is_1_and_hides_nothing(key, data, state, env, s3):
    """The broken one is listed with what is wrong with it, the others as they are."""
    s3.delete(key) if data is None else s3.put(key, data)
    result = run("ls", JOB, "--json", env=env)
    assert {one["name"]: one["state"] for one in answer(result)["checkpoints"]} == {
        "chk_2": "committed",
        "chk_1": state,
    }
    assert result.exit_code == 1
    assert f"chk_1 is {state}" in last_line(run("ls", JOB, env=env))


def test_status_tells_the_heartbeat(env):
    """The newest row and its age, said by D1."""
    result = run("status", "--job-id", "job", env=env)
    assert result.exit_code == 0
    assert result.stdout == "job: newest is chk_2, epoch 2, 10 min ago\n"
    assert last_line(result).startswith("r2d1 status: done: asked D1 ")
    newest = answer(run("status", "--job-id", "job", "--json", env=env))["newest"]
    assert (newest["name"], newest["epoch"], newest["r2_prefix"]) == ("chk_2", 2, "jobs/job/chk_2")


def test_status_needs_no_bucket(d1, env):
    """An orchestrator that only has D1's credentials can ask for the heartbeat."""
    assert run("status", "--job-id", "job", env=d1.settings_env()).stdout.startswith("job: newest is chk_2")


def test_status_without_d1_asks_the_bucket(s3, env):
    """In R2-only mode the newest checkpoint of the bucket stands in."""
    result = run("status", "--job-id", "job", env=s3.env())
    assert result.stdout.startswith("job: newest is chk_2")
    assert last_line(result).startswith(f"r2d1 status: done: asked {s3.url}")


def test_status_of_an_embedded_store(tmp_path):
    """Its catalog is a file; a job without rows has no checkpoint yet."""
    env = store_env(tmp_path)
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"x"})
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    assert "catalog.db" in last_line(run("status", "--job-id", "job", env=env))
    result = run("status", "--job-id", "other", env=env)
    assert (result.exit_code, result.stdout) == (0, "other: no checkpoint yet\n")


def test_status_tells_what_a_directory_owes(env, d1, tmp_path):
    """A row that D1 refused is owed; asking writes nothing, and makes no journal where there is none."""
    write_checkpoint(tmp_path / "w", "chk_3", 3, {"a.bin": b"x"})
    d1.always(refused(401, 10000, "Authentication error"))
    assert run("watch", tmp_path / "w", "--job-id", "job", "--once", env=env).exit_code == 4
    d1.always(None)
    said = answer(run("status", "--job-id", "job", tmp_path / "w", "--json", env=env))
    assert (said["newest"]["name"], said["journal"]["rows_owed"]) == ("chk_2", ["chk_3"])
    assert (said["journal"]["done"], said["journal"]["ships_under_way"]) == (3, [])
    (tmp_path / "empty").mkdir()
    text = run("status", "--job-id", "job", tmp_path / "empty", env=env).stdout
    assert text.splitlines()[1:] == [
        f"{tmp_path / 'empty'}: 0 checkpoints shipped or pulled",
        "  ships under way: none",
        "  rows owed: none",
        "  not shipped: none",
    ]
    assert list((tmp_path / "empty").iterdir()) == []


def test_status_tells_what_a_directory_has_not_shipped(env, s3, tmp_path):
    """What failed, what was refused by the bucket, and what nobody has shipped yet, each with what keeps it."""
    watched = tmp_path / "w"
    write_checkpoint(watched, "chk_3", 3, {"a.bin": b"x"}, files=["a.bin", "b.bin"])
    write_checkpoint(watched, "chk_4", 4, {"a.bin": b"x"})
    write_checkpoint(watched, "chk_1", 5, {"a.bin": b"written over"})
    (watched / "chk_5").mkdir()
    s3.faults.add(Fault(When(method="PUT"), Answer(403, "AccessDenied", "scripted"), times=None))
    assert run("watch", watched, "--job-id", "job", "--once", "--settle-timeout", "0.1", env=env).exit_code == 1
    said = answer(run("status", "--job-id", "job", watched, "--json", env=env))
    whys = said["journal"]["not_shipped"]
    refused = {name: whys.pop(name) for name in said["journal"]["parked"]}
    assert whys == {"chk_3": "the sidecar lists 'b.bin', which is not there", "chk_5": "it has no sidecar"}
    assert refused.keys() == {"chk_4", "chk_1"}
    assert all("403 AccessDenied - scripted" in why for why in refused.values())
    assert set(said["journal"]["parked"]) == {"chk_1", "chk_4"}
    lines = run("status", "--job-id", "job", watched, env=env).stdout.splitlines()
    assert "    chk_3: the sidecar lists 'b.bin', which is not there" in lines


@pytest.mark.parametrize("command", [["ls"], ["rm"], ["reindex"], ["gc"]], ids=" ".join)
def test_latest_where_a_name_is_needed(command, env):
    """No checkpoint is blamed for a name that the caller did not choose; what to do instead is said."""
    result = run(*command, f"{JOB}/latest", env=env)
    assert result.exit_code == 2
    assert f"`r2d1 ls {JOB}` lists them" in last_line(result)
    assert "slot_0" not in result.stderr


def test_rm_of_what_is_gone(env):
    """The first call deletes, the next says that it was deleted before, and one for a name never seen says nothing of it."""
    rm = ("rm", f"{JOB}/chk_1")
    first = run(*rm, env=env)
    assert (first.stdout, last_line(first)) == ("chk_1 (epoch 1)\n", "r2d1 rm: done: 1 checkpoint deleted")
    second = run(*rm, env=env)
    assert (second.exit_code, second.stdout) == (0, "")
    assert last_line(second) == "r2d1 rm: done: nothing to delete: chk_1 was deleted before"
    assert answer(run(*rm, "--json", env=env))["removed"] == []
    assert last_line(run("rm", f"{JOB}/chk_9", env=env)) == "r2d1 rm: done: nothing to delete"


def test_rm_goes_on_where_a_call_was_cut(env, s3):
    """The head says deleted and the objects are still there: the second call takes them away all the same."""
    s3.faults.add(Fault(When(operation="DeleteObjects"), Answer(403, "AccessDenied", "scripted")))
    assert run("rm", f"{JOB}/chk_1", env=env).exit_code == 1
    assert s3.keys("jobs/job/chk_1/") != []
    assert run("rm", f"{JOB}/chk_1", env=env).exit_code == 0
    assert s3.keys("jobs/job/chk_1/") == []


def test_status_needs_a_job_and_a_directory_that_is_there(env, tmp_path):
    """What is missing on the command line is 2, as is a bad job id."""
    assert run("status", env=env).exit_code == 2
    assert run("status", "--job-id", "job", tmp_path / "none", env=env).exit_code == 2
    assert run("status", "--job-id", "a/b", env=env).exit_code == 2


@pytest.mark.parametrize(
    ("command", "forms"),
    [
        ("ls", "URI is r2://jobs/<id> or r2://jobs/<id>/<name>"),
        ("verify", "URI is r2://jobs/<id>/latest (the highest epoch) or r2://jobs/<id>/<name>."),
        ("pull", "URI is r2://jobs/<id>/latest (the highest epoch), r2://jobs/<id>/<name>, or r2://<any/prefix>"),
        ("rm", "URI is r2://jobs/<id>/<name>, or with --after r2://jobs/<id>."),
        ("reindex", "URI is r2://jobs/<id>."),
        ("gc", "URI is r2://jobs/<id>."),
    ],
)
def test_the_help_says_which_uris_are_taken(command, forms):
    """In the words of the README's table."""
    assert forms in " ".join(run(command, "--help").stdout.split())
