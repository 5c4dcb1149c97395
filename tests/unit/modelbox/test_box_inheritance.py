"""What a box inherits from a task, what it may change of it, and how what it may not change is reported."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from rdukit.errors import InvalidArgument
from rdukit_modelbox.cli.main import box as box_commands
from rdukit_modelbox.contract.box import Box, Verb, box_names, find_box_file, load_box
from rdukit_modelbox.contract.describe import box_schema, describe
from rdukit_modelbox.contract.inheritance import read_task, task_names
from support import shows
from support.tiers import every_third_short

pytestmark = shows("modelbox", "box", "every box")

HEAD = """\
apiVersion: rdukit.dev/v1
extends: image-classification
name: mine
title: Mine
description: A box.
model: logreg
compilerVersion: "0.1"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "modelbox.yaml"
    path.write_text(HEAD + text)
    return path


def load(folder: Path, text: str = "") -> Box:
    return load_box(write(folder, text))


def faults(folder: Path, text: str) -> list[tuple[int, str, str]]:
    """Line after the head, key and message of each fault."""
    with pytest.raises(InvalidArgument) as caught:
        load(folder, text)
    found: Any = caught.value.detail["faults"]
    assert all(f"modelbox.yaml:{f['line']}:{f['column']}: {f['key']}: " in caught.value.message for f in found)
    return [(f["line"] - HEAD.count("\n"), f["key"], f["message"]) for f in found]


def names(box: Box, verb: Verb) -> list[str]:
    return [parameter.name for parameter in box.parameters_of(verb)]


@pytest.mark.parametrize("name", box_names())
def test_a_shipped_box_is_short(name: str) -> None:
    lines = find_box_file(name).read_text().splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 120 for line in lines)


@pytest.mark.parametrize("name", box_names())
def test_a_new_box_is_short(tmp_path: Path, name: str) -> None:
    arguments = ["new", "mine", "--folder", str(tmp_path), "--like", name]
    assert CliRunner().invoke(box_commands, arguments).exit_code == 0
    lines = (tmp_path / "modelbox.yaml").read_text().splitlines()
    assert len([line for line in lines if not line.startswith("#")]) <= 40


@pytest.mark.parametrize("task", task_names())
def test_every_task_is_valid_and_has_all_four_verbs(task: str) -> None:
    box = Box.model_validate(
        {"apiVersion": "rdukit.dev/v1", "name": "a", "title": "A", "description": "A.", "model": "a"}
        | {"compilerVersion": "0.1"}
        | read_task(task)
    )
    assert set(box.verbs) == set(Verb)
    # What a box overrides by verb must not change another verb's parameter.
    assert all(len(parameter.verbs) == 1 for parameter in box.parameters)


