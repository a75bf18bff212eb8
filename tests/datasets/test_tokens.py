"""Tokenizers: bytes, and a ``tokenizer.json`` held to its pin."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from r2d1.datasets.mixes import TokenizerEntry
from r2d1.datasets.tokens import ByteTokenizer, FileTokenizer, open_tokenizer
from r2d1.errors import ConfigError, FormatError, IntegrityError
from tests.datasets.making import GOLDEN, sha


def entry(data, **changes):
    values = {
        "id": "t",
        "repo": "a/b",
        "revision": "0" * 40,
        "filename": "tokenizer.json",
        "licence": "x",
        "end_token": None,
    }
    return TokenizerEntry(**{**values, "sha256": sha(data), **changes})


def saved(path, vocab, **options):
    """A tokenizer of whole words, saved; returns its bytes."""
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for name, values in options.items():
        getattr(tokenizer, name)(**values)
    tokenizer.save(str(path))
    return path.read_bytes()


def test_the_byte_tokenizer(vectors):
    """Name, hash and end id are the original's; every byte is shifted by three."""
    wanted = vectors["bytes_tokenizer"]
    found = open_tokenizer(GOLDEN, None)
    assert isinstance(found, ByteTokenizer)
    assert found.pin.to_json() == {"name": wanted["name"], "sha256": wanted["sha256"]}
    ids = found.encode([bytes(range(256)), b""])
    assert ids[0].tolist() == [*range(3, 259), wanted["end_id_before_shift"] + 3]
    assert ids[1].tolist() == [260]


def test_special_tokens_in_a_text_are_tokens_and_none_are_added():
    """A special token spelled out becomes that token; the template's own are left out; the end token closes."""
    data = (GOLDEN / "cache" / "tokenizer.json").read_bytes()
    found = FileTokenizer(GOLDEN / "cache" / "tokenizer.json", entry(data))
    spelled, empty = found.encode([b"<|endoftext|>[CLS]", b""])
    assert spelled.tolist() == [2003, 2004, 2003]
    assert empty.tolist() == [2003]
    assert spelled.dtype == np.uint16


def test_truncation_and_padding_are_switched_off(tmp_path):
    """What a file says about cutting and filling does not touch documents."""
    data = saved(
        tmp_path / "tokenizer.json",
        {"?": 0, "a": 1, "end": 2},
        enable_truncation={"max_length": 4},
        enable_padding={"length": 8},
    )
    assert json.loads(data)["truncation"]["max_length"] == 4
    found = FileTokenizer(tmp_path / "tokenizer.json", entry(data, end_token="end"))
    assert [len(ids) for ids in found.encode([b"a " * 1000, b"a"])] == [1001, 2]


def test_the_end_token_must_be_known(tmp_path):
    """Without the usual end token the registry must name one, and the error says how."""
    data = saved(tmp_path / "tokenizer.json", {"?": 0, "stop": 1})
    with pytest.raises(ConfigError, match=r"has no token '<\|endoftext\|>' .* end_token of tokenizer t"):
        FileTokenizer(tmp_path / "tokenizer.json", entry(data))
    with pytest.raises(ConfigError, match="has no token 'halt'"):
        FileTokenizer(tmp_path / "tokenizer.json", entry(data, end_token="halt"))
    assert FileTokenizer(tmp_path / "tokenizer.json", entry(data, end_token="stop")).encode([b""])[0].tolist() == [4]


def test_ids_above_65535_are_errors(tmp_path):
    """An id that the shift lifts above 65535 is refused, as a text's id and as the end token's."""
    data = saved(tmp_path / "tokenizer.json", {"?": 0, "stop": 1, "most": 65532, "over": 65533})
    found = FileTokenizer(tmp_path / "tokenizer.json", entry(data, end_token="stop"))
    assert found.encode([b"most"])[0].tolist() == [65535, 4]
    with pytest.raises(OverflowError, match="token id 65536"):
        found.encode([b"stop", b"over"])
    with pytest.raises(OverflowError, match="token id 65536"):
        FileTokenizer(tmp_path / "tokenizer.json", entry(data, end_token="over")).encode([b""])


def test_another_file_than_the_pinned_one(tmp_path):
    """A tokenizer with another hash, a missing one, and one that is none are told apart."""
    data = (GOLDEN / "cache" / "tokenizer.json").read_bytes()
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file.*put tokenizer.json of a/b at revision 000"):
        FileTokenizer(tmp_path / "tokenizer.json", entry(data))
    shutil.copy(GOLDEN / "cache" / "tokenizer.json", tmp_path)
    with pytest.raises(IntegrityError, match="the registry pins 0000"):
        FileTokenizer(tmp_path / "tokenizer.json", entry(data, sha256="0" * 64))
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(FormatError, match="cannot be read as a tokenizer"):
        FileTokenizer(tmp_path / "tokenizer.json", entry(b"{}"))


def test_text_that_is_no_utf8():
    """Bytes that are no text are an error for a tokenizer that reads text."""
    data = (GOLDEN / "cache" / "tokenizer.json").read_bytes()
    with pytest.raises(UnicodeDecodeError):
        FileTokenizer(GOLDEN / "cache" / "tokenizer.json", entry(data)).encode([b"\xff"])
