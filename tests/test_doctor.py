"""The doctor: what it checks, what it says of each kind of trouble, and that it leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import anyio
import pytest

from r2d1.doctor import Status, diagnose
from r2d1.doctor.store_checks import WRITE_INTERVAL_S
from r2d1.errors import ConfigError
from r2d1.events import Retried
from r2d1.settings import Settings
from r2d1.testing import Answer, Conditional, Fault, FlipReply, Gate, Hold, Rewrite, Rules, S3Double, Swallow, When
from r2d1.testing.d1 import refused
from tests.cli.shell import answer, last_line, run
from tests.datasets.web import dead_url

APP = "https://app.example"
POLICY = [{"AllowedOrigins": [APP], "AllowedMethods": ["GET", "HEAD"], "AllowedHeaders": ["Range"]}]


@pytest.fixture
def env(s3, d1):
    return {**s3.env(), **d1.settings_env()}


def examine(env, **options):
    found = asyncio.run(diagnose(Settings.from_env(environ=env), **{"write_interval_s": 0.0, **options}))
    return {each.check: each for each in found}


def failures(found):
    return {name for name, each in found.items() if each.status is Status.FAILED}


def test_all_is_fine(env, s3, d1):
    """Every check of the list is made, none fails, latency and throughput are told, nothing is left behind."""
    found = examine(env, cors_origin=APP)
    assert failures(found) == set()
    bucket = ("put", "head", "range", "list", "If-None-Match", "If-Match", "multipart", "abort", "token", "delete")
    others = ("public range", "cors", "clock", "speed", "place", "d1 read", "d1 write")
    assert set(found) == {*bucket, *others, "multipart If-None-Match"}
    assert "ms" in found["speed"].text
    assert found["speed"].text.count("MiB/s") == 2
    assert s3.keys() == []
    assert s3.open_uploads == 0
    tables = d1.sql("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '\\_cf%' ESCAPE '\\'")
    assert tables == []
    uploads = [each.operation for each in s3.requests if "Multipart" in each.operation]
    assert {"CompleteMultipartUpload", "AbortMultipartUpload"} <= set(uploads)


def test_everything_lies_below_its_own_prefix(env, s3):
    """No request of the doctor writes or deletes outside of ``_doctor/``."""
    examine(env)
    written = [each.key for each in s3.requests if each.method in ("PUT", "POST", "DELETE") and each.key]
    assert written
    assert all(key.startswith("_doctor/") for key in written)
    first = next(each for each in s3.requests if each.operation == "PutObject")
    assert first.headers["if-none-match"] == "*"
    assert first.headers["x-amz-content-sha256"] == first.headers["x-amz-meta-sha256"]


def test_r2_with_all_its_rules():
    """R2's own limits (part sizes, one write a second for a key) are kept, so nothing is refused and tried again."""
    told = []
    with S3Double(rules=Rules.object_token()) as s3:
        found = examine(s3.env(), observer=told.append, write_interval_s=WRITE_INTERVAL_S)
        assert failures(found) == set()
        assert [event for event in told if isinstance(event, Retried)] == []
        assert [each.operation for each in s3.requests if each.status == 429] == []
        assert found["token"].status is Status.NOTE
        assert found["d1"].status is Status.SKIPPED
        assert s3.keys() == []


# Settings


def test_every_missing_setting_is_named():
    """Account, bucket, both keys and the public base, in all spellings, in one error."""
    with pytest.raises(ConfigError) as caught:
        examine({})
    names = ("R2_ACCOUNT_ID", "R2_BUCKET", "R2_ACCESS_KEY_ID", "R2_SECRET_ACCESS_KEY", "R2D1_R2_BUCKET")
    for name in (*names, "R2D1_R2_PUBLIC_BASE (or R2_PUBLIC_BASE)"):
        assert name in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        examine({"R2_PUBLIC_BASE": "https://data.example"})
    assert "PUBLIC_BASE" not in str(caught.value)


