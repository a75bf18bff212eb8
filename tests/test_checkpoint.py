"""A checkpoint as it lies on disk: what would be shipped of it, and whether it may be shipped now."""

from __future__ import annotations

import hashlib
import os
import socket

import pytest

from r2d1 import checkpoint, sidecar
from r2d1.checkpoint import Ready, Wait, inspect, judge, read_sidecar
from r2d1.errors import CheckpointError, FormatError, NameRefused
from tests.checkpoints import write_checkpoint, write_files, write_sidecar


def paths_of(local):
    return [file.path for file in local.files]


def sha256_of(local):
    """The digests that the sidecar asks for, of the files as they are."""
    return {file.path: hashlib.sha256((local.folder / file.path).read_bytes()).hexdigest() for file in local.files}


def verdict(folder, **options):
    local = inspect(folder)
    return judge(local, sha256_of(local), **options)


def age(path, seconds):
    """Make a file's time ``seconds`` later than its sidecar's (earlier when negative)."""
    directory = next(parent for parent in path.parents if parent.with_name(f"{parent.name}.json").exists())
    at = os.stat(directory.with_name(f"{directory.name}.json")).st_mtime_ns + int(seconds * 1e9)
    os.utime(path, ns=(at, at))


def exact(folder, path):
    data = (folder / path).read_bytes()
    return {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


# -- what is shipped --------------------------------------------------------------------------------------


def test_all_regular_files_sorted_by_their_bytes(tmp_path):
    """Every file is found, hidden ones and sub-folders included, in the order of UTF-8 bytes; folders alone are not."""
    files = {"b.bin": b"22", "B.bin": b"", ".hidden": b"1", "sub/deep/c": b"333", "ü": b"", "a/z": b"", "a.b": b""}
    folder = write_checkpoint(tmp_path, "chk_1", 1, files)
    (folder / "empty").mkdir()
    local = inspect(folder)
    assert paths_of(local) == [".hidden", "B.bin", "a.b", "a/z", "b.bin", "sub/deep/c", "ü"]
    assert {file.path: file.identity.size for file in local.files} == {path: len(data) for path, data in files.items()}
    assert all(file.key == file.path for file in local.files)
    assert local.total_bytes == 6
    assert local.left_out == ()
    assert local.name == "chk_1"
    assert local.warnings == ("paths 'B.bin' and 'b.bin' differ only in case",)


def test_temporaries_are_left_out_and_listed(tmp_path):
    """The writer's temporaries are left out wherever they lie."""
    files = {
        "a.bin": b"",
        "model.pt.tmp": b"",
        ".lock": b"",
        "sub/.~x": b"",
        "tmp-7/model.pt": b"",
        "tmp-7/deep/y": b"",
    }
    local = inspect(write_checkpoint(tmp_path, "chk_1", 1, files))
    assert paths_of(local) == ["a.bin"]
    assert local.left_out == (".lock", "model.pt.tmp", "sub/.~x", "tmp-7/deep/y", "tmp-7/model.pt")


def test_temporaries_that_the_sidecar_names_are_shipped(tmp_path):
    """A name in ``files`` says that the file is meant, also that of a temporary folder, but only what it names."""
    files = {
        "model.pt.tmp": b"",
        "tmp-7/model.pt": b"",
        "tmp-7/x.tmp": b"",
        "sub/x.lock": b"",
        "sub/y": b"",
        "tmp-8/z": b"",
    }
    named = ["model.pt.tmp", "tmp-7", "sub"]
    local = inspect(write_checkpoint(tmp_path, "chk_1", 1, files, files=named))
    assert paths_of(local) == ["model.pt.tmp", "sub/y", "tmp-7/model.pt"]
    assert local.left_out == ("sub/x.lock", "tmp-7/x.tmp", "tmp-8/z")
    assert isinstance(judge(local, {}), Ready)


def test_leftovers_of_a_pull_are_not_shipped(tmp_path):
    """A manifest and a copy of the sidecar that 0.2.1 put into the folder are neither shipped nor listed."""
    folder = write_checkpoint(
        tmp_path, "chk_1", 1, {"a.bin": b"", "r2d1.manifest.json": b"{}", "sub/r2d1.manifest.json": b"{}"}
    )
    (folder / "chk_1.json").write_bytes((tmp_path / "chk_1.json").read_bytes())
    local = inspect(folder)
    assert paths_of(local) == ["a.bin", "sub/r2d1.manifest.json"]
    assert local.left_out == ()
    assert local.leftovers == {"chk_1.json", "r2d1.manifest.json"}


@pytest.mark.parametrize("same_size", [True, False])
def test_another_file_called_like_the_sidecar_is_stored_aside(tmp_path, same_size):
    """A ``<name>.json`` with other bytes is shipped, under a key that is not the sidecar's."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b""})
    raw = (tmp_path / "chk_1.json").read_bytes()
    (folder / "chk_1.json").write_bytes(raw[:-1] + b" " if same_size else b"{}")
    (file,) = [file for file in inspect(folder).files if file.path == "chk_1.json"]
    assert file.key == ".r2d1/chk_1.json"


def test_state_of_our_own_is_left_out(tmp_path):
    """Should somebody have pulled into the folder, r2d1's state there is not part of the checkpoint."""
    local = inspect(
        write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"", ".r2d1/journal.db": b"x", "sub/.r2d1/y": b""})
    )
    assert paths_of(local) == ["a.bin", "sub/.r2d1/y"]
    assert local.left_out == (".r2d1",)


