"""What a cache holds, and how its files are read."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

from r2d1.datasets.parquet import (
    list_files,
    plan_slices,
    read_batches,
    read_columns,
    string_columns,
    texts_of,
    values_of,
    write_columns,
)
from r2d1.errors import FormatError
from tests.datasets.making import GOLDEN, write_parquet


def texts(cache, name="text", columns=("text",)):
    """All texts of the source ``s``, with the number of their row in the file."""
    found = []
    for file in list_files(cache, "s"):
        for part in plan_slices(cache, file, columns):
            for first_row, batch in read_batches(cache, part, columns):
                found += [(file.name, first_row + at, text) for at, text in enumerate(texts_of(batch, name))]
    return found


def test_every_parquet_file_below_the_source_counts(tmp_path):
    """Names decide, by their end and nothing else: hidden ones, sub-folders and links to files too."""
    for name in ("a.parquet", ".hidden.parquet", "x/.y/b c.parquet", ".parquet", "x/[1]*.parquet"):
        write_parquet(tmp_path / "s" / name, {"text": [name]})
    write_parquet(tmp_path / "elsewhere" / "l.parquet", {"text": ["linked"]})
    (tmp_path / "s" / "link.parquet").symlink_to(tmp_path / "elsewhere" / "l.parquet")
    (tmp_path / "s" / "folder").symlink_to(tmp_path / "elsewhere")
    for name in ("b.PARQUET", "c.parquet.tmp", "d.txt"):
        (tmp_path / "s" / name).write_bytes(b"no")
    found = sorted(text.decode() for _, _, text in texts(tmp_path))
    assert found == [".hidden.parquet", ".parquet", "a.parquet", "linked", "x/.y/b c.parquet", "x/[1]*.parquet"]


def test_the_folder_of_a_source_may_be_a_link(tmp_path):
    """A source that lies elsewhere is followed; one that is not there has no files."""
    write_parquet(tmp_path / "elsewhere" / "a.parquet", {"text": ["x"]})
    (tmp_path / "s").symlink_to("elsewhere")
    assert texts(tmp_path) == [("s/a.parquet", 0, b"x")]
    assert list_files(tmp_path, "t") == []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b""), "cannot be read as parquet"),
        (lambda path: path.write_bytes(b"PAR1 no"), "cannot be read as parquet"),
        (lambda path: path.symlink_to("nowhere"), "cannot be read: No such file"),
        (lambda path: path.mkdir(), "is a folder; only files may end in .parquet"),
        (
            lambda path: write_parquet(path, pa.table([["a"], ["b"]], names=["text", "text"])),
            "has two columns of the name 'text'",
        ),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path, make, said):
    """An empty file, a broken link, a folder and two columns of one name are errors with the path."""
    (tmp_path / "s").mkdir()
    make(tmp_path / "s" / "bad.parquet")
    with pytest.raises(FormatError, match=rf"s/bad.parquet'? .*{said}"):
        texts(tmp_path)


def test_a_file_that_changed_is_not_read(tmp_path):
    """A file other than the one that was planned for is an error, not a silent mixture."""
    write_parquet(tmp_path / "s" / "a.parquet", {"text": ["x"]})
    (file,) = list_files(tmp_path, "s")
    (part,) = plan_slices(tmp_path, file, ["text"])
    write_parquet(tmp_path / "s" / "a.parquet", {"text": ["other"]})
    with pytest.raises(FormatError, match="'s/a.parquet' changed while it was being used"):
        list(read_batches(tmp_path, part, ["text"]))


def test_text_of_every_string_type():
    """String, large string, string view and dictionary give their bytes; null and other types give nothing."""
    values = ["a", None, "é", "a"]
    columns = [pa.array(values), pa.array(values, pa.large_string()), pa.array(values).dictionary_encode()]
    columns.append(pa.array(values, pa.large_string()).dictionary_encode())
    if hasattr(pa, "string_view"):  # from pyarrow 16 on
        columns.append(pa.array(values, pa.string_view()))
    for column in columns:
        batch = pa.RecordBatch.from_pydict({"text": column})
        assert texts_of(batch, "text") == [b"a", None, "é".encode(), b"a"]
    for other in (pa.array([1, 2]), pa.array([b"x", b"y"]), pa.array([["x"], ["y"]]), pa.nulls(2)):
        assert texts_of(pa.RecordBatch.from_pydict({"text": other}), "text") == [None, None]
    assert texts_of(pa.RecordBatch.from_pydict({"x": ["a"]}), "text") == [None]


def test_string_columns_are_the_top_level_ones():
    """Lists, structs, binary and numbers are no strings and leave no gap; the order is the schema's."""
    batch = pa.RecordBatch.from_pydict(
        {
            "b": ["1", None],
            "n": [1, 2],
            "a": pa.array(["2", "3"]).dictionary_encode(),
            "l": [["x"], ["y"]],
            "r": [b"x", b"y"],
        }
    )
    assert string_columns(batch) == [[b"1", None], [b"2", b"3"]]
    assert values_of(batch, "n", "f") == [1, 2]
    assert values_of(batch, "z", "f") == [None, None]


