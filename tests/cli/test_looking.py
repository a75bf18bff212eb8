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
    """The newest checkpoint and its age."""
    result = run("status", "--job-id", "job", env=env)
    assert result.exit_code == 0
    assert result.stdout == "job: newest is chk_2, epoch 2, 10 min ago\n"
    assert last_line(result).startswith("r2d1 status: done: asked http://")
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
    """Its bucket is a directory; a job without heads has no checkpoint yet."""
    env = store_env(tmp_path)
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, {"a.bin": b"x"})
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    assert "asked file://" in last_line(run("status", "--job-id", "job", env=env))
    result = run("status", "--job-id", "other", env=env)
    assert (result.exit_code, result.stdout) == (0, "other: no checkpoint yet\n")


def test_status_tells_what_a_directory_owes(env, d1, tmp_path):
    """A row that D1 refused is owed; asking writes nothing, and makes no journal where there is none."""
    write_checkpoint(tmp_path / "w", "chk_3", 3, {"a.bin": b"x"})
    d1.always(refused(401, 10000, "Authentication error"))
    assert run("watch", tmp_path / "w", "--job-id", "job", "--once", env=env).exit_code == 4
    d1.always(None)
    said = answer(run("status", "--job-id", "job", tmp_path / "w", "--json", env=env))
    assert (said["newest"]["name"], said["journal"]["rows_owed"]) == ("chk_3", ["chk_3"])
    assert (said["journal"]["done"], said["journal"]["ships_under_way"]) == (3, [])
    (tmp_path / "empty").mkdir()
    text = run("status", "--job-id", "job", tmp_path / "empty", env=env).stdout
    assert text.splitlines()[1:] == [
        f"{tmp_path / 'empty'}: the journal knows 0 checkpoints as shipped or pulled "
        "(`r2d1 ls` tells which the bucket has now)",
        "  courier: none is at work here",
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


def test_a_ship_that_was_given_up_is_not_being_shipped(env, s3, monkeypatch):
    """Its record 0 stays for ever, still open: once it is old and nothing lies below it, nobody says it is shipped."""
    record = s3.get("jobs/job/.r2d1/ships/chk_1/0.json")
    s3.put("jobs/job/.r2d1/ships/chk_7/0.json", record)
    names = lambda: [one["name"] for one in answer(run("ls", JOB, "--json", env=env))["checkpoints"]]  # noqa: E731
    assert "chk_7" in names()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert "chk_7" not in names()
    assert last_line(run("ls", f"{JOB}/chk_7", env=env)).endswith("chk_7: a ship of it was begun and given up")
    s3.put("jobs/job/chk_7/a.bin", b"half")
    assert "chk_7" in names()


def test_ls_of_what_was_deleted_says_so(env):
    """One name that is gone is told from one that never was."""
    assert run("rm", f"{JOB}/chk_1", env=env).exit_code == 0
    result = run("ls", f"{JOB}/chk_1", env=env)
    assert (result.exit_code, result.stdout) == (0, "")
    assert last_line(result).endswith("0 checkpoints: chk_1: it was deleted; newest now is chk_2 (epoch 2)")
    assert answer(run("ls", f"{JOB}/chk_1", "--json", env=env))["why"].startswith("it was deleted")


def test_status_believes_the_heads_where_a_row_is_missing(tmp_path):
    """A catalog that was lost does not make a job's checkpoints vanish."""
    env = store_env(tmp_path)
    folder = write_checkpoint(tmp_path / "e", "chk_1", 1, {"a.bin": b"x"})
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    for path in (tmp_path / "bucket" / ".r2d1").glob("catalog.db*"):
        path.unlink()
    assert answer(run("status", "--job-id", "job", "--json", env=env))["newest"]["name"] == "chk_1"


def test_status_without_d1s_answer(env, d1, tmp_path):
    """D1 refuses: the bucket answers in its place, as for ``pull``, with a warning, and the directory is told of."""
    write_checkpoint(tmp_path / "w", "chk_3", 3, {"a.bin": b"x"})
    d1.always(refused(401, 10000, "Authentication error"))
    assert run("watch", tmp_path / "w", "--job-id", "job", "--once", env=env).exit_code == 4
    result = run("status", "--job-id", "job", tmp_path / "w", env=env)
    assert result.exit_code == 0
    assert result.stdout.startswith("job: newest is chk_3, epoch 3, ")
    assert "  rows owed: chk_3" in result.stdout.splitlines()
    assert "D1 could not be asked" in result.stderr


def test_status_without_the_buckets_answer(env, tmp_path):
    """Wrong keys for R2: failed, but the directory is told of, and what D1 says, for people and machines."""
    write_checkpoint(tmp_path / "w", "chk_3", 3, {"a.bin": b"x"})
    wrong = {**env, "R2D1_R2_SECRET_KEY": "0" * 64}
    status = ("status", "--job-id", "job", tmp_path / "w")
    result = run(*status, env=wrong)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "job: newest is chk_2, epoch 2, 10 min ago by D1's rows; the bucket could not be asked"
    assert lines[-1] == "    chk_3: ready to be shipped"
    assert "403" in last_line(result)
    said = answer(run(*status, "--json", env=wrong))
    assert (said["newest"]["name"], said["journal"]["done"]) == ("chk_2", 2)
    assert "403" in said["error"]


def test_status_without_any_answer(env, d1, tmp_path):
    """Neither end answers: the directory is told of all the same."""
    d1.always(refused(401, 10000, "Authentication error"))
    wrong = {**env, "R2D1_R2_SECRET_KEY": "0" * 64}
    result = run("status", "--job-id", "job", tmp_path / "w", env=wrong)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "job: the newest checkpoint cannot be told"
    assert "the journal knows 2 checkpoints" in result.stdout
    assert "D1 could not be asked" in result.stderr and "403" in last_line(result)


def test_status_tells_a_live_courier_from_a_dead_one(env, s3, tmp_path):
    """The lock of the directory knows: its process while it lives, and none when it was killed."""
    gate = Gate()
    s3.faults.add(Fault(When(operation="PutObject", key="*/c.bin"), Hold(gate)))
    watched = tmp_path / "other"
    write_checkpoint(watched, "chk_5", 5, random_files(c=10))
    status = ("status", "--job-id", "job", watched)
    with started("watch", watched, "--job-id", "job", env=env, home=tmp_path) as child:
        gate.arrived.wait_blocking()
        alive = answer(run(*status, "--json", env=env))["journal"]
        text = run(*status, env=env).stdout
        child.send(signal.SIGKILL)
        child.end()
    gate.release()
    dead = answer(run(*status, "--json", env=env))["journal"]
    assert (alive["courier"]["is_held"], alive["courier"]["pid"]) == (True, child.process.pid)
    assert f"  courier: process {child.process.pid} on " in text and "  ships under way: chk_5\n" in text
    assert (dead["courier"], dead["ships_under_way"]) == ({"is_held": False, "pid": None, "by": ""}, ["chk_5"])
    lines = run(*status, env=env).stdout.splitlines()
    assert "  courier: none is at work here" in lines
    assert "  ships under way: chk_5 (begun and left; the next courier goes on with it)" in lines


def test_rm_with_d1_down_says_how_far_it_came(env, s3, d1):
    """The head is marked and the rest is not deleted: both are said, and that the same command finishes it."""
    d1.always(refused(401, 10000, "Authentication error"))
    result = run("rm", f"{JOB}/chk_1", env=env)
    assert result.exit_code == 1
    assert "chk_1 of job 'job': marked as deleted, so gone for readers; row, hint and objects" in last_line(result)
    assert "401" in last_line(result) and last_line(result).endswith(". The same command finishes it")
    assert s3.keys("jobs/job/chk_1/") != []
    d1.always(None)
    second = run("rm", f"{JOB}/chk_1", env=env)
    assert second.stdout == "chk_1 (epoch 1)\n"
    assert last_line(second).endswith("done: the deletion of 1 checkpoint that was begun before is finished")
    assert s3.keys("jobs/job/chk_1/") == []
    assert "was deleted before" in last_line(run("rm", f"{JOB}/chk_1", env=env))


def test_rm_after_with_d1_down_is_finished_by_the_same_command(env, s3, d1):
    """The end of a timeline goes the same way."""
    rm = ("rm", JOB, "--after", 0)
    d1.always(refused(401, 10000, "Authentication error"))
    assert "chk_1, chk_2 of job 'job': marked as deleted" in last_line(run(*rm, env=env))
    d1.always(None)
    assert len(answer(run(*rm, "--json", env=env))["removed"]) == 2
    assert s3.keys("jobs/job/chk_") == []
    assert last_line(run(*rm, env=env)) == "r2d1 rm: done: nothing to delete"


@pytest.mark.parametrize(
    "command",
    [("reindex", "r2://jobs/none"), ("rm", "r2://jobs/none/chk_1"), ("rm", "r2://jobs/none", "--after", "1")],
    ids=" ".join,
)
def test_a_job_that_nobody_knows_is_3(command, env):
    """A wrong id is not said to be done."""
    result = run(*command, env=env)
    assert result.exit_code == 3
    assert "nothing is known of job 'none' in http://" in last_line(result)
    assert answer(run(*command, "--json", env=env))["status"] == "failed"


def test_gc_of_nothing(env):
    """No garbage is not offered to be taken away."""
    assert last_line(run("gc", JOB, env=env)) == "r2d1 gc: done: no garbage found"


@pytest.mark.parametrize("is_s3", [True, False], ids=["s3", "directory"])
def test_deep_verify_lists_all_that_is_wrong(is_s3, s3, tmp_path):
    """Shortened, missing and damaged objects and a damaged sidecar, each once, with exit code 1."""
    env = s3.env() if is_s3 else store_env(tmp_path)
    base = tmp_path / "bucket" / "jobs" / "job" / "chk_1"
    files = {name: bytes(40_000) for name in ("damaged.bin", "good.bin", "missing.bin", "short.bin")}
    folder = write_checkpoint(tmp_path / "w", "chk_1", 1, files)
    assert run("ship", folder, "--job-id", "job", env=env).exit_code == 0
    assert run("verify", f"{JOB}/chk_1", "--deep", env=env).exit_code == 0
    sidecar = folder.with_suffix(".json").read_bytes().replace(b"0.5", b"0.7")
    for name, data in {"short.bin": b"short", "damaged.bin": b"x" * 40_000, "chk_1.json": sidecar}.items():
        s3.put(f"jobs/job/chk_1/{name}", data) if is_s3 else (base / name).write_bytes(data)
    s3.delete("jobs/job/chk_1/missing.bin") if is_s3 else (base / "missing.bin").unlink()
    result = run("verify", f"{JOB}/chk_1", "--deep", "--json", env=env)
    assert result.exit_code == 1
    problems = answer(result)["problems"]
    told = ["sidecar is damaged", "'damaged.bin': bytes", "missing.bin' is missing", "short.bin' has 5 bytes"]
    assert len(problems) == len(told)
    assert all(part in problem for part, problem in zip(told, problems, strict=True)), problems


def test_the_help_says_what_is_checked():
    """``ls`` looks at no file, and 3 is not pull's alone."""
    assert "files are not looked at, `r2d1 verify` compares them" in " ".join(run("ls", "--help").stdout.split())
    assert "3    nothing is there (pull, verify, reindex, rm)" in run("--help").stdout


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