def test_keys_are_in_composed_form(tmp_path):
    """A path is kept as the disk has it, its key as R2 will."""
    (file,) = inspect(write_checkpoint(tmp_path, "chk_1", 1, {"e\u0301.bin": b""})).files
    assert (file.path, file.key) == ("e\u0301.bin", "\u00e9.bin")


def test_two_spellings_of_one_key(tmp_path):
    """Two files that R2 would keep as one object cannot be shipped."""
    with pytest.raises(NameRefused, match="NFC"):
        inspect(write_checkpoint(tmp_path, "chk_1", 1, {"e\u0301": b"", "\u00e9": b""}))


def test_the_name_is_the_sidecars(tmp_path):
    """The folder is ``<stem>/``, everything else goes by ``name``."""
    folder = write_checkpoint(tmp_path, "slot_0", 1, {"a": b""}, name="chk_7")
    local = inspect(folder)
    assert (local.name, local.folder) == ("chk_7", folder)


def test_a_name_that_is_refused(tmp_path):
    """A sidecar cannot smuggle in a name."""
    with pytest.raises(NameRefused):
        inspect(write_checkpoint(tmp_path, "slot_0", 1, {"a": b""}, name="../evil"))


@pytest.mark.parametrize("name", [b"a\\b", b"caf\xe9.bin"])
def test_files_whose_names_cannot_be_shipped(tmp_path, name):
    """A name that is no UTF-8, or that another system would take for a path, is refused with the name escaped."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a": b""})
    with open(os.path.join(os.fsencode(folder), name), "wb"):
        pass
    with pytest.raises(NameRefused) as error:
        inspect(folder)
    str(error.value).encode("ascii")


def test_a_tree_too_deep_for_any_key(tmp_path):
    """Folders in folders without end are refused by name, not by Python's stack."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a": b""})
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=inner)
        deeper = os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        inner = deeper
    os.close(inner)
    with pytest.raises(NameRefused, match="longer than a key"):
        inspect(folder)


