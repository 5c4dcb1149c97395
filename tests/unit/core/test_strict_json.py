"""JSON that all readers read alike: words for the floats that it lacks, and no key twice."""

import json
import math
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.wrappers_pb2 import DoubleValue
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import write_json_atomic
from rdukit.strict_json import WORDS, as_words, find_number, json_text, read_json, refuse_duplicates
from support import shows

pytestmark = shows("wire")


def refuse_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@given(st.floats())
def test_a_float_is_told_as_protobuf_tells_it_and_read_back(value: float) -> None:
    told = as_words(value)
    assert told == MessageToDict(DoubleValue(value=value)) or told == value
    assert (found := find_number(json.loads(json_text(value), parse_constant=refuse_constant))) is not None
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_words_stand_at_any_depth_and_in_files(tmp_path: Path) -> None:
    value = {"a": [math.nan, 1.5], "b": {"c": -math.inf}, "d": (1, "x", None), 2: math.inf}
    words = {"a": ["NaN", 1.5], "b": {"c": "-Infinity"}, "d": [1, "x", None], "2": "Infinity"}
    assert as_words(value) == words
    assert json_text(value) == json.dumps(words, separators=(",", ":"))
    write_json_atomic(tmp_path / "report.json", value)
    assert json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse_constant) == words


@pytest.mark.parametrize("value", [None, "nan", "inf", "infinity", "1", True, [], {}])
def test_what_stands_for_no_number_is_none(value: object) -> None:
    assert find_number(value) is None
    assert set(WORDS) == {"NaN", "Infinity", "-Infinity"}


def test_an_integer_beyond_floats_is_infinite_as_a_float_is() -> None:
    assert [find_number(json.loads(f"{sign}1{400 * '0'}")) for sign in ("", "-")] == [math.inf, -math.inf]


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"x": {"b": 1, "a": {}, "a": 2}}]', '{"\\u0061": 1, "a": 2}'])
def test_a_key_that_comes_twice_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(InvalidArgument, match="the key 'a' twice") as caught:
        read_json(text)
    assert caught.value.detail["field"] == "a"


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgument, match="malformed"):
        refuse_duplicates(text)


def test_equal_keys_in_different_objects_are_legal() -> None:
    assert read_json(b'[{"a": 1}, {"a": {"a": 2}}]') == [{"a": 1}, {"a": {"a": 2}}]
