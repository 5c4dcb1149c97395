"""Parameters as given, checked against the legal values."""

import pytest

from rdukit.errors import IllegalValue, UnknownParameter
from rdukit_modelbox.box import Box, Verb, find_box_file, load_box
from rdukit_modelbox.legal import Legal, ParameterType, find_objection, legal_in_words
from rdukit_modelbox.parameters import check_parameters


@pytest.fixture(scope="module")
def ffn() -> Box:
    return load_box(find_box_file("ffn"))


def test_defaults_fill_what_is_not_given(ffn: Box) -> None:
    values = check_parameters(ffn, Verb.COMPILE, {"hidden_size": 64})
    assert values["hidden_size"] == 64
    assert values["batch_size"] == 32
    assert ffn.sizes_with(values) == {"num_features": 784, "num_classes": 10, "hidden_size": 64}


def test_an_unknown_parameter_is_answered_with_the_known_ones(ffn: Box) -> None:
    with pytest.raises(UnknownParameter) as caught:
        check_parameters(ffn, Verb.INFER, {"lr": 0.1})
    assert caught.value.detail == {"parameter": "lr", "legal": ["split"]}


def test_an_illegal_value_is_answered_with_the_legal_ones(ffn: Box) -> None:
    with pytest.raises(IllegalValue) as caught:
        check_parameters(ffn, Verb.COMPILE, {"batch_size": 33})
    assert "one of 16, 32, 50, 64, 100, 128" in caught.value.message
    assert caught.value.detail["legal"] == [16, 32, 50, 64, 100, 128]


@pytest.mark.parametrize("value", [0, -1, 1.5, "0.1", True, None, [0.1], float("nan"), float("inf")])
def test_a_learning_rate_outside_its_range_is_refused(ffn: Box, value: object) -> None:
    with pytest.raises(IllegalValue, match="0 < x <= 1"):
        check_parameters(ffn, Verb.TRAIN, {"lr": value})


@pytest.mark.parametrize(("given", "kept"), [(0.5, 0.5), (1, 1.0), (1.0, 1.0), (1e-9, 1e-9)])
def test_a_learning_rate_inside_its_range_is_kept_as_a_float(ffn: Box, given: float, kept: float) -> None:
    value = check_parameters(ffn, Verb.TRAIN, {"lr": given})["lr"]
    assert (type(value), value) == (float, kept)


def test_a_whole_double_is_an_int_because_protobuf_has_only_doubles(ffn: Box) -> None:
    value = check_parameters(ffn, Verb.TRAIN, {"epochs": 2.0})["epochs"]
    assert (type(value), value) == (int, 2)
    with pytest.raises(IllegalValue):
        check_parameters(ffn, Verb.TRAIN, {"epochs": 2.5})


@pytest.mark.parametrize(
    ("kind", "legal", "words"),
    [
        ("int", {"enum": [1, 2]}, "one of 1, 2"),
        ("float", {"above": 0, "maximum": 1}, "0 < x <= 1"),
        ("float", {"minimum": 0, "below": 0.5}, "0 <= x < 0.5"),
        ("int", {"minimum": 3}, "3 <= x"),
        ("int", {"maximum": 4294967295}, "x <= 4294967295"),
        ("string", {"pattern": "^a"}, "matches ^a"),
        ("bool", {}, "true or false"),
        ("string", {}, "any string"),
    ],
)
def test_legal_values_are_told_in_words(kind: str, legal: dict[str, object], words: str) -> None:
    assert legal_in_words(ParameterType(kind), Legal.model_validate(legal)) == words


def test_a_pattern_and_a_truth_value_are_checked() -> None:
    pattern = Legal(pattern="^[a-z]+$")
    assert find_objection(ParameterType.STRING, pattern, "abc") is None
    assert find_objection(ParameterType.STRING, pattern, "A1") is not None
    assert find_objection(ParameterType.BOOL, Legal(), False) is None
    assert find_objection(ParameterType.BOOL, Legal(), 0) is not None
