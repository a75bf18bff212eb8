"""The sidecar: read leniently, so that no checkpoint is lost to an odd field, and written durably."""

from __future__ import annotations

import array
import json
import logging
import math
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1 import write_sidecar
from r2d1.checkpoint import Ready, Wait, inspect, judge
from r2d1.errors import CheckpointError, FormatError, NameRefused
from r2d1.keys import MAX_EPOCH
from r2d1.sidecar import Listed, is_temporary, parse_sidecar, row_metadata
from tests.checkpoints import write_files
from tests.test_strictjson import ANY_JSON, strict_loads

FIELDS = ["name", "epoch", "timestamp", "files", "metadata", "unknown"]
FILE_LISTS = st.lists(
    ANY_JSON | st.fixed_dictionaries({"path": ANY_JSON, "size": ANY_JSON, "sha256": ANY_JSON}), max_size=4
)


def parse(document, stem="chk_0042", mtime=5.0):
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_sidecar(raw, stem=stem, mtime=mtime)


@given(st.dictionaries(st.sampled_from(FIELDS), ANY_JSON) | ANY_JSON | st.fixed_dictionaries({"files": FILE_LISTS}))
def test_any_json_in_any_field(document):
    """Whatever a trainer wrote, reading it gives a checkpoint with an epoch and a time, or a FormatError."""
    try:
        sidecar = parse(document)
    except FormatError:
        assert not isinstance(document, dict)
        return
    assert 0 <= sidecar.epoch <= MAX_EPOCH
    assert math.isfinite(sidecar.timestamp)
    assert sidecar.name
    text, _ = row_metadata(sidecar.metadata)
    strict_loads(text.encode())


@given(st.binary(max_size=200))
def test_any_bytes(raw):
    """A sidecar that is being written is a FormatError and nothing else."""
    try:
        parse(raw)
    except FormatError:
        return


def test_the_documented_sidecar():
    """The document of the convention is read without a warning, and kept byte for byte."""
    raw = b'{"name": "chk_0042", "epoch": 42, "timestamp": 1748123456.7, "files": ["checkpoint.pt", "config.json"], "metadata": {"loss": 0.043}}'
    sidecar = parse(raw, stem="other")
    assert (sidecar.name, sidecar.epoch, sidecar.timestamp) == ("chk_0042", 42, 1748123456.7)
    assert sidecar.files == (Listed("checkpoint.pt"), Listed("config.json"))
    assert sidecar.metadata == {"loss": 0.043}
    assert sidecar.raw == raw
    assert sidecar.warnings == ()


def test_what_is_missing_has_defaults():
    """Name from the file, time from its mtime, files from the folder, metadata empty; the epoch is missed once."""
    sidecar = parse({})
    assert (sidecar.name, sidecar.epoch, sidecar.timestamp, sidecar.files, sidecar.metadata) == (
        "chk_0042",
        42,
        5.0,
        None,
        {},
    )
    (warning,) = sidecar.warnings
    assert "no epoch" in warning and "42" in warning


@pytest.mark.parametrize(
    ("epoch", "is_read_as"),
    [
        (0, 0), (7, 7), (MAX_EPOCH, MAX_EPOCH), (7.0, 7), ("7", 7), ("007", 7), (1e15, 10**15), ("0" * 5000 + "7", 7), ("0", 0), (-0.0, 0),
    ],
)  # fmt: skip
def test_epochs_that_count(epoch, is_read_as):
    """An integer, an integral float or a string of digits is an epoch."""
    sidecar = parse({"epoch": epoch})
    assert sidecar.epoch == is_read_as
    assert sidecar.warnings == ()


@pytest.mark.parametrize(
    "epoch",
    [
        1.5,
        -1,
        MAX_EPOCH + 1,
        2.0**53,
        True,
        False,
        None,
        "1.5",
        "-1",
        "",
        " 7",
        "٧",
        "9" * 30,
        [],
        {},
        [7],
        math.nan,
        math.inf,
        10**30,
        "1e3",
    ],
)
def test_epochs_that_do_not_count(epoch):
    """Anything else falls back to the digits at the end of the name, with one warning: never a lost checkpoint."""
    sidecar = parse({"epoch": epoch})
    assert sidecar.epoch == 42
    assert len(sidecar.warnings) == 1


