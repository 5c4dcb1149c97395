"""A box with its own module goes through the same verbs as a model of the zoo."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit_modelbox.contract.box import find_box_file
from rdukit_modelbox.contract.models import load_own_module
from rdukit_modelbox.contract.new_box import new_box_files
from support import shows
from support.boxes import run_verb

pytestmark = [shows("modelbox-own-model"), pytest.mark.usefixtures("portable_kernels")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new box as ``rdukit box new`` writes it."""
    folder = tmp_path_factory.mktemp("own")
    for name, data in new_box_files("mine", find_box_file("logreg").read_text(), has_module=True).items():
        (folder / name).write_bytes(data)
    return folder


def test_an_own_module_is_compiled_trained_and_judged(folder: Path) -> None:
    box = str(folder)
    data = run_verb(box, "preprocess", folder / "data", limit=640).outputs["dataset"]
    pef = run_verb(box, "compile", folder / "pef", batch_size=32, purpose="train").outputs["pef"]
    trained = run_verb(box, "train", folder / "run", {"pef": pef, "dataset": data}, epochs=3)
    assert float(str(trained.figures["accuracy"])) > 0.7
    serving = run_verb(box, "compile", folder / "serving", batch_size=32, purpose="serve").outputs["pef"]
    inputs = {"pef": serving, "dataset": data, "checkpoint": trained.outputs["checkpoint"]}
    done = run_verb(box, "infer", folder / "inferred", inputs)
    assert done.figures["accuracy"] == trained.figures["accuracy"]
    with pytest.raises(PefMismatch, match=r"from model 'model.py:make_model', but box logreg serves 'logreg'"):
        run_verb("logreg", "infer", folder / "inferred", inputs)


@pytest.mark.parametrize(
    ("place", "code", "words"),
    [
        ("gone.py:make", None, "there is no file gone.py"),
        ("../model.py:make", None, "there is no file"),
        ("bad.py:make", "def make(): return 3", "returned int; expected a rdukit_zoo.registry.ModelEntry"),
        ("bad.py:make", "def make(): raise ValueError('no')", "failed: ValueError: no"),
        ("bad.py:make", "import nothing_like_this", "failed: ModuleNotFoundError"),
        ("bad.py:build", "def make(): pass", "failed: AttributeError"),
    ],
)
def test_a_module_that_makes_no_model_is_refused_with_its_fault(
    tmp_path: Path, place: str, code: str | None, words: str
) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "model.py").write_text("")
    if code is not None:
        (tmp_path / "box" / "bad.py").write_text(code)
    with pytest.raises(InvalidArgument, match=words):
        load_own_module(tmp_path / "box", place)
