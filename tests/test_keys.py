"""The bucket's layout: what names and paths are refused, and that every key built can be read back."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from r2d1 import keys
from r2d1.errors import NameRefused
from r2d1.keys import CheckpointKeys

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,127}", fullmatch=True).filter(keys.is_name)
EPOCHS = st.integers(0, keys.MAX_EPOCH)
JOB_IDS = st.text(min_size=1, max_size=40).filter(lambda text: _is_accepted(keys.check_job_id, text))
ANY_PATHS = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from(["", ".", "..", "a", "b.bin", "é", "e\u0301", "\\", "\0", "C:", "~", " ", "x" * 255]),
        max_size=5,
    ).map("/".join),
)
OF = CheckpointKeys("my_run", "chk_0042")


def _is_accepted(check, text):
    try:
        check(text)
    except NameRefused:
        return False
    return True


def test_the_layout_of_the_bucket():
    """Every key of a checkpoint is where the layout puts it, to the letter: others read them in ten years."""
    ship = "0123456789ab"
    assert OF.prefix("0") == "jobs/my_run/chk_0042"
    assert OF.sidecar(OF.prefix("0")) == "jobs/my_run/chk_0042/chk_0042.json"
    assert OF.manifest(OF.prefix("0")) == "jobs/my_run/chk_0042/r2d1.manifest.json"
    assert OF.prefix(ship) == "jobs/my_run/.r2d1/v/0123456789ab/chk_0042"
    assert OF.record("0") == "jobs/my_run/.r2d1/ships/chk_0042/0.json"
    assert OF.record(ship) == "jobs/my_run/.r2d1/ships/chk_0042/0123456789ab.json"
    assert OF.hint(42) == "jobs/my_run/.r2d1/latest/9999999999999957-chk_0042.json"
    assert OF.head == "jobs/my_run/.r2d1/heads/chk_0042.json"
    assert OF.legacy == "jobs/my_run/checkpoints/chk_0042"
    assert OF.moved_sidecar() == ".r2d1/chk_0042.json"
    assert OF.records == "jobs/my_run/.r2d1/ships/chk_0042/"


@pytest.mark.parametrize(
    "name",
    ["a", "0", "chk_0042", "slot_0", "step=100-loss=0.1", "A" * 128, "latest2", "Latest", "con1", "console", "a..b"],
)
def test_names_that_are_taken(name):
    """What trainers call their checkpoints is taken as it is."""
    assert keys.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "", "latest", "checkpoints", "a.", "a" * 129, ".hidden", "_a", "-a", "a b", "a/b", "a\\b", "é", "a\n", "..", ".",
        "con", "NUL", "nul.txt", "com1", "LPT9.bin", "aux.tar.gz", "a\0", "a:b", "a+b", "١",
    ],
)  # fmt: skip
def test_names_that_are_refused(name):
    """A name that some file system, URI or older version would take for something else is refused, shown escaped."""
    assert not keys.is_name(name)
    with pytest.raises(NameRefused) as error:
        keys.check_name(name)
    assert ascii(name) in str(error.value)


def test_latest_says_what_to_call_the_folder():
    """The error for ``latest`` names the way out."""
    with pytest.raises(NameRefused, match="slot_0"):
        keys.check_name("latest")


@pytest.mark.parametrize(
    "job_id", ["my_run", "run 7", "jöb", "日本", "a+b%20", "x" * 128, "latest", ".r2d1", "...", "a.", "ü" * 64]
)
def test_job_ids_that_are_taken(job_id):
    """A job id is any short text in NFC: it never becomes a folder."""
    assert keys.check_job_id(job_id) == job_id


@pytest.mark.parametrize(
    "job_id",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "a\nb",
        "a\0",
        "\x7f",
        "a\x85",
        "x" * 129,
        "ü" * 65,
        "e\u0301",
        "\udc80",
        "/a",
        "a/",
    ],
)
def test_job_ids_that_are_refused(job_id):
    """A job id with a slash, a control character, over 128 bytes or not in NFC cannot be shipped to."""
    with pytest.raises(NameRefused):
        keys.check_job_id(job_id)


@pytest.mark.parametrize(
    ("job_id", "is_read"), [("a/b", True), ("a/b/c", True), ("a//b", False), ("../b", False), ("a/.", False)]
)
def test_job_ids_with_slashes_can_be_read(job_id, is_read):
    """The 0.2 line took ids with slashes; they are read, but nothing that climbs."""
    assert _is_accepted(lambda text: keys.check_job_id(text, reading=True), job_id) is is_read
    assert not _is_accepted(keys.check_job_id, job_id)


@given(ANY_PATHS)
def test_no_path_leaves_its_root(path):
    """Whatever is accepted as a path lies below the folder it is joined to, under exactly this name."""
    assume(_is_accepted(keys.check_path, path))
    root = "/some/where"
    joined = os.path.join(root, path)
    assert os.path.normpath(joined) == joined
    assert joined.startswith(root + "/")
    assert "\0" not in path and "\\" not in path
    assert all(0 < len(os.fsencode(segment)) <= 255 for segment in path.split("/"))


@given(ANY_PATHS)
def test_no_path_leaves_its_root_as_a_key(path):
    """The NFC form, which is what R2 keeps, is as safe as the path itself."""
    assume(_is_accepted(keys.check_path, path))
    form = keys.nfc(path)
    assert unicodedata.is_normalized("NFC", form)
    assert not any(segment in ("", ".", "..") for segment in form.split("/"))
    assert "\\" not in form


@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/evil", "../../evil", "a/../../b", "a//b", "a/", "./a", "a/.", "..\\x", "C:\\x", "a\0b", ".", "..",
        "a/" * 600 + "b",
        "x" * 256, "é" * 128, "a/" + "b" * 256, "\udc80",
    ],
)  # fmt: skip
def test_paths_that_are_refused(path):
    """A path that climbs, is absolute, or that no file system or JSON could hold is refused, shown escaped."""
    with pytest.raises(NameRefused) as error:
        keys.check_path(path)
    assert keys.shown(path) in str(error.value)
    with pytest.raises(NameRefused):
        keys.check_paths([path])


@pytest.mark.parametrize(
    "path",
    ["a b.bin", "a+b.bin", "a%20b.bin", "loss=0.1.pt", "#1?.bin", "ü.bin", "日本.bin", ".hidden", "...", "x" * 255],
)
def test_paths_that_are_taken(path):
    """Spaces, plus, percent, hash, unicode and hidden files are ordinary."""
    assert keys.check_path(path) == path
    assert keys.check_paths([path]) == []


def test_a_very_long_name_is_shortened_in_messages():
    """An error text stays readable whatever the bucket holds."""
    with pytest.raises(NameRefused) as error:
        keys.check_path("x/" * 5000 + "\0")
    assert len(str(error.value)) < 500


def test_two_paths_of_one_form_are_refused():
    """R2 keeps one object for two spellings, so a checkpoint with both cannot be shipped."""
    with pytest.raises(NameRefused, match=r"e\\u0301.*NFC|NFC"):
        keys.check_paths(["é.bin", "e\u0301.bin"])
    with pytest.raises(NameRefused):
        keys.check_paths(["a", "a"])


@pytest.mark.parametrize("paths", [["a", "a/b"], ["a/b/c", "a/b"], ["é", "e\u0301/x"]])
def test_a_file_that_is_a_folder_of_another_is_refused(paths):
    """No file system can hold a file and a folder under one name."""
    with pytest.raises(NameRefused, match="also a folder"):
        keys.check_paths(paths)


def test_paths_that_differ_in_case_are_a_warning():
    """Two names that some file systems fold into one are told, not refused."""
    (warning,) = keys.check_paths(["Model.bin", "model.bin", "other.bin"])
    assert "'model.bin'" in warning and "'Model.bin'" in warning


def test_every_problem_is_named_at_once():
    """Validation gathers all issues before it raises."""
    with pytest.raises(NameRefused) as error:
        keys.check_paths(["../a", "ok", "/b"])
    assert "'../a'" in str(error.value) and "'/b'" in str(error.value)


@given(st.text(max_size=1100))
def test_a_checked_key_is_one_r2_takes(text):
    """A key that passes is NFC text of 1 to 1,024 bytes, and stays itself when checked again."""
    assume(_is_accepted(keys.check_key, text))
    key = keys.check_key(text)
    assert unicodedata.is_normalized("NFC", key)
    assert 1 <= len(key.encode()) <= 1024
    assert keys.check_key(key) == key


@pytest.mark.parametrize("key", ["", "k" * 1025, "é" * 513, "\ud800"])
def test_keys_that_are_refused(key):
    """A key that R2 cannot hold is refused before any request, whatever is wrong with it."""
    with pytest.raises(NameRefused):
        keys.check_key(key)


def test_the_limit_of_a_key_counts_its_nfc_form():
    """A key is measured in the form in which it is stored."""
    assert keys.check_key("e\u0301" * 512) == "é" * 512


@given(JOB_IDS, NAMES, EPOCHS)
def test_hint_keys_come_back(job_id, name, epoch):
    """What is written into a hint's key is read out of it."""
    assert keys.parse_hint_key(job_id, CheckpointKeys(job_id, name).hint(epoch)) == (epoch, name)


