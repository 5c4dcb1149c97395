"""``scripts/test.py``, which runs all tests in parts side by side: what it decides, and that it runs them all."""

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


def test_every_file_of_tests_is_in_one_part(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is in none would never run."""
    monkeypatch.chdir(ROOT)
    parts = script.plan()
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    assert sorted(file for part in parts for file in part.files) == files
    assert len({part.name for part in parts}) == len(parts)


def test_a_folder_with_fewer_files_than_parts_has_no_empty_part(script: ModuleType) -> None:
    assert [part.files for part in script.deal("x", ["b", "c", "a"], 2)] == [["a", "c"], ["b"]]
    assert [part.files for part in script.deal("x", ["a"], 2)] == [["a"]]


def test_parts_that_wait_run_beside_parts_that_compute(script: ModuleType) -> None:
    waiting, computing = [[script.Part(f"{kind}{i}", []) for i in range(count)] for kind, count in (("w", 4), ("c", 2))]
    assert [part.name for part in script.mix(waiting, computing)] == ["w0", "c0", "w1", "w2", "c1", "w3"]
    assert [part.name for part in script.mix(waiting, [])] == ["w0", "w1", "w2", "w3"]


def test_all_parts_are_run_and_counted_and_a_failure_is_told(
    script: ModuleType, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").touch()
    parts = []
    for number in range(5):
        path = tmp_path / f"test_{number}.py"
        path.write_text(f"def test_x() -> None:\n    assert {number} != 3\n")
        parts.append(script.Part(f"part {number}", [str(path)]))
    assert script.run(parts, ["-p", "no:cacheprovider"], 2) == 1
    said = capfdbinary.readouterr().out.decode()
    assert "assert 3 != 3" in said
    assert said.splitlines()[-1].startswith("test: 1 failed, 4 passed in ")


def test_what_fails_beside_others_and_passes_alone_is_told_as_flaky_and_what_fails_twice_fails(
    script: ModuleType, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").touch()
    once = "def test_once() -> None:\n    seen = Path(__file__).with_suffix('.seen')\n    was = seen.exists()\n"
    (tmp_path / "test_once.py").write_text(f"from pathlib import Path\n{once}    seen.touch()\n    assert was\n")
    (tmp_path / "test_good.py").write_text("def test_good() -> None:\n    pass\n")
    parts = [script.Part("good", ["test_good.py"]), script.Part("once", ["test_once.py"])]
    assert script.run(parts, [], 2) == 0
    said = capfdbinary.readouterr().out.decode().splitlines()
    assert "test: flaky, failed beside others and passed alone: test_once.py::test_once" in said
    assert said[-1].startswith("test: 1 failed, 1 passed; repeated alone: 1 passed in ")
    (tmp_path / "test_good.py").write_text("def test_good() -> None:\n    assert False\n")
    assert script.run(parts, [], 2) == 1
    assert "; repeated alone: 1 failed in " in capfdbinary.readouterr().out.decode().splitlines()[-1]


def test_many_failures_are_not_repeated(
    script: ModuleType, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").touch()
    tests = "".join(f"def test_{number}() -> None:\n    assert False\n" for number in range(script.REPEATED + 1))
    (tmp_path / "test_bad.py").write_text(tests)
    assert script.run([script.Part("bad", ["test_bad.py"])], [], 2) == 1
    assert "repeated" not in capfdbinary.readouterr().out.decode()


def test_the_last_line_counts_all_parts(script: ModuleType) -> None:
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
def test_any_part_that_fails_fails_the_whole(script: ModuleType, statuses: list[int], status: int) -> None:
    assert script.choose_status(statuses) == status


def test_a_path_among_the_arguments_is_told_from_options_and_their_values(script: ModuleType) -> None:
    path = str(Path(__file__))
    assert script.names_path(path) and script.names_path(f"{path}::test_x")
    assert not script.names_path("-x") and not script.names_path("pef and not box")
