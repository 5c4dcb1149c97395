"""``rdukit zoo new``: the files of a new model, and the lines that name it."""

import ast
from pathlib import Path

import pytest
from click.testing import CliRunner

import rdukit_zoo
from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import load_box
from rdukit_modelbox.recipes.recipe import Kind, parse_recipes
from rdukit_zoo.cli import zoo
from rdukit_zoo.skeleton.new_model import LINES, new_model_files, with_line, write_new_model
from support import shows

pytestmark = shows("zoo")

TREE = Path(str(rdukit_zoo.__file__)).parents[2]


def test_a_new_model_gets_a_module_a_box_and_recipes() -> None:
    files = new_model_files("wind_turbines", "Power of wind turbines", "science")
    assert list(files) == [
        "zoo/rdukit_zoo/science/wind_turbines.py",
        "modelboxes/rdukit_modelbox/boxes/wind-turbines/modelbox.yaml",
        "modelboxes/rdukit_modelbox/boxes/wind-turbines/recipes.yaml",
    ]
    module = ast.parse(files["zoo/rdukit_zoo/science/wind_turbines.py"])
    assert [node.name for node in module.body if isinstance(node, ast.ClassDef)] == ["WindTurbines"]


def test_its_box_and_recipes_are_legal(tmp_path: Path) -> None:
    files = new_model_files("wind_turbines", "Power of wind turbines", "science")
    path = tmp_path / "modelbox.yaml"
    path.write_text(files["modelboxes/rdukit_modelbox/boxes/wind-turbines/modelbox.yaml"].replace(
        "model: wind_turbines", "model: polymers").split("parameters:")[0])  # fmt: skip
    assert load_box(path).name == "wind-turbines"
    recipes = parse_recipes(files["modelboxes/rdukit_modelbox/boxes/wind-turbines/recipes.yaml"], "recipes.yaml")
    assert set(recipes) == set(Kind)


@pytest.mark.parametrize(
    ("name", "before"),
    [("aardvark", "autodicnn"), ("lemur", "lenet"), ("zebra", None)],
    ids=("first", "middle", "last"),
)
def test_a_line_goes_to_the_place_of_its_name(name: str, before: str | None) -> None:
    opening, _ = LINES["zoo/rdukit_zoo/registry.py"]
    text = (TREE / "zoo/rdukit_zoo/registry.py").read_text()
    lines = with_line(text, opening, f'    "{name}": "science.{name}",\n').splitlines()
    following = lines[lines.index(f'    "{name}": "science.{name}",') + 1]
    assert following == "}" if before is None else following.startswith(f'    "{before}": ')
    assert len(lines) == len(text.splitlines()) + 1


def test_all_lines_are_written_and_nothing_else_changes(tmp_path: Path) -> None:
    for path in LINES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((TREE / path).read_text())
    written = write_new_model(tmp_path, "lemur", "Lemurs", "vision")
    assert sorted(written) == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    for path in LINES:
        old, new = (TREE / path).read_text().splitlines(), (tmp_path / path).read_text().splitlines()
        assert [line for line in new if line not in old] == [line for line in new if '"lemur"' in line]
        assert len(new) == len(old) + 1


@pytest.mark.parametrize("name", ["Lemur", "lenet", "a b", "../x", "1st", ""])
def test_an_illegal_or_taken_name_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument):
        write_new_model(tmp_path, name, "Lemurs", "vision")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    """``llama2`` is a box and no model."""
    box = tmp_path / "modelboxes/rdukit_modelbox/boxes/llama2/modelbox.yaml"
    box.parent.mkdir(parents=True)
    box.write_text("name: llama2")
    with pytest.raises(InvalidArgument, match="already exists"):
        write_new_model(tmp_path, "llama2", "Llama", "language")
    assert box.read_text() == "name: llama2"


@pytest.mark.parametrize("title", ['A "quoted" one', "two\nlines", "a\\b"])
def test_a_title_that_would_end_its_text_is_refused(title: str) -> None:
    with pytest.raises(InvalidArgument, match="title"):
        new_model_files("lemur", title, "vision")


def test_a_title_with_a_colon_is_a_title(tmp_path: Path) -> None:
    text = new_model_files("lemur", "Lemurs: a study", "vision")["modelboxes/rdukit_modelbox/boxes/lemur/modelbox.yaml"]
    path = tmp_path / "modelbox.yaml"
    path.write_text(text.replace("model: lemur", "model: polymers").split("parameters:")[0])
    assert load_box(path).title == "Lemurs: a study"


def test_an_installed_rdukit_names_the_command_for_a_model_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("rdukit_zoo.cli.__file__", str(tmp_path / "site-packages/rdukit_zoo/cli.py"))
    result = CliRunner().invoke(zoo, ["new", "lemur"])
    assert isinstance(result.exception, InvalidArgument)
    assert "rdukit box new lemur --module" in str(result.exception)