@pytest.mark.parametrize("name", every_third_short(box_names()))
def test_the_whole_document_that_describe_prints_is_the_same_box(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(box_commands, ["describe", name, "--yaml"])
    (tmp_path / "modelbox.yaml").write_text(result.output)
    whole = yaml.safe_load(result.output)
    assert not {"extends", "override", "remove"} & set(whole)
    assert len(whole["parameters"]) > 30
    assert describe(load_box(tmp_path / "modelbox.yaml")) == describe(load_box(find_box_file(name)))


def test_a_box_has_its_tasks_parameters_and_artifacts(tmp_path: Path) -> None:
    box = load(tmp_path)
    assert (box.mode, box.target, set(box.verbs)) == ("o3", "sn30", set(Verb))
    assert {"normalize", "format"} < set(names(box, Verb.PREPROCESS))
    assert [slot.name for slot in box.slots_of(Verb.TRAIN).inputs] == ["pef", "dataset", "checkpoint"]


def test_a_box_overrides_removes_and_adds(tmp_path: Path) -> None:
    box = load(
        tmp_path,
        "mode: o1\n"
        "override:\n"
        "  compile: {batch_size: {default: 16, legal: {enum: [16, 32]}}}\n"
        "  train: {epochs: {legal: {maximum: 7}, help: Rounds., unit: rounds}, lr: 0.5}\n"
        "remove:\n  train: [patience, momentum]\n"
        "parameters:\n"
        "  - {name: momentum, type: float, default: 2.0, legal: {maximum: 5}, verbs: [train], help: More.}\n",
    )
    found = {(p.verbs[0], p.name): p for p in box.parameters}
    epochs, lr = found[Verb.TRAIN, "epochs"], found[Verb.TRAIN, "lr"]
    assert (epochs.default, epochs.legal_words(), epochs.help, epochs.unit) == (5, "1 <= x <= 7", "Rounds.", "rounds")
    assert (lr.default, lr.legal_words()) == (0.5, "0 < x <= 1")
    assert found[Verb.COMPILE, "batch_size"].legal_words() == "one of 16, 32"
    assert found[Verb.TRAIN, "momentum"].default == 2.0
    assert "patience" not in names(box, Verb.TRAIN)
    assert box.mode == "o1"


def test_fewer_verbs_have_fewer_parameters_and_artifacts(tmp_path: Path) -> None:
    box = load(tmp_path, "verbs: [compile, infer]\n")
    assert {verb for p in box.parameters for verb in p.verbs} == {Verb.COMPILE, Verb.INFER} == set(box.artifacts)


def test_an_artifact_replaces_the_tasks_of_the_same_name(tmp_path: Path) -> None:
    box = load(
        tmp_path,
        "artifacts:\n  infer:\n    inputs:\n"
        "      - {name: pef, kind: file, mount: /models, help: The model.}\n"
        "      - {name: words, kind: file, required: false, help: Names.}\n",
    )
    inputs = box.slots_of(Verb.INFER).inputs
    assert [slot.name for slot in inputs] == ["pef", "dataset", "checkpoint", "words"]
    assert inputs[0].mount == "/models"
    assert [slot.name for slot in box.slots_of(Verb.INFER).outputs] == ["report", "predictions"]


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("override:\n  train:\n    epoch: 3\n", 3, "override.train.epoch", "did you mean 'epochs'?"),
        ("override:\n  trian: {epochs: 3}\n", 2, "override.trian", "'infer' or 'evaluate'"),
        ("override:\n  train: {epochs: }\n", 2, "override.train.epochs", "the entry changes nothing"),
        ("override:\n  train: {epochs: {}}\n", 2, "override.train.epochs", "the entry changes nothing"),
        ("override:\n  train: {epochs: [3]}\n", 2, "override.train.epochs", "a list is not valid"),
        ("override:\n  train:\n    epochs: {max: 3}\n", 3, "override.train.epochs.max",
         "unknown key; expected default"),
        ("override:\n  train: {epochs: many}\n", 2, "override.train.epochs", "'many' is not of type int"),
        ("override:\n  train: {epochs: 0}\n", 2, "override.train.epochs", "expected 1 <= x <= 100"),
        ("override:\n  train: {epochs: {legal: {minimum: 9}}}\n", 2, "override.train.epochs", "5 is not valid"),
        ("override:\n  train: {epochs: {legal: {pattern: x}}}\n", 2, "override.train.epochs", "is for type string"),
        ("override: 3\n", 1, "override", "a mapping"),
        ("remove:\n  train: [epochs, epoch]\n", 2, "remove.train.1", "gives train no parameter 'epoch'; did you mean"),
        ("remove: {train: epochs}\n", 1, "remove.train", "a list"),
        ("verbs: [compile]\noverride: {train: {epochs: 3}}\n", 2, "override.train.epochs", "gives train no parameter"),
        ("remove:\n  train: [epochs]\noverride: {train: {epochs: 3}}\n", 3, "override.train.epochs", "under remove"),
        (
            "parameters:\n  - {name: lr, type: int, default: 1, verbs: [train], help: L.}\n",
            2, "parameters.0.name", "already gives train a parameter 'lr'; change it under override",
        ),
        (
            "parameters:\n  - {name: a, type: int, default: 1, verbs: [train], hlp: L.}\n",
            2, "parameters.0.hlp", "unknown key; did you mean 'help'?",
        ),
        (
            "artifacts:\n  infer:\n    inputs:\n      - {name: x, kind: fil, help: X.}\n",
            4, "artifacts.infer.inputs.0.kind", "'file', 'folder' or 'any'",
        ),
    ],
)  # fmt: skip
def test_a_wrong_change_is_reported_with_its_line(tmp_path: Path, text: str, line: int, key: str, words: str) -> None:
    found = faults(tmp_path, text)
    assert (line, key) in [(at, where) for at, where, _ in found]
    assert words in next(message for at, where, message in found if (at, where) == (line, key))