def test_a_missing_public_base_fails_that_check_alone(env):
    """All else is checked; the one failure names the variable."""
    del env["R2D1_R2_PUBLIC_BASE"]
    found = examine(env, cors_origin=APP)
    assert failures(found) == {"public range"}
    assert "R2_PUBLIC_BASE" in found["public range"].hint
    assert found["cors"].line == f"skipped cors: there is no public base to ask about pages of {APP}"
    assert found["delete"].status is Status.OK


def test_the_embedded_store_can_be_examined(tmp_path):
    """A directory does all that couriers need; what it does not have is skipped."""
    found = examine({"R2D1_STORE_URL": (tmp_path / "bucket").as_uri()}, cors_origin=APP)
    assert failures(found) == set()
    assert {found[name].status for name in ("public range", "cors", "d1")} == {Status.SKIPPED}
    assert [path for path in (tmp_path / "bucket").rglob("*") if "_doctor" in path.parts and path.is_file()] == []


# The bucket


@pytest.mark.parametrize(
    ("fault", "check", "said"),
    [
        (Fault(When(operation="HeadObject", nth=2), Rewrite({"x-amz-meta-sha256": None})), "head", "did not come back"),
        (Fault(When(operation="GetObject"), FlipReply()), "range", "other bytes"),
        (Fault(When(operation="ListObjectsV2"), Answer(403, "AccessDenied"), times=None), "list", "403 AccessDenied"),
        (Fault(When(operation="UploadPart"), Answer(403, "AccessDenied"), times=None), "multipart", "403"),
        (Fault(When(operation="DeleteObject"), Answer(403, "AccessDenied"), times=1), "delete", "403"),
    ],
    ids=["metadata lost", "wrong bytes", "no listing", "no parts", "no delete"],
)
def test_a_check_that_fails_is_named_and_the_rest_goes_on(fault, check, said, env, s3):
    """The finding says what was wrong; later checks are made, and all is cleaned up."""
    s3.faults.add(fault)
    found = examine(env)
    assert check in failures(found)
    assert said in found[check].line
    assert found["clock"].status is Status.OK
    assert s3.keys() == []
    assert s3.open_uploads == 0


@pytest.mark.parametrize(
    ("code", "status", "hint"),
    [
        ("AccessDenied", 403, "Object Read & Write"),
        ("NoSuchBucket", 404, "R2D1_R2_JURISDICTION"),
        ("SignatureDoesNotMatch", 403, "secret key does not belong"),
        ("RequestTimeTooSkewed", 403, "clock"),
    ],
)
def test_nothing_can_be_written(code, status, hint, env, s3):
    """Wrong bucket, token, key or clock: one failure with its hint, the rest skipped, D1 checked all the same."""
    s3.faults.add(Fault(When(operation="PutObject"), Answer(status, code), times=None))
    found = examine(env)
    assert failures(found) == {"put"}
    assert hint in found["put"].line
    assert found["bucket"].status is Status.SKIPPED
    assert found["d1 write"].status is Status.OK


def test_a_store_that_is_not_there(env):
    """A dead endpoint is a failure that says so, after a few tries."""
    found = examine({**env, "R2D1_R2_ENDPOINT_URL": dead_url()})
    assert failures(found) == {"put"}
    assert "cannot be reached" in found["put"].text


def test_a_store_that_ignores_conditions(env, s3):
    """It is named, with what follows for couriers; the object keeps its bytes for the checks that come after."""
    with S3Double(rules=replace(Rules.lenient(), conditions=Conditional.IGNORED)) as careless:
        found = examine({**env, **careless.env()})
        assert failures(found) == {"If-None-Match", "If-Match"}
        assert careless.url in found["If-None-Match"].text
        assert "Two couriers on one job are not safe" in found["If-None-Match"].hint
        assert careless.keys() == []


@pytest.mark.parametrize(
    ("skew", "status", "said"),
    [(0, Status.OK, "within"), (90, Status.NOTE, "behind"), (-90, Status.NOTE, "ahead"), (600, Status.FAILED, "600 s")],
)
def test_the_clock(skew, status, said):
    """Seconds are fine, minutes are told, and what comes near the limit of 15 minutes is a failure."""
    with S3Double(rules=Rules.lenient(), clock=lambda: time.time() + skew) as s3:
        found = examine(s3.env())
        assert (found["clock"].status, said in found["clock"].text) == (status, True)


