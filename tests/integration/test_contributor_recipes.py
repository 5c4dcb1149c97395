"""CONTRIBUTING's recipes, followed in a copy of the project: what they say is enough."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import shows

pytestmark = shows("zoo", "project")

TREE = Path(__file__).resolve().parents[2]
#: Tests of the zoo, its boxes and the manual, which a model without its figures or pages fails.
NEAR = (
    "tests/unit/zoo",
    *(f"tests/unit/modelbox/test_{name}.py" for name in ("cards", "recipes", "box_inheritance")),
    *(f"tests/unit/test_{name}.py" for name in ("manual", "suite", "packaging")),
)
ROOTS = ("core", "sdk", "compiler", "runtime", "modelboxes", "platform", "zoo", "benchmarks", "tests", "scripts")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project's files, without history."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TREE, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (TREE / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(TREE / name, tmp_path / name)
    return tmp_path


def run(copy: Path, *command: str) -> str:
    """Run a command in the copy, with the copy's packages."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(copy / root) for root in ROOTS)}
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(1800)  # it runs the tests near a model
def test_a_new_model_of_the_zoo_passes_the_tests_as_it_is_made(copy: Path) -> None:
    run(
        copy,
        str(Path(sys.executable).with_name("rdukit")),
        "zoo",
        "new",
        "sailing_boats",
        "--title",
        "Speed of sailing boats",
    )
    run(copy, "scripts/zoo_model.py", "sailing_boats")
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *NEAR)