def test_limits_of_a_manifest_are_told_before_anything_is_sent(tmp_path, monkeypatch):
    """More files than a manifest holds, or one larger than R2 takes, fail the checkpoint when it is looked at."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a": b"", "b": b"", "c": b""})
    monkeypatch.setattr(checkpoint, "MAX_FILES", 2)
    with pytest.raises(CheckpointError, match="3 files"):
        inspect(folder)
    monkeypatch.undo()
    with open(folder / "b", "wb") as file:
        file.truncate(checkpoint.MAX_FILE_BYTES + 1)
    with pytest.raises(CheckpointError, match="b: larger"):
        inspect(folder)


# -- links and special files --------------------------------------------------------------------------------


def test_links_inside_the_folder(tmp_path):
    """A link to a file inside is shipped as that file; one to a folder inside is left out and listed."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"sub/a.bin": b"123", "b.bin": b""})
    (folder / "link.bin").symlink_to("sub/a.bin")
    (folder / "chain").symlink_to("link.bin")
    (folder / "dirlink").symlink_to("sub")
    (folder / "self").symlink_to(".")
    local = inspect(folder)
    assert {file.path: file.identity.size for file in local.files} == {
        "b.bin": 0,
        "chain": 3,
        "link.bin": 3,
        "sub/a.bin": 3,
    }
    assert local.left_out == ("dirlink", "self")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/etc/hostname", "leaves"),
        ("..", "leaves"),
        ("../other.bin", "leaves"),
        ("missing", "broken"),
        ("sub/missing", "broken"),
        ("loop", "cannot be read"),
    ],
)
def test_links_that_fail_the_checkpoint(tmp_path, target, said):
    """A link out of the folder, a broken one and a loop fail the checkpoint and are named."""
    (tmp_path / "other.bin").write_bytes(b"")
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"", "sub/b": b""})
    (folder / "loop").symlink_to(target)
    with pytest.raises(CheckpointError, match=said) as error:
        inspect(folder)
    assert str(folder / "loop") in str(error.value)


def test_special_files_fail_the_checkpoint(tmp_path):
    """A FIFO (which must not be opened), a socket and a device fail the checkpoint and are named."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b""})
    os.mkfifo(folder / "pipe")
    with pytest.raises(CheckpointError, match="pipe: neither"):
        inspect(folder)
    os.unlink(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        here = os.getcwd()
        os.chdir(folder)  # the name of a socket may not be long
        try:
            unix.bind("sock")
        finally:
            os.chdir(here)
        with pytest.raises(CheckpointError, match="sock: neither"):
            inspect(folder)


def test_a_link_to_a_device_inside(tmp_path):
    """A link hides nothing."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b""})
    os.mkfifo(folder / "z-pipe")
    (folder / "link").symlink_to("z-pipe")
    with pytest.raises(CheckpointError, match="link: neither"):
        inspect(folder)


def test_a_sidecar_that_is_a_fifo_does_not_hang(tmp_path):
    """Looking never waits for somebody at the other end of a pipe."""
    (tmp_path / "chk_1").mkdir()
    os.mkfifo(tmp_path / "chk_1.json")
    with pytest.raises(CheckpointError, match="no regular file"):
        inspect(tmp_path / "chk_1")


