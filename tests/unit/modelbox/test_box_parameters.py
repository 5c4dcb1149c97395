"""Parameters as given, checked against the legal values."""

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from rdukit.errors import IllegalValue, UnknownParameter
from rdukit_modelbox.contract.allowed_values import AllowedValues, ParameterType, find_objection, format_allowed
from rdukit_modelbox.contract.box import Box, Verb, box_names, find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.contract.models import entry_of
from support import shows

pytestmark = shows("modelbox", "every box")


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
    legal = [parameter.name for parameter in ffn.parameters_of(Verb.INFER)]
    assert caught.value.detail == {"parameter": "lr", "legal": legal}


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
    assert format_allowed(ParameterType(kind), AllowedValues.model_validate(legal)) == words


def test_a_pattern_and_a_truth_value_are_checked() -> None:
    pattern = AllowedValues(pattern="^[a-z]+$")
    assert find_objection(ParameterType.STRING, pattern, "abc") is None
    assert find_objection(ParameterType.STRING, pattern, "A1") is not None
    assert find_objection(ParameterType.BOOL, AllowedValues(), False) is None
    assert find_objection(ParameterType.BOOL, AllowedValues(), 0) is not None


def dependent(**change: object) -> Box:
    """A box whose parameters depend on each other; ``change`` replaces keys of the named parameters."""
    parameters: dict[str, dict[str, object]] = {
        "prompt": {"type": "int", "default": 64, "legal": {"minimum": 1, "maximum": "context", "multipleOf": "block"}},
        "context": {"type": "int", "default": 256, "legal": {"enum": [128, 256, 512]}},
        "block": {"type": "int", "default": 8, "legal": {"minimum": 1}},
        "mode": {"type": "string", "default": "o3", "legal": {"enum": ["o0", "o1", "o3"]}},
        "rules": {"type": "string", "default": "all", "when": {"mode": ["o1"]}},
        "tiles": {
            "type": "int", "default": 4, "legal": {"enum": [1, 2, 4]},
            "cases": [
                {"when": {"mode": ["o0"]}, "legal": {"enum": [1]}, "default": 1},
                {"when": {"mode": ["o1"], "context": [512]}, "legal": {"minimum": 4, "maximum": 8}},
            ],
        },
    }  # fmt: skip
    for name, keys in change.items():
        assert isinstance(keys, dict)
        parameters[name] = parameters.get(name, {}) | keys
    return Box.model_validate(
        {
            "apiVersion": "rdukit.dev/v1", "name": "mine", "title": "Mine", "description": "A box.", "model": "logreg",
            "compilerVersion": "0.1", "mode": "o3", "target": "sn30", "verbs": ["compile", "train"],
            "parameters": [{"name": n, "verbs": ["compile"], "help": "H."} | p for n, p in parameters.items()],
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": 320}, r"1 <= x <= context \(256\), a multiple of block \(8\)"),
        ({"prompt": 192, "context": 128}, r"x <= context \(128\)"),
        ({"prompt": 20}, r"a multiple of block \(8\)"),
        ({"context": 128, "block": 128}, "64 is not valid; .*this is the default value, so pass another one"),
        ({"rules": "some"}, "valid only when mode is o1; mode is o3: leave it out"),
        ({"rules": 3}, "'rules'"),
        ({"mode": "o0", "tiles": 2}, r"expected one of 1 \(since mode is o0\)"),
        ({"mode": "o1", "context": 512, "tiles": 2}, r"4 <= x <= 8 \(since mode is o1 and context is 512\)"),
        ({"tiles": 8}, "one of 1, 2, 4"),
    ],
)
def test_what_is_legal_may_depend_on_other_parameters(given: dict[str, object], words: str) -> None:
    with pytest.raises(IllegalValue, match=words):
        check_parameters(dependent(), Verb.COMPILE, given)