@given(st.lists(st.tuples(EPOCHS, NAMES), max_size=12, unique=True))
def test_hints_list_newest_first(claims):
    """In the order in which a bucket lists keys, no hint has a higher epoch than the one before it."""
    listed = sorted((CheckpointKeys("job", name).hint(epoch) for epoch, name in claims), key=lambda key: key.encode())
    parsed = [keys.parse_hint_key("job", key) for key in listed]
    epochs = [epoch for epoch, _ in parsed]
    assert epochs == sorted(epochs, reverse=True)
    assert sorted(parsed) == sorted(claims)


@pytest.mark.parametrize(
    "key",
    [
        "jobs/job/.r2d1/latest/9999999999999957-.json",
        "jobs/job/.r2d1/latest/9999999999999957-latest.json",
        "jobs/job/.r2d1/latest/999999999999957-chk.json",
        "jobs/job/.r2d1/latest/0000000000000000-chk.json",  # an epoch above 2^53-1
        "jobs/job/.r2d1/latest/x999999999999957-chk.json",
        "jobs/job/.r2d1/latest/9999999999999957-chk",
        "jobs/job/.r2d1/latest/9999999999999957-a/b.json",
        "jobs/other/.r2d1/latest/9999999999999957-chk.json",
        "jobs/jab/.r2d1/latest/9999999999999957-chk.json",
        "9999999999999957-chk.json",
        "jobs/job/.r2d1/latest/",
        "",
    ],
)
def test_what_is_no_hint(key):
    """A foreign or mangled key is no hint of this job, and never an exception."""
    assert keys.parse_hint_key("job", key) is None