@pytest.mark.parametrize(
    ("name", "epoch"),
    [
        ("step", 0), ("step-100", 100), ("a1b22", 22), ("12", 12), ("x_00000000000000000000000042", 42), ("x٣", 0),
        (f"x{MAX_EPOCH}", MAX_EPOCH), (f"x{MAX_EPOCH + 1}", 0), ("x" + "9" * 100, 0), ("1x", 0),
    ],
)  # fmt: skip
def test_the_epoch_of_a_name(name, epoch):
    """The digits at the end are taken, ASCII ones only, and only if they are an epoch; else 0."""
    assert parse({"name": name}).epoch == epoch


def test_an_integer_of_any_length_is_no_epoch_and_no_error():
    """A number longer than Python converts costs no checkpoint and stays in the metadata, exact."""
    digits = b"7" * 6000
    sidecar = parse(b'{"epoch": ' + digits + b', "timestamp": ' + digits + b', "metadata": {"seed": ' + digits + b"}}")
    assert (sidecar.epoch, sidecar.timestamp) == (42, 5.0)
    assert row_metadata(sidecar.metadata) == ('{"seed":' + digits.decode() + "}", [])


@pytest.mark.parametrize(("name", "is_warned"), [(None, False), (7, True), ("", True), ([], True)])
def test_a_name_that_is_none(name, is_warned):
    """What is no text is no name: the file's stem is taken, and said unless there was nothing."""
    sidecar = parse({"name": name, "epoch": 1})
    assert sidecar.name == "chk_0042"
    assert bool(sidecar.warnings) is is_warned


@pytest.mark.parametrize("timestamp", [1748123456.7, 0, -5, 1.7e18, 10**18])
def test_timestamps_that_count(timestamp):
    """Any number is a time, nanoseconds included: what it means is the trainer's business."""
    assert parse({"epoch": 1, "timestamp": timestamp}).timestamp == float(timestamp)


@pytest.mark.parametrize("timestamp", ["now", True, math.nan, math.inf, [], 10**400])
def test_timestamps_that_do_not_count(timestamp):
    """What is no number is replaced by the sidecar's own time, with a warning."""
    sidecar = parse({"epoch": 1, "timestamp": timestamp})
    assert sidecar.timestamp == 5.0
    assert len(sidecar.warnings) == 1


def test_files_in_their_three_forms():
    """A name, a folder's name, and a name with size and digest."""
    sha = "AB" * 32
    sidecar = parse({"epoch": 1, "files": ["a.bin", "sub/", {"path": "b", "size": 3, "sha256": sha}, {"path": "c"}]})
    assert sidecar.files == (Listed("a.bin"), Listed("sub"), Listed("b", 3, sha.lower()), Listed("c"))
    assert [listed.is_exact for listed in sidecar.files] == [False, False, True, False]


@pytest.mark.parametrize("files", ["a.bin", [1], [{"size": 3}], {"a": 1}, 3, [None]])
def test_files_that_are_no_list_of_files(files):
    """An odd list means the whole folder, with a warning."""
    sidecar = parse({"epoch": 1, "files": files})
    assert sidecar.files is None
    assert len(sidecar.warnings) == 1


def test_files_said_to_be_none_and_not_said():
    """An empty list is a promise that there is nothing; null is silence."""
    assert parse({"epoch": 1, "files": []}).files == ()
    assert parse({"epoch": 1, "files": None}).files is None


@pytest.mark.parametrize(
    "path", ["model.pt.tmp", ".lock", "a.lock", ".~model.pt", "sub/x.tmp", "tmp-7/model.pt", "a/tmp-x/b/c"]
)
def test_temporaries(path):
    """The writers' temporaries are known by their names."""
    assert is_temporary(path)


@pytest.mark.parametrize(
    "path", ["model.pt", "tmp-7", "tmp/model.pt", "a.tmp/b", "template", "a.TMP", "lock", "~model", "xtmp-7/a"]
)
def test_what_is_no_temporary(path):
    """Ordinary files, and folders that only look like it, are shipped."""
    assert not is_temporary(path)


