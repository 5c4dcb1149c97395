"""``scripts/test.py``, which runs all tests in two processes: what it decides."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_all_tests", ROOT / "scripts/test.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_folder_of_tests_is_in_one_half(script: ModuleType) -> None:
    """One that holds test files and is in neither would never run."""
    folders = {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in (ROOT / "tests").rglob("test_*.py")}
    assert sorted(folders) == sorted(folder for half in script.HALVES for folder in half)


def test_the_last_line_counts_both_halves(script: ModuleType) -> None:
    one = [
        "FAILED tests/x.py::test_x - assert 7 == 3 passed",
        "2 failed, 30 passed, 4 skipped in 100.02s (0:01:40)\n",
        "",
    ]
    assert script.total([one, ["1 passed, 5 skipped, 1 error in 3.00s"]]) == "2 failed, 31 passed, 9 skipped, 1 error"
    assert script.total([["no tests ran in 0.01s"], ["3 deselected in 0.5s"]]) == "3 deselected"
    assert script.total([[], ["killed"]]) == ""


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([0, 0], 0), ([0, 1], 1), ([2, 0], 2), ([5, 0], 0), ([5, 1], 1), ([5, 5], 5), ([-9, 0], -9)],
)
def test_any_half_that_fails_fails_the_whole(script: ModuleType, statuses: list[int], status: int) -> None:
    assert script.choose_status(statuses) == status


def test_a_path_among_the_arguments_is_told_from_options_and_their_values(script: ModuleType) -> None:
    path = str(Path(__file__))
    assert script.names_path(path) and script.names_path(f"{path}::test_x")
    assert not script.names_path("-x") and not script.names_path("pef and not box")