def test_an_unreadable_folder_is_named(tmp_path, monkeypatch):
    """A sub-folder that cannot be listed fails the checkpoint: what is in it would be missing."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"", "sub/b": b""})
    real = os.scandir

    def refuse(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CheckpointError, match="sub: cannot be listed: Permission denied"):
        inspect(folder)


def test_what_is_missing_altogether(tmp_path):
    """No sidecar and no folder are different errors, both named."""
    with pytest.raises(CheckpointError, match=r"chk_1.json: the sidecar cannot be read"):
        inspect(tmp_path / "chk_1")
    write_sidecar(tmp_path / "chk_1", 1)
    with pytest.raises(CheckpointError, match="the folder is not"):
        inspect(tmp_path / "chk_1")
    (tmp_path / "chk_1").write_bytes(b"a file")
    with pytest.raises(CheckpointError, match="the folder is not"):
        inspect(tmp_path / "chk_1")


def test_a_sidecar_that_does_not_parse_yet(tmp_path):
    """Half a sidecar is a FormatError with its path; one that is too large can never be shipped."""
    (tmp_path / "chk_1").mkdir()
    (tmp_path / "chk_1.json").write_bytes(b'{"epoch": 1')
    with pytest.raises(FormatError, match="chk_1.json"):
        inspect(tmp_path / "chk_1")
    with open(tmp_path / "chk_1.json", "wb") as file:
        file.truncate(sidecar.MAX_SIDECAR_BYTES + 1)
    with pytest.raises(CheckpointError, match="larger than"):
        inspect(tmp_path / "chk_1")


def test_the_sidecar_is_kept_byte_for_byte(tmp_path):
    """Unknown keys, NaN and odd spacing are kept as they are on disk."""
    (tmp_path / "chk_1").mkdir()
    raw = b' {"epoch" :1, "mine": [NaN], "name": "chk_1"}\n'
    (tmp_path / "chk_1.json").write_bytes(raw)
    read, identity = read_sidecar(tmp_path / "chk_1")
    assert read.raw == raw
    assert identity.size == len(raw)


# -- changes ------------------------------------------------------------------------------------------------


def test_nothing_changed_is_the_same_state(tmp_path):
    """Two looks at an untouched checkpoint agree."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"1"})
    assert inspect(folder).is_same_state(inspect(folder))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a.bin").write_bytes(b"2"),
        lambda folder: (folder / "new").write_bytes(b""),
        lambda folder: (folder / "a.bin").unlink(),
        lambda folder: os.rename(folder / "a.bin", folder / "b.bin"),
        lambda folder: write_sidecar(folder, 2),
        lambda folder: os.utime(folder / "a.bin", ns=(1, 1)),
    ],
)
def test_any_change_is_another_state(tmp_path, change):
    """Other bytes, another file, another name, another sidecar or another time are noticed without reading."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"1"})
    before = inspect(folder)
    change(folder)
    assert not before.is_same_state(inspect(folder))


def test_a_rewrite_that_restores_size_and_time_is_another_state(tmp_path):
    """The change time and the inode tell what mtime was made to hide."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a.bin": b"1"})
    before, info = inspect(folder), os.stat(folder / "a.bin")
    (folder / "copy").write_bytes(b"2")
    os.utime(folder / "copy", ns=(info.st_atime_ns, info.st_mtime_ns))
    os.replace(folder / "copy", folder / "a.bin")
    assert not before.is_same_state(inspect(folder))


# -- when it is shipped -------------------------------------------------------------------------------------


def test_an_orderly_checkpoint_is_ready_at_once(tmp_path):
    """Files first, sidecar last: nothing to wait for, with or without a list."""
    assert verdict(write_checkpoint(tmp_path, "chk_1", 1, {"a": b"", "b/c": b""})) == Ready()
    assert verdict(write_checkpoint(tmp_path, "chk_2", 1, {"a": b"", "b/c": b""}, files=["a", "b/", "b/c"])) == Ready()