@given(JOB_IDS, NAMES)
def test_head_keys_come_back(job_id, name):
    """A head's key gives its name; no other key of the checkpoint does."""
    of = CheckpointKeys(job_id, name)
    assert keys.parse_head_key(job_id, of.head) == name
    for other in (
        of.record("0"),
        of.hint(3),
        of.manifest(of.prefix("0")),
        of.head + "x",
        of.head.removeprefix("jobs/"),
    ):
        assert keys.parse_head_key(job_id, other) is None


@given(JOB_IDS, NAMES, NAMES, st.from_regex("[0-9a-f]{12}", fullmatch=True))
def test_a_prefix_belongs_to_one_checkpoint(job_id, name, other, ship):
    """The ship of a prefix is found for its own checkpoint and for no other, so foreign prefixes are never touched."""
    of = CheckpointKeys(job_id, name)
    for one in ("0", ship):
        assert of.ship_of(of.prefix(one)) == one
        assert other == name or CheckpointKeys(job_id, other).ship_of(of.prefix(one)) is None
        assert of.ship_of(of.prefix(one) + "/") is None
        assert of.ship_of(of.prefix(one) + "x") is None
    assert CheckpointKeys(job_id + "x", name).ship_of(of.prefix("0")) is None
    assert of.ship_of(f"jobs/{job_id}/.r2d1/v/{ship}x/{name}") is None
    assert of.ship_of(of.legacy) is None


@given(NAMES, NAMES)
def test_no_two_checkpoints_share_a_key(one, other):
    """No prefix of a checkpoint lies below that of another one, so no LIST or delete of one meets the other."""
    assume(one != other)
    mine, theirs = CheckpointKeys("job", one), CheckpointKeys("job", other)
    prefixes = [mine.prefix("0") + "/", mine.prefix("0" * 12) + "/", mine.records, mine.legacy + "/"]
    others = [theirs.prefix("0") + "/", theirs.prefix("0" * 12) + "/", theirs.records, theirs.legacy + "/"]
    assert not any(a.startswith(b) for a in prefixes for b in others)


def test_rows_of_the_old_line_are_told_by_their_prefix():
    """A row is legacy when its prefix lies where 0.2 kept its objects, for this job alone."""
    assert keys.is_legacy("jobs/a/checkpoints/chk_1", "a")
    assert not keys.is_legacy("jobs/a/chk_1", "a")
    assert not keys.is_legacy("jobs/ab/checkpoints/chk_1", "a")


def test_parents():
    """The folders of a path, outermost first."""
    assert keys.parents("a/b/c") == ["a", "a/b"]
    assert keys.parents("a") == []
