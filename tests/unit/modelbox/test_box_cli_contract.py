"""``rdukit box`` for boxes that do not run: list, describe, validate, new, inspect, schema, convert."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from rdukit.errors import Conflict, InvalidArgument, NotFound, RdukitError
from rdukit_modelbox.cli.main import box
from rdukit_modelbox.contract.box import FOLDER_BOXES, box_names, load_box
from rdukit_modelbox.contract.describe import SCHEMA_FILE
from rdukit_modelbox.contract.models import entry_of
from rdukit_modelbox.image.contents import read_contents
from rdukit_modelbox.image.layout import ImageLayout, manifest_blob
from rdukit_modelbox.image.media import compact_json
from support import shows

pytestmark = shows("box", "modelbox", "modelbox-own-model", "images", "every box")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(box, [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_the_installed_boxes_are_listed_for_people_and_for_machines() -> None:
    lines = run("list").splitlines()
    assert lines[0].split() == ["NAME", "MODEL", "MODE", "TARGET", "VERBS", "TITLE"]
    names = sorted([*box_names(), *box_names(FOLDER_BOXES)])
    assert "finetune" in names
    assert [line.split()[0] for line in lines[1:]] == names
    assert [told["name"] for told in json.loads(run("list", "--json"))] == names


def test_describe_has_the_legal_values_in_words_and_as_schema() -> None:
    assert "one of 16, 32, 50, 64, 100, 128" in run("describe", "logreg")
    told = json.loads(run("describe", "logreg", "--json"))
    compile_verb = next(verb for verb in told["verbs"] if verb["name"] == "compile")
    batch_size = next(p for p in compile_verb["parameters"] if p["name"] == "batch_size")
    assert batch_size["schema"]["enum"] == [16, 32, 50, 64, 100, 128]


@pytest.mark.parametrize("like", box_names())
def test_a_new_box_validates_and_can_be_inspected(tmp_path: Path, like: str) -> None:
    folder = tmp_path / "mine"
    assert json.loads(run("new", "mine", "--folder", folder, "--like", like, "--json"))["name"] == "mine"
    assert json.loads(run("validate", folder, "--json")) == {
        "valid": True, "name": "mine", "file": str(folder / "modelbox.yaml"),
    }  # fmt: skip
    told = json.loads(run("inspect", folder, "--json"))
    assert (told["kind"], told["description"]["name"]) == ("file", "mine")
    assert (folder / "modelbox.schema.json").read_bytes() == SCHEMA_FILE.read_bytes()
    assert (folder / "modelbox.yaml").read_text().startswith("# yaml-language-server: $schema=modelbox.schema.json\n")


def test_every_commented_example_of_a_new_box_is_legal(tmp_path: Path) -> None:
    run("new", "mine", "--folder", tmp_path)
    path = tmp_path / "modelbox.yaml"
    (tmp_path / "README.md").write_text("# Mine")
    keys = ("resources", "serving", "labels", "licence", "modelCard")
    lines = [line.removeprefix("# ") if line.startswith(tuple(f"# {k}: " for k in keys)) else line
             for line in path.read_text().splitlines()]  # fmt: skip
    path.write_text("\n".join(lines))
    found = load_box(path)
    assert (found.resources.tiles, found.serving.name, found.licence) == (4, "mine", "Apache-2.0")
    shown = run("describe", path)
    assert "resources: tiles 4, memory 2 GiB, cpus 2.0, replicas 1" in shown
    assert "labels: team vision" in shown


def test_a_new_box_with_a_module_has_a_model_that_runs(tmp_path: Path) -> None:
    run("new", "mine", "--folder", tmp_path, "--module")
    assert "is a valid ModelBox" in run("validate", tmp_path, "--import-module")
    entry = entry_of(load_box(tmp_path / "modelbox.yaml"))
    model = entry.build(num_features=4, num_classes=3)
    loss, logits = model(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    assert (loss.shape, logits.shape, model(torch.zeros(2, 4)).shape) == ((), (2, 3), (2, 3))


def test_new_never_writes_over_what_is_there_nor_leaves_a_box_that_is_wrong(tmp_path: Path) -> None:
    run("new", "mine", "--folder", tmp_path)
    with pytest.raises(Conflict, match=r"modelbox\.yaml already exists"):
        run("new", "mine", "--folder", tmp_path)
    with pytest.raises(InvalidArgument, match="'Mine!' is not valid as a box name"):
        run("new", "Mine!", "--folder", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_validate_tells_what_is_wrong_with_the_model(tmp_path: Path) -> None:
    run("new", "mine", "--folder", tmp_path)
    path = tmp_path / "modelbox.yaml"
    text = path.read_text()
    for change, words in (
        ("model: resnet", "modelbox.yaml:1:1: model: 'resnet' is not in the zoo;.* expected .*, mlp, "),
        ("sizes: {num_feature: 3}\nmodel: logreg", "yaml:1:9: sizes.num_feature: .* did you mean 'num_features'"),
        (
            "sizes: {num_classes: -1}\nmodel: logreg",
            "yaml:1:9: sizes.num_classes: -1 is not valid; expected at least 0",
        ),
        ('model: logreg\ncompilerVersion: "9.9"', "yaml:2:1: compilerVersion: box mine is for compiler 9.9, but"),
    ):
        lines = [line for line in text.splitlines() if not line.startswith(("model:", "sizes:", change.split()[-2]))]
        path.write_text("\n".join([change, *lines]))
        with pytest.raises(InvalidArgument, match=words):
            run("validate", path)
    with pytest.raises(NotFound):
        run("validate", tmp_path / "none.yaml")


def test_an_image_is_inspected_by_its_labels_and_its_yaml(tmp_path: Path) -> None:
    layout, contents = ImageLayout.create(tmp_path / "layout"), read_contents("logreg")
    layer = layout.add_layer(contents.entries(), 0)
    config = layout.add_blob("application/vnd.oci.image.config.v1+json", compact_json({"config": {}}))
    manifest = layout.add_blob("x", manifest_blob(config, [layer.descriptor], contents.labels))
    layout.set_reference("logreg:1", manifest, {})
    told = json.loads(run("inspect", f"oci:{tmp_path}/layout", "--json"))
    assert (told["kind"], told["reference"], told["layers"]) == ("image", "logreg:1", 1)
    assert told["labels"]["dev.rdukit.box.name"] == "logreg"
    assert told["yaml"]["model"] == "logreg"
    assert "dev.rdukit.box.verbs" in run("inspect", f"oci:{tmp_path}/layout:logreg:1")
    with pytest.raises(NotFound):
        run("inspect", f"oci:{tmp_path}")


def test_the_schema_is_printed_and_written(tmp_path: Path) -> None:
    assert json.loads(run("schema"))["title"] == "ModelBox"
    run("schema", "--output", tmp_path / "s.json")
    assert (tmp_path / "s.json").read_bytes() == SCHEMA_FILE.read_bytes()


class Danger:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path("/tmp/never").touch, ())  # type: ignore[return-value]


def test_a_pickled_checkpoint_is_converted_without_running_it(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    torch.save({"state_dict": {"a.weight": weight, "tied": weight}, "epoch": 3}, tmp_path / "m.pt")
    told = json.loads(run("convert", tmp_path / "m.pt", "--output", tmp_path / "m.safetensors", "--json"))
    assert told["tensors"] == {"a.weight": [2, 3], "tied": [2, 3]}
    assert torch.equal(load_file(tmp_path / "m.safetensors")["tied"], weight)
    for name, value in (("danger", {"a": Danger()}), ("words", {"a": "b"})):
        torch.save(value, tmp_path / name)
        with pytest.raises(InvalidArgument, match=r"state_dict\(\)"):
            run("convert", tmp_path / name, "--output", tmp_path / "x.safetensors")
    (tmp_path / "junk").write_bytes(b"junk")
    for name in ("junk", "none"):
        with pytest.raises(RdukitError):
            run("convert", tmp_path / name, "--output", tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()


def test_the_list_of_commands_has_whole_sentences() -> None:
    assert "..." not in run("--help").partition("Commands:")[2]