# -- writing --------------------------------------------------------------------------------------------


def written(folder: Path, **options):
    path = write_sidecar(folder, **options)
    assert path == folder.with_name(f"{folder.name}.json")
    return json.loads(path.read_text())


def test_a_written_sidecar_ships_at_once(tmp_path):
    """What ``write_sidecar`` writes is the documented form, lists the files and makes the checkpoint ready."""
    folder = tmp_path / "chk_0042"
    write_files(folder, {"a.bin": b"1", "sub/b.bin": b"2", ".hidden": b"", "x.tmp": b"t", "tmp-1/y": b"t"})
    fields = written(folder, epoch=42, metadata={"loss": 0.5}, timestamp=7.5)
    assert list(fields) == ["name", "epoch", "timestamp", "files", "metadata"]
    assert fields == {
        "name": "chk_0042",
        "epoch": 42,
        "timestamp": 7.5,
        "files": [
            {"path": ".hidden", "size": 0},
            {"path": "a.bin", "size": 1},
            {"path": "sub/b.bin", "size": 1},
        ],
        "metadata": {"loss": 0.5},
    }
    local = inspect(folder)
    assert isinstance(judge(local, {}), Ready)
    assert local.sidecar.warnings == ()


def test_the_time_is_now_when_none_is_given(tmp_path):
    """The timestamp says when the checkpoint was finished."""
    folder = tmp_path / "chk_1"
    write_files(folder, {"a": b""})
    fields = written(folder, epoch=1)
    assert abs(fields["timestamp"] - os.stat(folder.with_name("chk_1.json")).st_mtime) < 60
    assert fields["metadata"] == {}


def test_a_file_that_was_cut_off_is_noticed(tmp_path):
    """The sizes that were written are held against the disk, also where times mean nothing."""
    folder = tmp_path / "chk_1"
    write_files(folder, {"a.bin": b"whole"})
    write_sidecar(folder, epoch=1)
    os.truncate(folder / "a.bin", 3)
    verdict = judge(inspect(folder), {}, ordered=False)
    assert verdict == Wait("'a.bin' has 3 bytes, the sidecar says 5")


def test_state_of_ours_in_the_folder_is_not_listed(tmp_path):
    """Somebody may have pulled into the checkpoint's folder: what r2d1 keeps there is left out, as when shipping."""
    folder = tmp_path / "chk_1"
    write_files(folder, {"a.bin": b"1", ".r2d1/journal.db": b"x", "sub/.r2d1/theirs": b"2"})
    assert [entry["path"] for entry in written(folder, epoch=1)["files"]] == ["a.bin", "sub/.r2d1/theirs"]
    assert isinstance(judge(inspect(folder), {}), Ready)


class Scalar:
    """What NumPy's and torch's scalars and arrays have in common."""

    def __init__(self, value):
        self._value = value

    def tolist(self):
        return self._value


def test_values_that_json_does_not_have(tmp_path, caplog):
    """NaN and infinities become null with one warning that names them; integers stay exact, odd objects become text."""
    folder = tmp_path / "chk_1"
    write_files(folder, {"a": b""})
    metadata = {
        "loss": math.nan,
        "norm": Scalar(math.inf),
        "step": Scalar(7),
        "curve": Scalar([1.0, math.nan]),
        "seed": 10**5000,
        "path": Path("x/y"),
        "shape": (2, 3),
        "by_rank": {0: "ok"},
        "bad": "\ud800",
        "array": array.array("d", [1.0, 2.0]),
    }
    with caplog.at_level(logging.WARNING, logger="r2d1"):
        path = write_sidecar(folder, epoch=1, metadata=metadata, timestamp=math.nan)
    document = strict_loads(path.read_bytes())  # numbers as they are written
    assert document["timestamp"] is None
    assert document["metadata"] == {
        "loss": None,
        "norm": None,
        "step": "7",
        "curve": ["1.0", None],
        "seed": "1" + "0" * 5000,
        "path": "x/y",
        "shape": ["2", "3"],
        "by_rank": {"0": "ok"},
        "bad": "\ufffd",
        "array": ["1.0", "2.0"],
    }
    (record,) = caplog.records
    for name in ("timestamp", "metadata.loss", "metadata.norm", "metadata.curve[1]"):
        assert name in record.getMessage()