def test_rows_keep_their_numbers_through_row_groups(tmp_path):
    """Slices and batches number rows through the whole file, however it is cut."""
    rows = [f"{number} " + "x" * (number % 7) * 1000 for number in range(5000)]
    write_parquet(tmp_path / "s" / "a.parquet", {"other": rows, "text": rows}, row_group_size=333)
    found = texts(tmp_path)
    assert [row for _, row, _ in found] == list(range(5000))
    assert [text.decode() for _, _, text in found] == rows


def test_large_files_are_cut_into_slices(tmp_path):
    """A file larger than a slice gives several, which cover its row groups without gap or overlap."""
    rows = [os.urandom(500_000).hex() for _ in range(100)]
    write_parquet(tmp_path / "s" / "a.parquet", {"text": rows}, row_group_size=20, use_dictionary=False)
    (file,) = list_files(tmp_path, "s")
    slices = plan_slices(tmp_path, file, ["text"])
    assert [part.groups for part in slices] == [(0, 4), (4, 5)]
    assert [(part.first_row, part.rows) for part in slices] == [(0, 80), (80, 20)]
    assert [text.decode() for _, _, text in texts(tmp_path)] == rows


def test_files_without_the_column_still_have_rows(tmp_path):
    """Rows of a file that lacks the text column are read as rows without a text; an empty file has none."""
    write_parquet(tmp_path / "s" / "a.parquet", {"x": [1, 2]})
    write_parquet(tmp_path / "s" / "b.parquet", {"x": pa.array([], pa.int64())})
    assert texts(tmp_path) == [("s/a.parquet", 0, None), ("s/a.parquet", 1, None)]


def test_columns_written_come_back(tmp_path):
    """Number columns survive a round through a file, and an empty file gives empty columns or no block."""
    import numpy as np

    write_columns(tmp_path / "c", {"k": np.array([1, 2**64 - 1], dtype=np.uint64)})
    (block,) = read_columns(tmp_path / "c")
    assert block["k"].tolist() == [1, 2**64 - 1]
    write_columns(tmp_path / "e", {"k": np.array([], dtype=np.uint64)})
    assert sum(len(block["k"]) for block in read_columns(tmp_path / "e")) == 0


def test_the_golden_caches_hold_the_same_rows():
    """Both layouts of the golden data give the same texts, whatever their files, codecs and row groups."""
    both = []
    for name in ("cache", "cache-shuffled"):
        cache = GOLDEN / name
        rows = []
        for file in list_files(cache, "tales"):
            for part in plan_slices(cache, file, ["text"]):
                rows += [text for _, batch in read_batches(cache, part, ["text"]) for text in texts_of(batch, "text")]
        both.append(sorted(rows, key=lambda text: (text is None, text)))
    assert both[0] == both[1]
    assert len(both[0]) == 163


def test_a_source_that_may_not_be_read(tmp_path):
    """A folder that cannot be listed is an error, not an empty source."""
    (tmp_path / "s").write_bytes(b"a file in the place of a folder")
    with pytest.raises(FormatError, match="s cannot be read: Not a directory"):
        list_files(tmp_path, "s")