# The public base


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Answer(404, body=b"<html>"), "404"),
        (Answer(503), "503"),
        (FlipReply(), "other bytes"),
        (Rewrite({"Content-Range": "bytes 0-15/65536"}), "0-15 came"),
        (Rewrite({"Content-Range": None}), "Content-Range is missing"),
    ],
    ids=["not there", "broken", "wrong bytes", "another range", "no Content-Range"],
)
def test_a_public_base_that_is_wrong(fault, said, env, s3):
    """Anything but 206 with the right bytes fails that check, with the reason."""
    s3.faults.add(Fault(When(operation="PublicGetObject"), fault, times=None))
    found = examine(env)
    assert failures(found) == {"public range"}
    assert said in found["public range"].text


def test_a_base_that_ignores_ranges(env, s3):
    """A 200 with the whole object is what readers can live with and nobody wants: it fails, with the reason."""
    from tests.datasets.web import Reply, web

    with web(lambda asked: Reply(200, s3.get(asked.path))) as server:
        found = examine({**env, "R2D1_R2_PUBLIC_BASE": server.url})
    assert failures(found) == {"public range"}
    assert "ignores Range and answers 200, not 206" in found["public range"].text


def test_the_base_of_another_bucket(env):
    """The temporary object is not found there, and the hint asks whether it is the right base."""
    with S3Double(rules=Rules.lenient()) as other:
        found = examine({**env, "R2D1_R2_PUBLIC_BASE": other.public_url})
    assert failures(found) == {"public range"}
    assert "base of this bucket" in found["public range"].hint


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ([], "no Access-Control-Allow-Origin"),
        ([{**POLICY[0], "AllowedOrigins": ["https://other.example"]}], "no Access-Control-Allow-Origin"),
        (POLICY, "Expose-Headers lacks content-range, content-length, etag"),
        ([{**POLICY[0], "AllowedHeaders": [], "ExposeHeaders": ["*"]}], "preflight"),
    ],
    ids=["no policy", "another origin", "nothing exposed", "no Range in the preflight"],
)
def test_cors_that_does_not_let_pages_read(policy, said, env, s3):
    """What lacks is said, and the policy to paste makes the check pass."""
    s3.cors = policy
    found = examine(env, cors_origin=APP)
    assert failures(found) == {"cors"}
    assert said in found["cors"].text
    s3.cors = json.loads(found["cors"].paste)
    assert failures(examine(env, cors_origin=APP)) == set()


@pytest.mark.parametrize("origin", ["", "app.example", "https://app.example/", "https://app.example/page", "ftp://x"])
def test_an_origin_that_is_none(origin, env, s3):
    """What no browser sends as an origin is a usage error, before anything is asked."""
    with pytest.raises(ConfigError, match="no origin of web pages"):
        examine(env, cors_origin=origin)
    wrong = run("doctor", "--cors-origin", origin, env=env)
    assert wrong.exit_code == 2
    assert "such as https://app.example" in wrong.stderr
    assert s3.requests == []


# D1


@pytest.mark.parametrize(
    ("fault", "hint"),
    [(refused(401, 10000, "Authentication error"), "D1 Edit"), (refused(404, 7404, "not found"), "DATABASE_ID")],
)
def test_d1_that_refuses(fault, hint, env, d1):
    """A wrong token or database fails the read, with the hint; the bucket's checks stand."""
    d1.always(fault)
    found = examine(env)
    assert failures(found) == {"d1 read"}
    assert hint in found["d1 read"].line
    assert found["d1 write"].status is Status.SKIPPED


def test_a_token_that_may_only_read(env, d1):
    """Reading works and writing is refused: the write fails alone."""
    from r2d1.testing.d1 import NO_FAULT

    d1.script(NO_FAULT)
    d1.always(refused(403, 7403, "not authorised"))
    found = examine(env)
    assert failures(found) == {"d1 write"}


