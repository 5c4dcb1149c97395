"""What a modelbox.yaml may say."""

from pathlib import Path

import pytest
import yaml

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.box import Verb, box_names, check_compiler_version, find_box_file, load_box


def minimal() -> dict[str, object]:
    return {
        "apiVersion": "rdukit.dev/v1", "name": "mine", "title": "Mine", "description": "A box.", "model": "logreg",
        "compilerVersion": "0.1", "mode": "o3", "target": "sn30", "verbs": ["compile"],
        "parameters": [
            {"name": "batch_size", "type": "int", "default": 16, "legal": {"enum": [16, 32]}, "verbs": ["compile"],
             "help": "Images per step."}
        ],
    }  # fmt: skip


def write(folder: Path, value: object) -> Path:
    path = folder / "modelbox.yaml"
    path.write_text(yaml.safe_dump(value))
    return path


@pytest.mark.parametrize("name", box_names())
def test_every_installed_box_is_valid_and_has_all_four_verbs(name: str) -> None:
    box = load_box(find_box_file(name))
    assert box.name == name
    assert set(box.verbs) == set(Verb)
    check_compiler_version(box)
    assert all(box.slots_of(verb).outputs for verb in box.verbs)


def test_a_minimal_box_is_valid(tmp_path: Path) -> None:
    box = load_box(write(tmp_path, minimal()))
    assert [p.name for p in box.parameters_of(Verb.COMPILE)] == ["batch_size"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "red"}, ["colour", "unknown key", "compilerVersion"]),
        ({"mode": "o7"}, ["mode", "'o0', 'o1' or 'o3'"]),
        ({"verbs": ["compile", "dance"]}, ["verbs.1", "'infer'"]),
        ({"compilerVersion": 0.1}, ["compilerVersion", "string"]),
        ({"name": "Mine!"}, ["name", "pattern"]),
        ({"verbs": ["compile", "compile"]}, ["listed twice"]),
        ({"artifacts": {"train": {}}}, ["train", "not under verbs", "compile"]),
    ],
)
def test_a_wrong_key_is_named_with_the_file_and_what_is_legal(
    tmp_path: Path, change: dict[str, object], words: list[str]
) -> None:
    path = write(tmp_path, minimal() | change)
    with pytest.raises(InvalidArgument) as caught:
        load_box(path)
    for word in [str(path), *words]:
        assert word in caught.value.message


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    value = minimal()
    del value["model"]
    with pytest.raises(InvalidArgument, match="model: Field required"):
        load_box(write(tmp_path, value))


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ({"default": 8}, "legal: one of 16, 32"),
        ({"default": "16"}, "not of type int"),
        ({"legal": {"enum": [16, 32], "most": 3}}, "parameters.0.legal.most"),
        ({"legal": {"minimum": 1, "above": 0}}, "not both"),
        ({"type": "string", "default": "a", "legal": {"pattern": "("}}, "not a regular expression"),
        ({"verbs": []}, "parameters.0.verbs"),
    ],
)
def test_a_wrong_parameter_is_refused(tmp_path: Path, parameter: dict[str, object], words: str) -> None:
    value = minimal()
    parameters = value["parameters"]
    assert isinstance(parameters, list)
    parameters[0] |= parameter
    with pytest.raises(InvalidArgument) as caught:
        load_box(write(tmp_path, value))
    assert words in caught.value.message


def test_two_parameters_of_one_verb_cannot_share_a_name(tmp_path: Path) -> None:
    value = minimal()
    parameters = value["parameters"]
    assert isinstance(parameters, list)
    parameters.append(dict(parameters[0]))
    with pytest.raises(InvalidArgument, match="more than one parameter named"):
        load_box(write(tmp_path, value))


@pytest.mark.parametrize("text", ["[1, 2", "- a\n- b\n", ""])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "modelbox.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"modelbox\.yaml"):
        load_box(path)


def test_an_unknown_box_is_answered_with_the_installed_ones() -> None:
    with pytest.raises(NotFound, match=r"ffn, logreg"):
        find_box_file("resnet")


def test_a_box_is_found_by_file_and_by_folder(tmp_path: Path) -> None:
    path = write(tmp_path, minimal())
    assert find_box_file(str(path)) == path
    assert find_box_file(str(tmp_path)) == path


def test_a_box_for_another_compiler_is_refused(tmp_path: Path) -> None:
    box = load_box(write(tmp_path, minimal()))
    check_compiler_version(box, "0.1.7")
    with pytest.raises(InvalidArgument, match=r"for compiler 0\.1, installed is 0\.10\.0"):
        check_compiler_version(box, "0.10.0")
