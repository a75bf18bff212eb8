"""``r2d1 secrets`` and ``r2d1 init``."""

from __future__ import annotations

import sqlite3

import pytest

from r2d1.testing.d1 import refused
from tests.cli.shell import answer, last_line, run, store_env

#: The documented table, in the words of the original documentation.
COLUMNS = ["job_id", "name", "epoch", "timestamp", "r2_prefix", "metadata"]


def test_secrets_shows_values_masked(s3, d1):
    """Variable, source and what it is for are shown; of a value at most its ends."""
    env = {**s3.env(), **d1.settings_env()}
    result = run("secrets", env=env)
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "environment" in rows["R2D1_R2_SECRET_KEY"] and "****" in rows["R2D1_R2_SECRET_KEY"]
    assert {"R2: complete", "D1: complete"} <= set(result.stdout.splitlines())
    for secret in (s3.secret_key, d1.api_token, s3.access_key):
        assert secret not in result.stdout + result.stderr


def test_secrets_names_what_is_missing_in_all_spellings(monkeypatch, tmp_path):
    """What the store needs is missing: that is 2, and what is missing is shown."""
    monkeypatch.chdir(tmp_path)
    result = run("secrets")
    assert result.exit_code == 2
    assert last_line(result).startswith("r2d1 secrets: failed: R2 incomplete, D1 incomplete")
    for name in ("R2D1_R2_BUCKET", "R2_BUCKET", "AWS_SECRET_ACCESS_KEY", "R2D1_API_TOKEN", "CLOUDFLARE_API_TOKEN"):
        assert name in result.stdout
    missing = answer(run("secrets", "--json"))["missing"]
    assert [gap["names"][0] for gap in missing["D1"]] == ["R2D1_ACCOUNT_ID", "R2D1_API_TOKEN", "R2D1_D1_DATABASE_ID"]


def test_secrets_without_d1_are_complete_enough(s3):
    """D1 may be missing: couriers and fetchers work without."""
    result = run("secrets", env=s3.env())
    assert result.exit_code == 0
    assert last_line(result) == "r2d1 secrets: done: R2 complete, D1 incomplete"


def test_secrets_shows_what_is_none_when_asked(s3, d1):
    """Bucket, ids and addresses in full, keys, tokens and the proxy never; without being asked nothing in full."""
    proxy = "http://user:password-of-a-proxy@proxy.example:8080"
    env = {**s3.env(), **d1.settings_env(), "R2D1_SESSION_TOKEN": "session-token-0123456789", "HTTPS_PROXY": proxy}
    env["R2D1_ACCOUNT_ID"] = "ab" * 16  # the double's is its access key as well
    shown = [env["R2D1_R2_BUCKET"], env["R2D1_R2_ENDPOINT_URL"], env["R2D1_D1_DATABASE_ID"], env["R2D1_ACCOUNT_ID"]]
    hidden = [s3.access_key, s3.secret_key, d1.api_token, env["R2D1_SESSION_TOKEN"], proxy, "password"]
    for more in ((), ("--json",)):
        result = run("secrets", "--show", *more, env=env)
        assert [value for value in shown if value not in result.stdout] == []
        assert [value for value in hidden if value in result.stdout + result.stderr] == []
        plain = run("secrets", *more, env=env)
        assert [value for value in [*shown[1:], *hidden] if value in plain.stdout] == []


def test_secrets_reads_an_env_file(tmp_path):
    """The file is named as the source; notices are warnings."""
    path = tmp_path / "prod.env"
    path.write_text("R2D1_R2_BUCKET=my-bucket\nR2D1_API_TOKEN=0123456789abcdefghij\n")
    result = run("secrets", "--env-file", path)
    assert f"env file {path}" in result.stdout
    assert "0123****ghij" in result.stdout
    assert "warning: D1 is not used" in result.stderr


@pytest.mark.parametrize("command", [["secrets"], ["ls"], ["init"], ["status", "--job-id", "x"]])
@pytest.mark.parametrize("trouble", ["no file", "bad value"])
def test_settings_that_cannot_be_read_are_2(command, trouble, tmp_path):
    """An env file that is not there, and a value that cannot be, are named."""
    if trouble == "no file":
        result = run(*command, "--env-file", tmp_path / "none.env")
    else:
        result = run(*command, env={"R2D1_STORE_URL": "ftp://somewhere"})
    assert result.exit_code == 2
    assert ("none.env" if trouble == "no file" else "R2D1_STORE_URL") in last_line(result)


def test_init_creates_the_documented_table(d1):
    """In D1, twice without harm."""
    for _ in range(2):
        result = run("init", env=d1.settings_env())
        assert result.exit_code == 0
        assert last_line(result).startswith("r2d1 init: done: the table checkpoints is in D1 ")
    assert [row["name"] for row in d1.sql("PRAGMA table_info(checkpoints)")] == COLUMNS


def test_init_of_an_embedded_store(tmp_path):
    """The table is in the catalog beside the objects."""
    assert run("init", env=store_env(tmp_path)).exit_code == 0
    db = sqlite3.connect(tmp_path / "bucket" / ".r2d1" / "catalog.db")
    try:
        assert [row[1] for row in db.execute("PRAGMA table_info(checkpoints)")] == COLUMNS
    finally:
        db.close()


def test_init_without_d1_is_2(s3):
    """What D1 needs is named."""
    result = run("init", env=s3.env())
    assert result.exit_code == 2
    assert "R2D1_API_TOKEN" in result.stderr
    assert last_line(result).startswith("r2d1 init: failed: settings for D1 are missing (listed above)")


def test_init_that_is_refused_is_1(d1):
    """The last line has operation, status, code and a hint."""
    d1.always(refused(401, 10000, "Authentication error"))
    result = run("init", env=d1.settings_env())
    assert result.exit_code == 1
    assert "401 10000" in last_line(result)
