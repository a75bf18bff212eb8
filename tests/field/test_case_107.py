"""Field case 107: a store that ignores or refuses conditions. The doctor says so; publishing overwrites nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from r2d1.datasets import Conflict, publish_shard_set
from r2d1.settings import Settings
from r2d1.testing import Conditional, Rules, S3Double
from tests.cli.shell import answer, run
from tests.datasets.making import sha
from tests.datasets.published import make_set

LACKING = (Conditional.IGNORED, Conditional.REFUSED, Conditional.NOT_MODIFIED)


@pytest.fixture
def store(request):
    with S3Double(rules=replace(Rules.lenient(), conditions=request.param)) as double:
        yield double


@pytest.mark.parametrize("store", LACKING, indirect=True)
def test_the_doctor_names_it_and_the_consequence(store):
    """Both conditions fail, two couriers are said to be unsafe or in trouble; nothing is left behind."""
    result = run("doctor", "--json", env=store.env())
    findings = {each["check"]: each for each in answer(result)["findings"]}
    assert result.exit_code == 1
    for check in ("If-None-Match", "If-Match"):
        assert findings[check]["status"] == "failed"
        said = findings[check]["text"] + findings[check]["hint"]
        assert "Two couriers on one job are not safe" in said or "answered with 304, not 412" in said
    assert store.keys() == []


@pytest.mark.parametrize("store", [Conditional.PUT_ONLY], indirect=True)
def test_only_complete_ignores_it(store):
    """Conditions that hold for PutObject alone are enough here: told as a note, exit 0."""
    result = run("doctor", "--json", env=store.env())
    findings = {each["check"]: each for each in answer(result)["findings"]}
    assert result.exit_code == 0
    assert findings["multipart If-None-Match"]["status"] == "note"
    assert "not supported" in findings["multipart If-None-Match"]["text"]
    assert store.keys() == []


@pytest.mark.parametrize("store", [*LACKING, Conditional.PUT_ONLY], indirect=True)
def test_other_bytes_at_a_key_are_never_overwritten(store, tmp_path):
    """The key is looked at first, so the conflict is found on a store without conditions, too."""
    made = make_set(tmp_path / "set", shards=3)
    key = sha(made.shards[1])
    store.put(key, b"something else")
    with pytest.raises(Conflict, match=key):
        publish_shard_set(made.directory, Settings.from_env(environ=store.env()))
    assert store.get(key) == b"something else"


@pytest.mark.parametrize("store", [*LACKING, Conditional.PUT_ONLY], indirect=True)
def test_publishing_works_all_the_same(store, tmp_path):
    """A store without conditions takes a set, and a second run sends nothing."""
    made = make_set(tmp_path / "set", shards=3)
    settings = Settings.from_env(environ=store.env())
    told = []
    assert publish_shard_set(made.directory, settings, observer=told.append).sent == 4
    assert publish_shard_set(made.directory, settings).sent == 0
    warned = any("refuses If-None-Match" in getattr(event, "text", "") for event in told)
    assert warned is (store.model.rules.conditions is Conditional.REFUSED)
