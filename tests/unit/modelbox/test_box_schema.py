"""The JSON schema of modelbox.yaml: current, valid, and of one mind with the loader."""

import json

import pytest
import yaml
from jsonschema import Draft202012Validator

from rdukit_modelbox.contract.box import box_names, find_box_file
from rdukit_modelbox.contract.describe import SCHEMA_FILE, box_schema, schema_text
from support import shows

pytestmark = shows("modelbox", "every box")


def test_the_shipped_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text() == schema_text(), "run: python -m rdukit_modelbox.contract.describe"
    Draft202012Validator.check_schema(json.loads(SCHEMA_FILE.read_text()))


@pytest.mark.parametrize("name", box_names())
def test_the_boxes_here_are_valid(name: str) -> None:
    Draft202012Validator(box_schema()).validate(yaml.safe_load(find_box_file(name).read_text()))


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "o7"}, {"colour": "red"}, {"compilerVersion": 0.1}, {"resources": {"memory": "2 GB"}},
        {"verbs": []}, {"name": "Mine!"}, {"serving": {"max_queue": 0}}, {"compiler_version": "0.1"}, {"module": "x"},
    ],
)  # fmt: skip
def test_what_the_loader_refuses_key_by_key_the_schema_refuses_too(change: dict[str, object]) -> None:
    value = yaml.safe_load(find_box_file("logreg").read_text())
    assert not Draft202012Validator(box_schema()).is_valid(value | change)


def test_a_model_or_a_module_is_needed() -> None:
    value = yaml.safe_load(find_box_file("logreg").read_text())
    del value["model"]
    validator = Draft202012Validator(box_schema())
    assert not validator.is_valid(value)
    assert validator.is_valid(value | {"module": "model.py:make"})
