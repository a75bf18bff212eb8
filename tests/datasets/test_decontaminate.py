"""Words, and the rows that have thirteen of them in common with a reference."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from r2d1.datasets.decontaminate import ReferenceTable, normalized, shingles_of, strong_hash, words_of, write_table
from tests.datasets import naive


def table_of(directory, references, *, memory=2**20):
    """A reference table over some texts, sorted here by NumPy."""
    rows = set()
    for block in shingles_of([text.encode() for text in references]):
        for at, fast in enumerate(block.hashes.tolist()):
            strong = strong_hash(block.words(at))
            rows.add((fast, int.from_bytes(strong[:8], "big"), int.from_bytes(strong[8:], "big")))
    columns = np.array(sorted(rows), dtype=np.uint64).reshape(-1, 3)
    block = dict(zip(("fast", "high", "low"), columns.T, strict=True))
    write_table(directory, iter([block]), len(rows), memory)
    return ReferenceTable(directory)


def test_words_of_the_original(vectors):
    """Odd texts split into the words that the original finds."""
    for vector in vectors["words"]:
        assert words_of(vector["text"]) == vector["words"]


def test_word_characters_are_those_of_str_isalnum():
    """For every character there is, a word character of ``re`` is ``str.isalnum`` or ``_``."""
    every = "".join(chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000)
    assert "".join(re.findall(r"\w", every)) == "".join(c for c in every if c.isalnum() or c == "_")


def test_ascii_has_a_short_way():
    """Every ASCII character alone, and between letters, gives the words that the long way gives."""
    for number in range(128):
        for text in (chr(number), f"A{chr(number)}b"):
            assert words_of(text) == naive.words(text)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_words_equal_the_plain_definition(text):
    """Any text splits into the words of the definition."""
    assert words_of(text) == naive.words(text)


def test_what_is_not_utf8():
    """Bytes that are no text are not made into one."""
    with pytest.raises(UnicodeDecodeError):
        normalized(b"\xff")


WORD = st.sampled_from(["a", "b", "c", "é", "x_1"])
TEXT = st.lists(WORD, max_size=40).map(" ".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(TEXT, max_size=4), st.lists(TEXT, max_size=6))
@example(["a " * 12], ["a " * 12, "a " * 13])
@example(["a " * 13], ["a " * 12, "a " * 13, "b " + "a " * 13 + "c"])
@example(["a " * 7], ["a " * 7, "a " * 7])
def test_rows_meet_exactly_when_they_share_thirteen_words(tmp_path_factory, references, texts):
    """A row is dropped if and only if a reference has thirteen of its words in sequence; texts do not flow together."""
    known = set().union(*map(naive.grams, references))
    table = table_of(tmp_path_factory.mktemp("table"), references)
    assert len(table) == len(known)
    wanted = [bool(naive.grams(text) & known) for text in texts]
    assert table.meets([text.encode() for text in texts]) == wanted


def test_a_hit_of_the_fast_hash_alone_drops_nothing(tmp_path):
    """What decides is the words: a table whose fast hashes all fit and whose words do not drops nothing."""
    text = " ".join(f"w{n}" for n in range(30)).encode()
    (block,) = shingles_of([text])
    order = np.sort(block.hashes)
    wrong = np.zeros(len(order), dtype=np.uint64)
    write_table(tmp_path, iter([{"fast": order, "high": wrong, "low": wrong}]), len(order), 2**20)
    assert ReferenceTable(tmp_path).meets([text]) == [False]


@pytest.mark.parametrize("memory", [16, 2**20])
def test_a_bitmap_too_small_costs_time_only(tmp_path, memory):
    """The bitmap may be much smaller than it would like; what is found is the same."""
    references = [" ".join(f"w{n + at}" for n in range(13)) for at in range(0, 3000, 3)]
    table = table_of(tmp_path, references, memory=memory)
    texts = [" ".join(f"w{n + at}" for n in range(13)).encode() for at in range(3000)]
    assert table.meets(texts) == [at % 3 == 0 for at in range(3000)]


def test_long_texts_are_cut_without_losing_a_run(tmp_path):
    """A text that is hashed in pieces is met wherever the thirteen words lie, also across a cut."""
    words = [f"w{number:06}" for number in range(200_000)]
    cut = 2**19 // 8
    text = " ".join(words).encode()
    for place in (0, *range(cut - 14, cut + 2, 3), len(words) - 13):
        table = table_of(tmp_path, [" ".join(words[place : place + 13])])
        assert table.meets([text, b"x " + text]) == [True, True]
    around = [" ".join(words[: place + 12]).encode() for place in (cut - 12, cut)]
    for place, part in zip((cut - 12, cut), around, strict=True):
        table = table_of(tmp_path, [" ".join(words[place : place + 13])])
        assert table.meets([part, b"x" * 2**20 + b" " + text]) == [False, True]


def test_an_empty_table_meets_nothing(tmp_path):
    """Without references nothing is dropped."""
    table = table_of(tmp_path, [])
    assert table.meets([b"a " * 50]) == [False]