@pytest.mark.parametrize(
    ("verb", "change", "words"),
    [
        ("train", "epochs: {legal: {maximum: 101}}", "maximum 101 is outside the task's limits"),
        ("train", "epochs: {legal: {minimum: 0}}", "task image-classification allows 1 <= x <= 100"),
        ("train", "epochs: {legal: {enum: [5, 0]}}", "0 is outside the task's limits"),
        ("train", "lr: {legal: {minimum: 0}}", "minimum 0 is outside"),
        ("train", "epochs: {legal: {maximum: max_steps}}", "cannot be compared with them"),
        ("compile", "batch_size: {legal: {enum: [32, 33]}}", "33 is outside"),
        ("compile", "batch_size: {legal: {maximum: 64}}", "expected a shorter list under enum"),
        ("preprocess", 'label_column: {legal: {pattern: "^l"}}', "list values with enum"),
    ],
)
def test_a_box_cannot_widen_what_its_task_allows(tmp_path: Path, verb: str, change: str, words: str) -> None:
    ((line, key, message),) = faults(tmp_path, f"override:\n  {verb}:\n    {change}\n")
    assert (line, key) == (3, f"override.{verb}.{change.partition(':')[0]}.legal")
    assert words in message and "under remove" in message


def test_what_a_task_brings_is_reported_at_extends(tmp_path: Path) -> None:
    path = write(tmp_path, "remove:\n  compile: [context_length]\n")
    path.write_text(path.read_text().replace("image-classification", "language-modelling"))
    with pytest.raises(
        InvalidArgument, match=r"yaml:2:1: extends: 'prompt_length' of task language-modelling: there is"
    ):
        load_box(path)


def test_an_unknown_task_is_refused_with_the_legal_ones(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    path.write_text(path.read_text().replace("image-", "images-"))
    with pytest.raises(
        InvalidArgument, match=r"extends: .*did you mean 'image-classification'\? expected arrays, classification"
    ):
        load_box(path)


def test_without_a_task_nothing_can_be_overridden(tmp_path: Path) -> None:
    path = write(tmp_path, "mode: o3\ntarget: sn30\nverbs: [train]\noverride: {train: {epochs: 3}}\n")
    path.write_text(path.read_text().replace("extends: image-classification\n", ""))
    with pytest.raises(InvalidArgument, match="override: only a box with extends can change"):
        load_box(path)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (
            "override: {train: {epochs: 3, lr: {default: 0.1, legal: {maximum: 0.5}}}}\nremove: {train: [patience]}\n",
            True,
        ),
        ("override: {train: {epochs: [3]}}\n", False),
        ("override: {train: {epochs: {max: 3}}}\n", False),
        ("override: {train: {epochs: {}}}\n", False),
        ("override: {dance: {epochs: 3}}\n", False),
        ("remove: {train: patience}\n", False),
    ],
)
def test_the_schema_knows_the_changes(text: str, is_valid: bool) -> None:
    validator = Draft202012Validator(box_schema())
    assert validator.is_valid(yaml.safe_load(HEAD + text)) == is_valid
    assert not validator.is_valid(yaml.safe_load(HEAD.replace("image-", "images-") + text))
    assert not validator.is_valid(yaml.safe_load(HEAD.replace("extends: image-classification\n", "") + text))


def test_the_example_of_the_manual_is_legal(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs/modelbox.md").read_text()
    (tmp_path / "modelbox.yaml").write_text(text.split("```yaml\n")[1].split("```")[0])
    assert "patience" not in names(load_box(tmp_path / "modelbox.yaml"), Verb.TRAIN)
