"""JSON as r2d1 reads it (leniently) and writes it (strictly, exactly, canonically)."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r2d1 import strictjson
from r2d1.errors import FormatError

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates too
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT
ANY_JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4), max_leaves=20
)
STRICT_TEXT = st.text(max_size=20)  # no surrogates
STRICT_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | STRICT_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(STRICT_TEXT, inner, max_size=4),
    max_leaves=20,
)


def refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def strict_loads(raw):
    """What a parser that forgives nothing makes of the bytes; numbers stay as they are written."""
    return json.loads(raw.decode("utf-8", "strict"), parse_constant=refuse, parse_int=str, parse_float=str)


@given(ANY_JSON)
def test_what_is_written_is_always_json(value):
    """Whatever a sidecar held, the bytes written are valid UTF-8 and valid JSON."""
    raw = strictjson.encode(strictjson.clean(value))
    strict_loads(raw)
    assert b"\xed\xa0" not in raw


@given(STRICT_JSON)
def test_strict_values_come_back(value):
    """What JSON can hold is read back as it was: nothing is rounded, reordered in lists, or renamed."""
    assert strictjson.parse(strictjson.encode(strictjson.clean(value))) == value


@given(ANY_JSON)
def test_writing_is_canonical(value):
    """The bytes of a value do not depend on the order in which its keys were made, and cleaning twice changes nothing."""
    raw = strictjson.encode(strictjson.clean(value))
    again = strictjson.parse(raw)
    turned = dict(reversed(again.items())) if isinstance(again, dict) else again
    assert strictjson.encode(strictjson.clean(turned)) == raw
    assert strictjson.encode(strictjson.clean(strictjson.clean(value))) == raw


@given(st.integers(0, 20_000), st.booleans())
def test_integers_of_any_size_stay_exact(digits, is_negative):
    """An integer is written with all its digits, though Python itself refuses to convert very long ones."""
    text = ("-" if is_negative else "") + "7" * (digits + 1)
    raw = strictjson.encode(strictjson.clean(strictjson.parse(b'{"n":' + text.encode() + b"}")))
    assert raw == b'{"n":' + text.encode() + b"}"


@pytest.mark.parametrize("digits", [639, 640, 641, 1000, 5000])
@pytest.mark.parametrize("limit", [640, 4300, 0])
def test_integers_do_not_depend_on_pythons_limit(limit, digits):
    """The limit that Python sets on conversions is the process's own business, and loses nobody a number."""
    number, before = 10 ** (digits - 1) + 7, sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(limit)
    try:
        raw = strictjson.encode(strictjson.clean({"n": number, "m": -number}))
        again = strictjson.parse(raw)
        assert strictjson.encode(strictjson.clean(again)) == raw
    finally:
        sys.set_int_max_str_digits(before)
    text = b"1" + b"0" * (digits - 2) + b"7"
    assert raw == b'{"m":-' + text + b',"n":' + text + b"}"


def test_digits_that_are_text_stay_text():
    """Only integers become numbers again: a text of digits is written in quotes."""
    text = "7" * 5000
    assert strictjson.encode(strictjson.clean({"n": text})) == b'{"n":"' + text.encode() + b'"}'


def test_what_json_has_no_number_for():
    """NaN and the infinities are read, become null where r2d1 writes, and are named."""
    value = strictjson.parse(b'{"loss": NaN, "deep": {"list": [1, Infinity, [-Infinity]]}, "ok": 1.5, "big": 1e999}')
    lost = []
    assert strictjson.clean(value, lost=lost) == {
        "loss": None,
        "deep": {"list": [1, None, [None]]},
        "ok": 1.5,
        "big": None,
    }
    assert lost == ["loss", "deep.list[1]", "deep.list[2][0]", "big"]


def test_a_lone_value_that_is_lost_is_named_too():
    """The name of the value itself says that there is none."""
    lost = []
    assert strictjson.clean(math.nan, lost=lost) is None
    assert lost == ["(the value itself)"]


def test_lone_surrogates():
    """A lone surrogate becomes U+FFFD, in keys, values and the names of what was lost; pairs are characters."""
    value = strictjson.parse(rb'{"a\ud800": "\udfff!", "ok": "\ud83d\ude00", "\udc00": NaN}')
    lost = []
    clean = strictjson.clean(value, lost=lost)
    assert clean == {"a\ufffd": "\ufffd!", "ok": "\U0001f600", "\ufffd": None}
    assert lost == ["\ufffd"]
    strict_loads(strictjson.encode(clean))


def test_canonical_form():
    """Sorted keys, no spaces, characters as they are: to the byte."""
    value = {"b": [1, 2.5, True, None], "a": {"ü": "日", "A": '"\n'}}
    assert strictjson.encode(value) == '{"a":{"A":"\\"\\n","ü":"日"},"b":[1,2.5,true,null]}'.encode()


def test_the_form_for_people():
    """Files that people read keep the order they were given, indented."""
    assert strictjson.dump({"b": 1, "a": [2]}, is_pretty=True) == '{\n  "b": 1,\n  "a": [\n    2\n  ]\n}'


def test_a_byte_order_mark_is_skipped():
    """Some editors write one."""
    assert strictjson.parse(b"\xef\xbb\xbf{}") == {}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"{'a': 1}", b"\xff", b'{"a": \xc3}', b"nul", b'{"a": 1} x', b"[" * 100_000, b"[" * 500 + b"]" * 500],
)
def test_what_is_not_json(raw):
    """Anything else is a FormatError: half a file, another encoding, a document made to exhaust the stack."""
    with pytest.raises(FormatError):
        strictjson.parse(raw)


def test_depth_up_to_the_limit_is_written():
    """What is read can be written: the limit of depth leaves room on the stack for every walk."""
    depth = strictjson.MAX_DEPTH
    raw = b'{"a":' * (depth // 2) + b"[" * (depth // 2) + b"]" * (depth // 2) + b"}" * (depth // 2)
    assert strictjson.encode(strictjson.clean(strictjson.parse(raw))) == raw


@pytest.mark.parametrize("raw", [b"[]", b"1", b"null", b'"x"', b"NaN"])
def test_only_an_object_is_an_object(raw):
    """A document of ours is an object."""
    with pytest.raises(FormatError, match="expected a JSON object"):
        strictjson.parse_object(raw)


def test_a_value_nested_too_deep_is_a_format_error():
    """A value from a program, not from a file, cannot exhaust the stack either."""
    value = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(FormatError, match="nested"):
        strictjson.clean(value)
    with pytest.raises(FormatError, match="nested"):
        strictjson.dump(value)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (-2.5, -2.5),
        (10**300, 1e300),
        (True, None),
        ("1", None),
        (None, None),
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        ([], None),
    ],
)
def test_finite_numbers(value, number):
    """A number is a float that is one: no bool, no text, nothing that overflows."""
    assert strictjson.as_finite(value) == number


def test_what_other_objects_become():
    """A caller may say what its own objects mean; keys of any kind become text as ``json`` would have it."""
    cleaned = strictjson.clean({2: {2, 3}, None: 4, True: 5, 1.5: 6, ("a",): 7}, other=sorted)
    assert cleaned == {"2": [2, 3], "null": 4, "true": 5, "1.5": 6, "('a',)": 7}


def test_an_object_nobody_knows_is_an_error():
    """Writing never guesses."""
    with pytest.raises(TypeError, match="set is not JSON"):
        strictjson.dump({"a": {1}})
