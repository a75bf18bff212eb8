"""Publishing labels: every file at its path, the index last, and nothing read or sent that need not be."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
from dataclasses import replace

import pytest

from r2d1 import localstate
from r2d1.datasets import (
    Conflict,
    DocumentError,
    parse_index,
    publish_labels,
    publish_labels_async,
    publish_shard_set,
)
from r2d1.errors import AccessRefused, ConfigError, FormatError, RemoteError, UnsafeDestination
from r2d1.settings import Settings
from r2d1.testing import Answer, Fault, Hook, Rules, S3Double, Swallow, When
from tests.children import Killer, child_env, started
from tests.datasets.making import sha
from tests.datasets.published import make_set

MIB = 1 << 20
FILES = {
    "a/logits-0.npy": b"logits 0",
    "a/logits-1.npy": b"logits 1",
    "meta.json": b'{"teacher": "t"}',
    "empty.bin": b"",
    "sp ace/ünï+%#.bin": b"any name",
    "a/labels-index.json": b"a label like another, as it does not lie at the top",
}
PREFIX = "labels/teacher-mix"


@pytest.fixture
def labels(tmp_path):
    root = tmp_path / "labels"
    for path, data in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


@pytest.fixture
def settings(s3):
    return Settings.from_env(environ=s3.env())


def index(s3):
    return json.loads(s3.get(f"{PREFIX}/labels-index.json"))


def puts(s3):
    return [each.key.removeprefix(f"{PREFIX}/") for each in s3.requests if each.operation == "PutObject"]


def test_every_file_and_then_the_index(labels, s3, settings):
    """Files lie at their paths; the index, written last, has size and hash of each, in the documented form."""
    (labels / "labels-index.json").write_text("an old one that was copied here")
    report = publish_labels(labels, settings, prefix=PREFIX)
    assert (report.files, report.sent, report.present, report.removed) == (6, 6, 0, ())
    for path, data in FILES.items():
        assert s3.get(f"{PREFIX}/{path}") == data
    entries = {path: {"size": len(data), "sha256": sha(data)} for path, data in FILES.items()}
    assert s3.get(f"{PREFIX}/labels-index.json") == json.dumps(entries, indent=1, sort_keys=True).encode()
    assert puts(s3)[-1] == "labels-index.json"
    assert parse_index(s3.get(f"{PREFIX}/labels-index.json"))["meta.json"] == (16, sha(FILES["meta.json"]))
    assert not [key for key in s3.keys() if ".r2d1" in key]


def test_the_headers_are_those_of_the_format(labels, s3, settings):
    """Real hashes in both headers; documents are JSON; labels may change, so nothing is immutable."""
    publish_labels(labels, settings, prefix=PREFIX)
    for each in s3.requests:
        if each.operation == "PutObject":
            digest = sha(s3.get(each.key))
            assert each.headers["x-amz-content-sha256"] == each.headers["x-amz-meta-sha256"] == digest
            kind = "application/json" if each.key.endswith(".json") else "application/octet-stream"
            assert (each.headers["content-type"], each.headers["cache-control"]) == (kind, "no-cache")


def test_what_is_there_is_neither_read_nor_sent(labels, s3, settings):
    """A second run hashes no label and sends no body: the journal knows the hashes, each key is looked at once."""
    assert publish_labels(labels, settings, prefix=PREFIX).hashed_bytes == sum(map(len, FILES.values()))
    before = s3.counts
    report = publish_labels(labels, settings, prefix=PREFIX)
    assert (report.sent, report.present, report.hashed_bytes) == (0, 6, 0)
    assert s3.counts["PutObject"] == before["PutObject"]
    assert s3.counts["HeadObject"].requests - before["HeadObject"].requests == 7


def test_a_touched_file_is_hashed_again_and_not_sent(labels, s3, settings):
    """Another time on a file makes the journal's word void; its bytes decide, and they are there."""
    publish_labels(labels, settings, prefix=PREFIX)
    os.utime(labels / "meta.json", (1, 1))
    report = publish_labels(labels, settings, prefix=PREFIX)
    assert (report.sent, report.hashed_bytes) == (0, len(FILES["meta.json"]))


def test_a_changed_file_alone_is_sent(labels, s3, settings):
    """One new, one changed, one removed: two bodies and the index; the removed path is told, its object stays."""
    publish_labels(labels, settings, prefix=PREFIX)
    (labels / "meta.json").write_bytes(b'{"teacher": "u"}')
    (labels / "new.bin").write_bytes(b"new")
    (labels / "a/logits-1.npy").unlink()
    sent_before = len(puts(s3))
    report = publish_labels(labels, settings, prefix=PREFIX)
    assert (report.sent, report.present, report.removed) == (2, 4, ("a/logits-1.npy",))
    assert report.hashed_bytes == 16 + 3
    assert sorted(puts(s3)[sent_before:-1]) == ["meta.json", "new.bin"]
    assert "a/logits-1.npy" not in index(s3)
    assert s3.get(f"{PREFIX}/a/logits-1.npy") == b"logits 1"