@pytest.mark.parametrize("epoch", [0, 7, 7.0, "7", Scalar(7)])
def test_epochs_that_can_be_written(tmp_path, epoch):
    """What reads as an epoch is written as an integer, NumPy's integers included."""
    folder = tmp_path / "slot_0"
    write_files(folder, {"a": b""})
    assert written(folder, epoch=epoch)["epoch"] in (0, 7)


@pytest.mark.parametrize("epoch", [1.5, -1, True, None, "x", 2**53, Scalar(True), Scalar([7])])
def test_epochs_that_cannot_be_written(tmp_path, epoch):
    """A wrong epoch is told to the training code at once, and nothing is written."""
    folder = tmp_path / "slot_0"
    write_files(folder, {"a": b""})
    with pytest.raises(CheckpointError, match="epoch"):
        write_sidecar(folder, epoch=epoch)
    assert os.listdir(tmp_path) == ["slot_0"]


def test_a_folder_that_is_not_there(tmp_path):
    """The folder comes first."""
    with pytest.raises(CheckpointError, match="no such folder"):
        write_sidecar(tmp_path / "chk_1", epoch=1)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_could_never_be_shipped(tmp_path):
    """A name that would be refused later is refused here, where the code that chose it can see it."""
    write_files(tmp_path / "latest", {"a": b""})
    with pytest.raises(NameRefused, match="slot_0"):
        write_sidecar(tmp_path / "latest", epoch=1)
    write_files(tmp_path / "chk_1", {"a\\b": b""})
    with pytest.raises(NameRefused, match="backslash"):
        write_sidecar(tmp_path / "chk_1", epoch=1)
    assert not (tmp_path / "chk_1.json").exists()


def test_an_old_sidecar_is_replaced_whole(tmp_path):
    """A slot's sidecar is replaced by rename, with ordinary permissions, and no temporary file stays."""
    folder = tmp_path / "slot_0"
    write_files(folder, {"a": b""})
    first = write_sidecar(folder, epoch=1)
    before = os.stat(first)
    with open(first, "rb") as reader:
        write_sidecar(folder, epoch=2)
        assert json.loads(reader.read())["epoch"] == 1  # who had it open still reads the old one, whole
    assert json.loads(first.read_text())["epoch"] == 2
    assert os.stat(first).st_ino != before.st_ino
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(os.stat(first).st_mode) == 0o666 & ~mask
    assert sorted(os.listdir(tmp_path)) == ["slot_0", "slot_0.json"]


def test_a_failed_write_leaves_the_old_sidecar(tmp_path, monkeypatch):
    """When the rename fails the old sidecar stands, and the temporary file is taken away."""
    folder = tmp_path / "slot_0"
    write_files(folder, {"a": b""})
    sidecar = write_sidecar(folder, epoch=1)

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_sidecar(folder, epoch=2)
    assert json.loads(sidecar.read_text())["epoch"] == 1
    assert sorted(os.listdir(tmp_path)) == ["slot_0", "slot_0.json"]


def test_everything_is_synced_before_the_sidecar_appears(tmp_path, monkeypatch):
    """Files, folders and the sidecar's own bytes reach the disk before its name does; then the directory's entry."""
    folder = tmp_path / "chk_1"
    write_files(folder, {"a.bin": b"1", "sub/b.bin": b"2"})
    calls = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(os.readlink(f"/proc/self/fd/{fd}")) or real_sync(fd))
    monkeypatch.setattr(os, "replace", lambda a, b: calls.append("rename") or real_replace(a, b))
    write_sidecar(folder, epoch=1)
    at = calls.index("rename")
    assert set(calls[: at - 1]) == {
        str(folder),
        str(folder / "a.bin"),
        str(folder / "sub"),
        str(folder / "sub" / "b.bin"),
    }
    assert calls[at - 1].startswith(str(tmp_path / ".chk_1.json."))
    assert calls[at + 1 :] == [str(tmp_path)]
