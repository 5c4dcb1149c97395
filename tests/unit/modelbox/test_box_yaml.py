"""What a modelbox.yaml may say, and how what it may not say is told."""

from pathlib import Path

import pytest
import yaml

from rdukit.errors import InvalidArgument, NotFound
from rdukit_modelbox.contract.box import Box, Verb, box_names, check_compiler_version, find_box_file, load_box
from support import shows

pytestmark = shows("modelbox", "every box")


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
    path.write_text(yaml.safe_dump(value, sort_keys=False))
    return path


def load(folder: Path, **change: object) -> Box:
    return load_box(write(folder, minimal() | change))


def objection(folder: Path, **change: object) -> str:
    with pytest.raises(InvalidArgument) as caught:
        load(folder, **change)
    return caught.value.message


@pytest.mark.parametrize("name", box_names())
def test_every_installed_box_is_valid_and_has_all_verbs(name: str) -> None:
    box = load_box(find_box_file(name))
    assert box.name == name
    # What makes vectors has no figures.
    assert set(box.verbs) == set(Verb) - ({Verb.EVALUATE} if name == "bert-embedder" else set())
    check_compiler_version(box)
    assert all(box.slots_of(verb).outputs for verb in box.verbs)


def test_a_minimal_box_is_valid(tmp_path: Path) -> None:
    box = load(tmp_path)
    assert [p.name for p in box.parameters_of(Verb.COMPILE)] == ["batch_size"]
    assert box.folder == tmp_path.resolve()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"colour": "red"}, ["colour", "unknown key", "compilerVersion"]),
        ({"mode": "o7"}, ["mode", "'o0', 'o1' or 'o3'"]),
        ({"verbs": ["compile", "dance"]}, ["verbs.1", "'infer'"]),
        ({"compilerVersion": 0.1}, ["compilerVersion", 'a number, not a string; write "0.1"']),
        ({"name": "Mine!"}, ["name", "pattern"]),
        ({"verbs": ["compile", "compile"]}, ["verbs.1", "listed twice"]),
        ({"artifacts": {"train": {}}}, ["artifacts.train", "not listed under verbs", "compile"]),
        ({"api_version": "rdukit.dev/v1"}, ["did you mean 'apiVersion'?"]),
        ({"resources": {"tile": 4}}, ["resources.tile", "did you mean 'tiles'?", "memory"]),
        ({"resources": {"memory": "2 GB"}}, ["resources.memory", "512MiB"]),
        ({"resources": {"tiles": True}}, ["resources.tiles", "a whole number"]),
        ({"sizes": {"num_classes": "ten"}}, ["sizes.num_classes", "a whole number"]),
        ({"model": {"module": "x.py:f"}}, ["model", "module: FILE.py:FUNCTION"]),
        ({"serving": {"max_batch_size": 0}}, ["serving.max_batch_size", "at least 1"]),
        ({"serving": {"inputs": [{"name": "x", "symbol": "a", "datatype": "FP8"}]}}, ["serving.inputs.0", "'BF16'"]),
        ({"serving": {"text": {"tokenizer": "words"}}}, ["serving.text.tokenizer", "infer has no input 'words'"]),
        ({"labels": {"Team": "x"}}, ["labels.Team"]),
        ({"modelCard": "../card.md"}, ["modelCard", "pattern"]),
    ],
)
def test_a_wrong_key_is_named_with_the_file_and_what_is_legal(
    tmp_path: Path, change: dict[str, object], words: list[str]
) -> None:
    message = objection(tmp_path, **change)
    for word in [str(tmp_path / "modelbox.yaml"), *words]:
        assert word in message


def test_a_missing_key_is_named_with_what_belongs_there(tmp_path: Path) -> None:
    value = minimal()
    del value["mode"]
    with pytest.raises(InvalidArgument, match=r"yaml:1:1: mode: missing; expected o0, o1, o3"):
        load_box(write(tmp_path, value))


def test_all_faults_are_told_at_once_with_their_lines_in_the_files_order(tmp_path: Path) -> None:
    path = tmp_path / "modelbox.yaml"
    path.write_text(
        "apiVersion: rdukit.dev/v1\nname: mine\ntitle: Mine\ndescription: A box.\nmodel: logreg\n"
        'compilerVersion: "0.1"\nmode: o9\ntarget: sn30\nverbs: [compile]\n'
        "parameters:\n"
        "  - {name: a, type: int, default: 1, legal: {minimun: 1}, verbs: [compile], help: A.}\n"
        "  - name: b\n    type: int\n    default: 4\n    legal:\n      maximum: c\n    verbs: [compile]\n    help: B.\n"
        "  - {name: d, type: int, default: 0, verbs: [train], help: D.}\n"
    )
    with pytest.raises(InvalidArgument) as caught:
        load_box(path)
    faults = caught.value.detail["faults"]
    assert isinstance(faults, list)
    assert [(f["line"], f["column"], f["key"]) for f in faults] == [
        (7, 1, "mode"),
        (11, 46, "parameters.0.legal.minimun"),
        (16, 7, "parameters.1.legal.maximum"),
        (19, 46, "parameters.2.verbs.0"),
    ]
    assert "did you mean 'minimum'?" in faults[1]["message"]
    assert "there is no parameter 'c'; expected a, d" in faults[2]["message"]
    assert all(f"{path}:{f['line']}:{f['column']}: {f['key']}: " in caught.value.message for f in faults)


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ({"default": 8}, "expected one of 16, 32"),
        ({"default": "16"}, "not of type int"),
        ({"default": [16]}, "parameters.0.default: a list is not valid; expected true or false or a whole number"),
        ({"legal": {"enum": [16, 32], "most": 3}}, "parameters.0.legal.most"),
        ({"legal": {"minimum": 1, "above": 0}}, "not both"),
        ({"legal": {"minimum": 20, "maximum": 10}}, "no value is between 20 and 10"),
        ({"legal": {"enum": [16, "x"]}}, "legal.enum: 'x' is not of type int"),
        ({"legal": {"pattern": "^1"}}, "legal.pattern is for type string, not int"),
        ({"legal": {"multipleOf": 0}}, "multipleOf 0 is not valid"),
        (
            {"legal": {"minimum": "Big Number"}},
            "parameters.0.legal.minimum: 'Big Number' is not valid; expected a number",
        ),
        ({"type": "string", "default": "a", "legal": {"maximum": 3}}, "legal.maximum is for types int and float"),
        ({"type": "string", "default": "a", "legal": {"pattern": "("}}, "not a regular expression"),
        ({"verbs": []}, "parameters.0.verbs"),
        ({"size": "yes"}, "parameters.0.size: 'yes' is not valid; expected true or false"),
    ],
)
def test_a_wrong_parameter_is_refused(tmp_path: Path, parameter: dict[str, object], words: str) -> None:
    parameters = minimal()["parameters"]
    assert isinstance(parameters, list)
    assert words in objection(tmp_path, parameters=[parameters[0] | parameter])