def test_a_journal_that_is_broken_or_lost_costs_a_reading(labels, s3, settings):
    """Garbage in the journal's place is replaced; files are hashed once more, nothing is sent again."""
    publish_labels(labels, settings, prefix=PREFIX)
    for wreck in (lambda path: path.write_bytes(b"not a database at all" * 100), lambda path: path.unlink()):
        wreck(labels / ".r2d1" / "labels.db")
        report = publish_labels(labels, settings, prefix=PREFIX)
        assert (report.sent, report.hashed_bytes) == (0, sum(map(len, FILES.values())))
    assert publish_labels(labels, settings, prefix=PREFIX).hashed_bytes == 0


def test_hashes_are_good_for_any_bucket(labels, settings):
    """The journal knows files, not buckets: to another bucket everything is sent, and nothing hashed."""
    publish_labels(labels, settings, prefix=PREFIX)
    with S3Double(rules=Rules.lenient()) as other:
        report = publish_labels(labels, Settings.from_env(environ=other.env()), prefix="")
        assert (report.sent, report.hashed_bytes) == (6, 0)
        assert "meta.json" in other.keys()


def test_a_failure_leaves_the_old_index(labels, s3, settings):
    """A file that cannot be sent: the index that readers know stays as it was."""
    publish_labels(labels, settings, prefix=PREFIX)
    before = index(s3)
    (labels / "meta.json").write_bytes(b"{}")
    s3.faults.add(Fault(When(operation="PutObject", key="*/meta.json"), Answer(403, "AccessDenied"), times=None))
    with pytest.raises(AccessRefused, match=r"meta\.json"):
        publish_labels(labels, settings, prefix=PREFIX)
    assert index(s3) == before


def test_an_old_index_that_cannot_be_read_is_told(labels, s3, settings):
    """What it named is not known; it is replaced, with a warning that names the key."""
    s3.put(f"{PREFIX}/labels-index.json", b"[]")
    told = []
    assert publish_labels(labels, settings, prefix=PREFIX, observer=told.append).removed == ()
    assert any("labels-index.json" in getattr(event, "text", "") for event in told)
    assert len(index(s3)) == 6


def test_a_file_that_changes_meanwhile_fails(labels, s3, settings):
    """Bytes that changed between hashing and sending never get the old hash as their name."""

    def change(call):
        (labels / "meta.json").write_bytes(b"XXXXXXXXXXXXXXXX")

    s3.faults.add(Fault(When(operation="HeadObject", key="*/meta.json"), Hook(before=change)))
    with pytest.raises(Exception, match=r"meta\.json"):
        publish_labels(labels, settings, prefix=PREFIX)
    assert f"{PREFIX}/meta.json" not in s3.keys()
    assert f"{PREFIX}/labels-index.json" not in s3.keys()


def test_links_and_what_is_no_file(labels, s3, settings, tmp_path, monkeypatch):
    """A link to a label is that label; what leads out, nowhere, to a folder, or is a socket, is named, all at once."""
    (labels / "same.npy").symlink_to("a/logits-0.npy")
    assert publish_labels(labels, settings, prefix=PREFIX).files == 7
    assert s3.get(f"{PREFIX}/same.npy") == b"logits 0"
    (tmp_path / "secret").write_text("secret")
    (labels / "out").symlink_to(tmp_path / "secret")
    (labels / "nowhere").symlink_to("nothing")
    (labels / "folder").symlink_to("a")
    (labels / "back\\slash").write_text("x")
    with socket.socket(socket.AF_UNIX) as unix:
        monkeypatch.chdir(labels)
        unix.bind("socket")  # a short path: sockets take no long ones
        with pytest.raises(FormatError) as caught:
            publish_labels(labels, settings, prefix=PREFIX)
    for name in ("'out': it is a link that leads out", "'nowhere': it is a link that leads nowhere"):
        assert name in str(caught.value)
    for name in ("'folder': it is a link to a folder", "'socket': it is not a regular file", "back\\\\slash"):
        assert name in str(caught.value)


def test_two_names_that_are_one_to_r2(labels, settings):
    """Composed and decomposed spellings of one name cannot both be published."""
    (labels / "e\u0301").write_text("1")
    (labels / "\u00e9").write_text("2")
    with pytest.raises(FormatError, match="NFC"):
        publish_labels(labels, settings, prefix=PREFIX)