def test_a_listed_file_that_is_missing_is_waited_for(tmp_path):
    """The verdict names what is missing, and a sidecar that arrived first is not stale."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a": b""}, files=["a", "b\u00fc.bin"])
    wait = verdict(folder)
    assert isinstance(wait, Wait) and not wait.is_stale
    assert r"'b\xfc.bin'" in wait.reason


@pytest.mark.parametrize("listed", ["chk_1.json", "r2d1.manifest.json", "", "sub"])
def test_nothing_counts_as_there_that_is_not(tmp_path, listed):
    """Names that r2d1 treats specially must be there like any other."""
    assert isinstance(verdict(write_checkpoint(tmp_path, "chk_1", 1, {"a": b""}, files=["a", listed])), Wait)


def test_what_is_left_out_counts_as_there(tmp_path):
    """A listed leftover or a link to a folder is there, though it is not shipped."""
    folder = tmp_path / "chk_1"
    write_files(folder, {"a": b"", "r2d1.manifest.json": b"{}", "sub/b": b""})
    (folder / "link").symlink_to("sub")
    write_sidecar(folder, 1, files=["a", "r2d1.manifest.json", "link", "chk_1.json"])
    (folder / "chk_1.json").write_bytes((tmp_path / "chk_1.json").read_bytes())
    assert verdict(folder) == Ready()


def test_a_listed_name_in_another_unicode_form(tmp_path):
    """Some systems spell a name on disk otherwise than the trainer wrote it."""
    assert verdict(write_checkpoint(tmp_path, "chk_1", 1, {"e\u0301": b""}, files=["\u00e9"])) == Ready()


def test_described_files_must_be_as_described(tmp_path):
    """Size and SHA-256 in ``files`` are compared, and the file that differs is named."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {"a": b"123", "b": b"456"})
    good = exact(folder, "a")
    write_sidecar(folder, 1, files=[good, "b"])
    assert verdict(folder) == Ready()
    write_sidecar(folder, 1, files=[{**good, "size": 4}])
    assert "'a' has 3 bytes" in verdict(folder).reason
    write_sidecar(folder, 1, files=[{**good, "sha256": "0" * 64}])
    assert "'a' has another SHA-256" in verdict(folder).reason
    write_sidecar(folder, 1, files=[{"path": "a", "sha256": good["sha256"].upper()}])
    assert verdict(folder) == Ready()


def test_a_file_newer_than_the_sidecar_waits_for_the_next_one(tmp_path):
    """A slot being written again: only another sidecar can help, and the file is named."""
    folder = write_checkpoint(tmp_path, "slot_0", 1, {"a": b"", "b": b""})
    age(folder / "b", 1)
    wait = verdict(folder)
    assert isinstance(wait, Wait) and wait.is_stale
    assert "'b' is newer" in wait.reason
    write_sidecar(folder, 2)
    age(folder / "b", -1)
    assert verdict(folder) == Ready()


def test_equal_times_are_in_order(tmp_path):
    """A coarse clock is no reason to wait."""
    folder = write_checkpoint(tmp_path, "slot_0", 1, {"a": b""})
    age(folder / "a", 0)
    assert verdict(folder) == Ready()


def test_times_may_be_told_to_mean_nothing(tmp_path):
    """``ordered=False`` looks at the list alone."""
    folder = write_checkpoint(tmp_path, "slot_0", 1, {"a": b""}, files=["a"])
    age(folder / "a", 5)
    assert verdict(folder, ordered=False) == Ready()
    write_sidecar(folder, 1, files=["a", "missing"])
    assert isinstance(verdict(folder, ordered=False), Wait)


def test_newer_files_that_are_proven_are_ready(tmp_path):
    """When every entry gives size and SHA-256 and they agree, times do not matter; anything else newer does."""
    folder = write_checkpoint(tmp_path, "slot_0", 1, {"a": b"1", "b": b"2", "old": b""})
    write_sidecar(folder, 1, files=[exact(folder, "a"), exact(folder, "b")])
    age(folder / "a", 5)
    assert verdict(folder) == Ready()
    age(folder / "old", 5)
    assert "'old' is newer" in verdict(folder).reason
    age(folder / "old", -5)
    write_sidecar(folder, 1, files=[exact(folder, "a"), "b"])
    age(folder / "a", 5)
    assert verdict(folder).is_stale


def test_only_shipped_files_are_asked_for_their_time(tmp_path):
    """A temporary that is newer is not part of this version; it will be when it is renamed."""
    folder = write_checkpoint(tmp_path, "slot_0", 1, {"a": b"", "b.tmp": b""})
    age(folder / "b.tmp", 5)
    assert verdict(folder) == Ready()


def test_a_folder_without_files(tmp_path):
    """No file at all is not shipped, unless the sidecar says so."""
    folder = write_checkpoint(tmp_path, "chk_1", 1, {})
    assert "no file" in verdict(folder).reason
    write_sidecar(folder, 1, files=[])
    assert verdict(folder) == Ready()