def test_half_of_d1_is_told(s3):
    """What D1 still needs is named, and is no failure."""
    found = examine({**s3.env(), "R2D1_API_TOKEN": "t" * 40})
    assert found["d1"].status is Status.SKIPPED
    assert "R2D1_D1_DATABASE_ID" in found["d1"].text


# Leaving nothing behind


async def test_cancelling_cleans_up(env, s3):
    """A doctor that is stopped in the middle removes what it wrote before it ends."""
    gate = Gate()
    s3.faults.add(Fault(When(operation="UploadPart"), Hold(gate)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(diagnose, Settings.from_env(environ=env))
        await asyncio.to_thread(gate.arrived.wait_blocking)
        tasks.cancel_scope.cancel()
    gate.release()
    assert s3.keys() == []
    assert s3.open_uploads == 0


def test_what_may_have_been_written_is_removed(env, s3):
    """The first answer is lost: the check fails, and the object that is there all the same is removed."""
    s3.faults.add(Fault(When(operation="PutObject"), Swallow()))
    found = examine(env)
    assert failures(found) == {"put"}
    assert s3.keys() == []


def test_what_cannot_be_removed_is_told(env, s3):
    """A token that may write and not delete: what is left is named."""
    for operation in ("DeleteObject", "DeleteObjects"):
        s3.faults.add(Fault(When(operation=operation), Answer(403, "AccessDenied"), times=None))
    found = examine(env)
    assert {"delete", "cleanup"} <= failures(found)
    assert s3.keys()[0].rpartition("/")[0] in found["cleanup"].text


# The command


def test_exit_codes_and_lines(env, s3):
    """0 and one line a check when all is fine; 1 and the policy when CORS fails; 2 with every name when some lack."""
    fine = run("doctor", "--cors-origin", APP, env=env)
    assert fine.exit_code == 0
    assert all(line.startswith(("ok ", "note ", "skipped ")) for line in fine.stdout.splitlines())
    assert last_line(fine) == "r2d1 doctor: done: all is fine"
    s3.cors = []
    wrong = run("doctor", "--cors-origin", APP, env=env)
    assert wrong.exit_code == 1
    assert '"AllowedOrigins": [' in wrong.stdout
    assert "1 check failed: cors" in last_line(wrong)
    missing = run("doctor", env={"R2_BUCKET": "b"})
    assert missing.exit_code == 2
    assert "R2_ACCOUNT_ID" in missing.stderr
    assert "R2_SECRET_ACCESS_KEY" in missing.stderr


def test_json_for_machines(env):
    """Every finding is an object with the same fields."""
    findings = answer(run("doctor", "--json", env=env))["findings"]
    assert all(set(each) == {"check", "status", "text", "hint", "paste"} for each in findings)


def test_an_env_file(env, tmp_path):
    """``--env-file`` gives the settings, in the names of the documentation."""
    names = {
        "R2D1_R2_ENDPOINT_URL": "R2_ENDPOINT",
        "R2D1_R2_BUCKET": "R2_BUCKET",
        "R2D1_R2_PUBLIC_BASE": "R2_PUBLIC_BASE",
    }
    names |= {"R2D1_R2_ACCESS_KEY": "R2_ACCESS_KEY_ID", "R2D1_R2_SECRET_KEY": "R2_SECRET_ACCESS_KEY"}
    path = tmp_path / "prod.env"
    path.write_text("".join(f"{short}={env[name]}\n" for name, short in names.items()))
    assert run("doctor", "--env-file", path).exit_code == 0


@pytest.mark.parametrize("more", [["-v"], ["-v", "--json"]])
def test_no_secret_is_ever_printed(more, env, s3, d1):
    """Everything refused, tracebacks asked for: neither keys nor token are in what is printed."""
    s3.faults.add(Fault(When(), Answer(403, "SignatureDoesNotMatch"), times=None))
    d1.always(refused(401, 10000, "Authentication error"))
    result = run("doctor", *more, env=env)
    said = result.stdout + result.stderr
    assert result.exit_code == 1
    for secret in (s3.secret_key, s3.access_key, d1.api_token, "Bearer", "AWS4-HMAC"):
        assert secret not in said