def test_hidden_files_are_published_only_when_asked_for(labels, s3, settings):
    """Secrets and version control that came along are named before anything is sent; ``hidden`` publishes them, too."""
    (labels / ".other").write_text("a label like any other")
    for path in (".env", "a/.DS_Store", ".git/config", ".git/HEAD", ".r2d1/labels.txt"):
        (labels / path).parent.mkdir(exist_ok=True)
        (labels / path).write_text("secret")
    with pytest.raises(ConfigError, match=r"nothing was sent: '.env', '.git/', 'a/.DS_Store'\. .*--hidden"):
        publish_labels(labels, settings, prefix=PREFIX)
    assert s3.requests == []
    assert publish_labels(labels, settings, prefix=PREFIX, hidden=True).files == 11
    assert ".git/HEAD" in index(s3)


def test_labels_do_not_go_where_a_shard_set_is(labels, tmp_path, s3, settings):
    """Below the prefix of a set they are refused before anything is sent; a label of the manifest's name is fine."""
    publish_shard_set(make_set(tmp_path / "set").directory, settings, prefix=PREFIX, verify_units=0)
    before = s3.keys()
    with pytest.raises(Conflict, match=rf"{PREFIX}/manifest.json: a shard set is published there"):
        publish_labels(labels, settings, prefix=PREFIX)
    assert s3.keys() == before
    (labels / "manifest.json").write_bytes(b"{}")
    for _ in range(2):
        publish_labels(labels, settings, prefix="labels/other")
    assert s3.get("labels/other/manifest.json") == b"{}"


@pytest.mark.parametrize(("prefix", "path"), [("jobs/run", "0.npy"), ("jobs", "0.npy"), ("", "jobs/0.npy")])
def test_labels_do_not_go_where_checkpoints_are(prefix, path, labels, s3, settings):
    """Nothing of a dataset lies below ``jobs/``, however it would come there."""
    (labels / path).parent.mkdir(exist_ok=True)
    (labels / path).write_bytes(b"label")
    with pytest.raises(ConfigError, match="checkpoints lie below jobs/"):
        publish_labels(labels, settings, prefix=prefix)
    assert s3.requests == []


def test_nothing_to_publish(tmp_path, settings):
    """A directory that is empty, or none, is a configuration error."""
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(ConfigError, match=str(path)):
            publish_labels(path, settings, prefix=PREFIX)


async def test_the_embedded_store_too(labels, tmp_path):
    """A directory stands in for the bucket."""
    settings = Settings(store_url=(tmp_path / "bucket").as_uri())
    assert (await publish_labels_async(labels, settings, prefix=PREFIX)).sent == 6
    assert (await publish_labels_async(labels, settings, prefix=PREFIX)).sent == 0


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"a": 1}', '{"a": {"size": -1, "sha256": "x"}}', '{"a": {"size": 1, "sha256": "00", "b": 1}}']
)
def test_a_malformed_index(text):
    """Every malformed entry is named."""
    with pytest.raises(DocumentError, match=r"labels-index\.json"):
        parse_index(text.encode())


# Files that one PUT cannot carry


@pytest.fixture
def large(labels):
    (labels / "large.bin").write_bytes(os.urandom(17 * MIB + 5))
    return labels


@pytest.fixture
def strict():
    with S3Double(rules=replace(Rules.r2(), write_interval_s=0.0)) as double:
        yield double


def test_large_files_go_in_parts(large, strict):
    """Above the threshold: equal parts by R2's rules, hash in the metadata, skipped the next time."""
    settings = Settings.from_env(environ=strict.env())
    report = publish_labels(large, settings, prefix=PREFIX, multipart_above=16 * MIB)
    assert report.sent == 7
    data = (large / "large.bin").read_bytes()
    assert strict.get(f"{PREFIX}/large.bin") == data
    assert strict.model.stored(f"{PREFIX}/large.bin").kept.metadata["sha256"] == sha(data)
    assert strict.counts["UploadPart"].requests == 2
    assert index(strict)["large.bin"] == {"size": len(data), "sha256": sha(data)}
    assert publish_labels(large, settings, prefix=PREFIX, multipart_above=16 * MIB).sent == 0
    assert strict.open_uploads == 0


def test_a_lost_answer_to_complete_is_settled(large, strict):
    """The parts were joined and the answer lost: the object is looked at, and is right."""
    strict.faults.add(Fault(When(operation="CompleteMultipartUpload"), Swallow()))
    report = publish_labels(large, Settings.from_env(environ=strict.env()), prefix=PREFIX, multipart_above=16 * MIB)
    assert report.sent == 7
    assert strict.counts["UploadPart"].requests == 2
    assert strict.open_uploads == 0