def test_the_example_of_the_manual_is_legal() -> None:
    text = (Path(__file__).parents[3] / "docs/modelbox.md").read_text()
    example = yaml.safe_load("parameters:" + text.split("```yaml\nparameters:")[1].split("```")[0])
    box = dependent().model_dump(by_alias=True, exclude={"parameters"}) | example
    values = check_parameters(Box.model_validate(box), Verb.COMPILE, {"mode": "o0", "prompt": 128})
    assert (values["num_tiles"], values["fusion_rules"], values["prompt"]) == (1, "all", 128)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, {"prompt": 64, "context": 256, "block": 8, "mode": "o3", "rules": "all", "tiles": 4}),
        ({"mode": "o0"}, {"tiles": 1}),
        ({"mode": "o1", "rules": "some", "tiles": 2}, {"rules": "some", "tiles": 2}),
        ({"mode": "o1", "context": 512, "tiles": 8.0, "prompt": 512}, {"tiles": 8, "prompt": 512}),
        ({"rules": "all"}, {"rules": "all"}),
    ],
)
def test_defaults_and_values_follow_the_other_parameters(given: dict[str, object], values: dict[str, object]) -> None:
    found = check_parameters(dependent(), Verb.COMPILE, given)
    assert list(found) == ["prompt", "context", "block", "mode", "rules", "tiles"]
    assert {name: found[name] for name in values} == values


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"context": {"legal": {"minimum": "prompt"}}}, "circle: .*prompt"),
        ({"block": {"legal": {"maximum": "blocks"}}}, "parameters.2.legal.maximum: there is no parameter 'blocks'"),
        ({"block": {"legal": {"maximum": "block"}}}, "'block' cannot depend on itself"),
        ({"block": {"legal": {"maximum": "mode"}}}, "'mode' is of type string; a limit must be of type int or float"),
        ({"rules": {"when": {"mode": ["o7"]}}}, "parameters.4.when.mode.0: mode: 'o7' is not valid"),
        ({"mode": {"verbs": ["train"]}}, "compile has no parameter 'mode', so 'rules' of compile cannot depend on it"),
        ({"block": {"default": 100}}, "with all defaults: 64 is not valid.*multiple of block"),
        ({"tiles": {"cases": [{"when": {"mode": ["o0"]}, "legal": {"enum": [1]}}]}}, "give the case a default"),
    ],
)
def test_a_dependence_that_makes_no_sense_is_refused_at_load(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        dependent(**change)


def test_legal_values_are_told_for_people_and_for_machines() -> None:
    described = {p.name: p for p in dependent().parameters}
    assert described["tiles"].legal_words() == (
        "one of 1, 2, 4; when mode is o0: one of 1; when mode is o1 and context is 512: 4 <= x <= 8"
    )
    assert described["rules"].legal_words() == "any string; only when mode is o1"
    assert described["prompt"].schema_fragment() == {
        "type": "integer", "minimum": 1, "x-limits": {"maximum": "context", "multipleOf": "block"}, "default": 64,
        "description": "H.",
    }  # fmt: skip
    cases = described["tiles"].schema_fragment()["x-cases"]
    assert isinstance(cases, list)
    assert cases[0] == {"when": {"mode": ["o0"]}, "type": "integer", "enum": [1], "default": 1}


@pytest.mark.parametrize("name", box_names())
def test_each_schema_fragment_takes_the_default_and_refuses_another_type(name: str) -> None:
    for parameter in load_box(find_box_file(name)).parameters:
        fragment = parameter.schema_fragment()
        Draft202012Validator.check_schema(fragment)
        validator = Draft202012Validator(fragment)
        assert validator.is_valid(parameter.default)
        assert not validator.is_valid([])


@pytest.mark.parametrize("name", box_names())
def test_numbers_in_which_published_checkpoints_differ_are_parameters_of_compile(name: str) -> None:
    box = load_box(find_box_file(name))
    given = {size: value for size, value in (("epsilon", 0.5), ("rotary_base", 2.0)) if size in entry_of(box).sizes}
    if name.startswith("bert"):  # only ModernBERT rotates, whose sizes come from its folder
        del given["rotary_base"]
    assert given.items() <= box.sizes_with(check_parameters(box, Verb.COMPILE, given)).items()


@pytest.mark.parametrize(
    ("value", "step", "is_legal"),
    [(24, 8, True), (20, 8, False), (0.3, 0.1, True), (0.35, 0.1, False), (1e17, 3, False)],
)
def test_multiples_are_exact_for_whole_numbers_and_near_for_fractions(
    value: float, step: float, is_legal: bool
) -> None:
    legal = AllowedValues.model_validate({"multipleOf": step})
    assert (find_objection(ParameterType.FLOAT, legal, value) is None) == is_legal