def test_two_parameters_of_one_verb_cannot_share_a_name(tmp_path: Path) -> None:
    parameters = minimal()["parameters"]
    assert isinstance(parameters, list)
    assert "more than one parameter named" in objection(tmp_path, parameters=[parameters[0], parameters[0]])


@pytest.mark.parametrize("text", ["[1, 2", "- a\n- b\n", "", "just words"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "modelbox.yaml"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=r"modelbox\.yaml:[12]:1: file: "):
        load_box(path)


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "modelbox.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(InvalidArgument, match="not readable text"):
        load_box(path)


def test_an_unknown_box_is_answered_with_the_installed_ones() -> None:
    with pytest.raises(NotFound, match=r"ffn, .*logreg"):
        find_box_file("resnet")


def test_a_box_is_found_by_file_and_by_folder(tmp_path: Path) -> None:
    path = write(tmp_path, minimal())
    assert find_box_file(str(path)) == path
    assert find_box_file(str(tmp_path)) == path


def test_a_box_for_another_compiler_is_refused(tmp_path: Path) -> None:
    box = load(tmp_path)
    check_compiler_version(box, "0.1.7")
    with pytest.raises(InvalidArgument, match=r"for compiler 0\.1, but 0\.10\.0 is installed"):
        check_compiler_version(box, "0.10.0")


def test_an_own_module_and_a_model_card_are_files_inside_the_boxs_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "box", tmp_path / "elsewhere.py"
    (inside / "code").mkdir(parents=True)
    outside.write_text("raise SystemExit('imported')")
    value = minimal() | {"module": "code/model.py:make", "modelCard": "card.md"}
    del value["model"]
    (inside / "card.md").write_text("# Mine")
    (inside / "code" / "model.py").write_text("raise SystemExit('imported')")
    box = load_box(write(inside, value))
    assert (box.model, box.module, box.folder / str(box.model_card)) == (
        "mine",
        "code/model.py:make",
        inside / "card.md",
    )
    for module in (
        "../elsewhere.py:make",
        "code/../../elsewhere.py:make",
        "/etc/x.py:make",
        "none.py:make",
        "model:make",
    ):
        with pytest.raises(InvalidArgument, match="module"):
            load_box(write(inside, value | {"module": module}))
    (inside / "code" / "link.py").symlink_to(outside)
    with pytest.raises(InvalidArgument, match="leads outside the box's folder"):
        load_box(write(inside, value | {"module": "code/link.py:make"}))


def test_resources_artifacts_and_serving_are_read(tmp_path: Path) -> None:
    box = load(
        tmp_path,
        verbs=["compile", "infer"],
        resources={"tiles": 2, "memory": "1.5GiB", "cpus": 0.5, "replicas": 3},
        artifacts={
            "infer": {
                "inputs": [
                    {"name": "pef", "kind": "file", "help": "P.", "mount": "/models/pef", "schemes": ["file", "s3"]},
                    {"name": "words", "kind": "any", "help": "W."},
                ]
            }
        },
        serving={
            "name": "digits", "max_batch_size": 16, "max_queue": 64, "labels": ["zero", "one"],
            "inputs": [{"name": "x", "symbol": "image", "datatype": "FP32"}], "text": {"tokenizer": "words"},
        },
        labels={"team": "vision", "image.example/version": "1.2.0"},
        licence="Apache-2.0",
    )  # fmt: skip
    assert (box.resources.memory, box.resources.tiles, box.resources.cpus) == (1610612736, 2, 0.5)
    slot = box.slots_of(Verb.INFER).inputs[0]
    assert (slot.mount, slot.schemes) == ("/models/pef", ("file", "s3"))
    assert box.serving.inputs[0].symbol == "image"
    assert box.serving.text == {"tokenizer": "words"}
    assert box.licence == "Apache-2.0"


def test_a_box_without_verbs_has_one_fault_and_not_one_for_each_use(tmp_path: Path) -> None:
    assert objection(tmp_path, verbs=[]).count("\n") == 0