def test_what_fails_in_parts_is_aborted(large, strict):
    """A part refused for good: no index, and nothing stays open in the bucket."""
    strict.faults.add(Fault(When(operation="UploadPart", part=2), Answer(403, "AccessDenied"), times=None))
    with pytest.raises(RemoteError, match=r"large\.bin"):
        publish_labels(large, Settings.from_env(environ=strict.env()), prefix=PREFIX, multipart_above=16 * MIB)
    assert strict.open_uploads == 0
    assert f"{PREFIX}/labels-index.json" not in strict.keys()


PUBLISHING = """
import os, sys
from r2d1.datasets import publish_labels
from r2d1.settings import Settings
publish_labels(sys.argv[1], Settings.from_env(environ=os.environ), prefix=sys.argv[2], multipart_above=16 << 20)
"""


def test_what_a_killed_run_left_open_is_given_up(large, strict):
    """The next run aborts that upload, whichever files it sends, and none that nobody noted here."""
    killer = Killer()
    strict.faults.add(Fault(When(operation="UploadPart", part=2), killer.hook))
    with started(PUBLISHING, large, PREFIX, env=child_env(strict.env())) as child:
        killer.victims.append(child)
        child.wait(60)
    strict.model.create_upload(f"{PREFIX}/large.bin")
    assert strict.open_uploads == 2
    settings = Settings.from_env(environ=strict.env())
    with S3Double(rules=Rules.lenient()) as other:
        publish_labels(large, Settings.from_env(environ=other.env()), prefix=PREFIX)
        assert "AbortMultipartUpload" not in other.counts
    publish_labels(large, settings, prefix=PREFIX)
    assert strict.open_uploads == 1
    publish_labels(large, settings, prefix=PREFIX)
    assert strict.counts["AbortMultipartUpload"].requests == 1
    assert not list((large / ".r2d1").glob("uploads-*"))


def test_two_that_publish_the_same_leave_each_other_alone(large, strict):
    """A second publication of a directory, while the first sends a part: both end well, and nothing stays open."""
    settings = Settings.from_env(environ=strict.env())
    reports = []

    def publish():
        reports.append(publish_labels(large, settings, prefix=PREFIX, multipart_above=16 * MIB))

    async def publish_meanwhile(call):
        await asyncio.to_thread(publish)

    strict.faults.add(Fault(When(operation="UploadPart", part=2), Hook(before=publish_meanwhile)))
    publish()
    assert len(reports) == 2
    assert strict.get(f"{PREFIX}/large.bin") == (large / "large.bin").read_bytes()
    assert strict.open_uploads == 0
    assert not list((large / ".r2d1").glob("uploads-*"))


def test_an_abort_that_is_refused_is_left_to_the_next_run(large, strict):
    """What cannot be aborted is told, noted, and aborted when the next run may do so."""
    settings = Settings.from_env(environ=strict.env())
    strict.faults.add(Fault(When(operation="AbortMultipartUpload"), Answer(403, "AccessDenied"), times=2))
    strict.faults.add(Fault(When(operation="UploadPart", part=2), Answer(403, "AccessDenied")))
    told = []
    with pytest.raises(AccessRefused):
        publish_labels(large, settings, prefix=PREFIX, multipart_above=16 * MIB)
    publish_labels(large, settings, prefix=PREFIX, observer=told.append)
    assert any("an earlier run left open could not be aborted" in getattr(event, "text", "") for event in told)
    assert strict.open_uploads == 1
    publish_labels(large, settings, prefix=PREFIX)
    assert strict.open_uploads == 0


@pytest.mark.parametrize("damage", [b"", b"{", b"[]\n", b'{"key": 1}\n', b"\xff\n"])
def test_notes_that_cannot_be_read(damage, labels, s3, settings):
    """What a kill made of them costs nothing: they are removed."""
    (labels / ".r2d1").mkdir()
    note = labels / ".r2d1" / "uploads-0123456789abcdef.jsonl"
    note.write_bytes(damage)
    publish_labels(labels, settings, prefix=PREFIX)
    assert not note.exists()


def test_no_place_for_the_journal(labels, settings, monkeypatch):
    """A directory and a home that cannot be written: the error names the place and says what to do."""
    monkeypatch.setattr(localstate.os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    with pytest.raises(UnsafeDestination, match=r"/proc/nowhere/r2d1/.* cannot keep its state here: .*XDG_STATE_HOME"):
        publish_labels(labels, settings, prefix=PREFIX)


def test_the_journal_is_private_and_small(labels, settings):
    """One row a file, in a file nobody else can read."""
    publish_labels(labels, settings, prefix=PREFIX)
    path = labels / ".r2d1" / "labels.db"
    assert path.parent.stat().st_mode & 0o077 == 0
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM hashes").fetchone() == (6,)
    db.close()
