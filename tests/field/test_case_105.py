"""Field case 105: a 412 on our own write. The shard is kept, its answer lost: it is looked at, not sent again."""

from __future__ import annotations

import pytest

from r2d1.testing import Answer, Fault, Swallow, When
from tests.cli.shell import answer, run
from tests.datasets.making import sha
from tests.datasets.published import make_set


@pytest.mark.parametrize(
    "second",
    [None, Answer(412, "PreconditionFailed"), Answer(503, "ServiceUnavailable")],
    ids=["nothing more", "412 for whatever follows", "trouble for whatever follows"],
)
def test_our_own_object_is_recognised(second, s3, tmp_path):
    """Exit 0, the shard counts as sent, and its body travelled once."""
    made = make_set(tmp_path / "set", shards=3)
    key = sha(made.shards[1])
    s3.faults.add(Fault(When(operation="PutObject", key=key), Swallow()))
    if second is not None:
        s3.faults.add(Fault(When(operation="PutObject", key=key, nth=2), second, times=None))
    result = run("datasets", "publish", made.directory, "--json", env=s3.env())
    assert result.exit_code == 0, result.stderr
    assert answer(result)["sent"] == 4
    bodies = [each for each in s3.requests if each.operation == "PutObject" and each.key == key]
    assert len(bodies) == 1
    assert s3.get(key) == made.shards[1]


def test_a_412_for_an_object_that_is_there_by_then(s3, tmp_path):
    """Absent when looked at, there when written: the 412 is settled by comparing size and hash."""
    from r2d1.testing import Hook

    made = make_set(tmp_path / "set", shards=3)
    key = sha(made.shards[1])

    def theirs(call):
        s3.put(key, made.shards[1], sha256=key)

    s3.faults.add(Fault(When(operation="PutObject", key=key), Hook(before=theirs)))
    result = run("datasets", "publish", made.directory, "--json", env=s3.env())
    assert result.exit_code == 0, result.stderr
    assert [each.status for each in s3.requests if each.operation == "PutObject" and each.key == key] == [412]
