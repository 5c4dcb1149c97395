"""``scripts/run_tests.py`` runs parts of tests side by side, repeats what failed, and reports where the time went."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import run_tests as script
from suite.plan import Part
from suite.running import REPEATED
from support import shows

pytestmark = shows("project")
TREE = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with the layer ``unit``, whose cases are recorded as the project's own are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv(script.RECORDS, raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    long: only in make test-all\n")
    folder = tmp_path / "tests/unit"
    folder.mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(TREE / 'tests')!r})\npytest_plugins = ['support.recording']\n"
    )
    return tmp_path


def part(name: str, *files: str) -> Part:
    return Part(name, [f"tests/unit/{file}" for file in files])


def test_all_parts_are_run_and_counted_and_a_failure_is_shown_with_how_it_is_repeated(
    tree: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    parts = []
    for number in range(5):
        path = tree / f"tests/unit/test_{number}.py"
        path.write_text(f"def test_x() -> None:\n    assert {number} != 3\n")
        parts.append(part(f"part {number}", path.name))
    status, cases = script.run(parts, ["-p", "no:cacheprovider"], 2)
    assert status == 1 and len(cases) == 5
    said = capfdbinary.readouterr().out.decode()
    assert "assert 3 != 3" in said
    assert "to repeat a failure alone:\n  .venv/bin/pytest tests/unit/test_3.py::test_x\n" in said
    assert said.splitlines()[-1].startswith("test: 1 failed, 4 passed in ")


def test_what_fails_beside_others_and_passes_alone_is_flaky_and_what_fails_twice_fails(
    tree: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    once = "def test_once() -> None:\n    seen = Path(__file__).with_suffix('.seen')\n    was = seen.exists()\n"
    folder = tree / "tests/unit"
    (folder / "test_once.py").write_text(f"from pathlib import Path\n{once}    seen.touch()\n    assert was\n")
    (folder / "test_good.py").write_text("def test_good() -> None:\n    pass\n")
    parts = [part("good", "test_good.py"), part("once", "test_once.py")]
    assert script.run(parts, [], 2)[0] == 0
    said = capfdbinary.readouterr().out.decode().splitlines()
    assert "test: flaky, failed beside others and passed alone: tests/unit/test_once.py::test_once" in said
    assert said[-1].startswith("test: 1 failed, 1 passed; repeated alone: 1 passed in ")
    (folder / "test_good.py").write_text("def test_good() -> None:\n    assert False\n")
    assert script.run(parts, [], 2)[0] == 1
    assert "; repeated alone: 1 failed in " in capfdbinary.readouterr().out.decode().splitlines()[-1]


def test_many_failures_are_not_repeated(tree: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    tests = "".join(f"def test_{number}() -> None:\n    assert False\n" for number in range(REPEATED + 1))
    (tree / "tests/unit/test_bad.py").write_text(tests)
    assert script.run([part("bad", "test_bad.py")], [], 2)[0] == 1
    assert "repeated alone" not in capfdbinary.readouterr().out.decode()


def test_the_report_has_each_layer_the_slowest_cases_and_why_cases_were_skipped(
    tree: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tree / "tests/unit/test_some.py").write_text(
        "import pytest\ndef test_good():\n    pass\n"
        "@pytest.mark.skip('no such thing here')\ndef test_bad():\n    pass\n"
    )
    assert script.run([part("some", "test_some.py")], [], 2)[0] == 0
    said = capfdbinary.readouterr().out.decode()
    assert "unit              2      0       1" in said
    assert "1  no such thing here" in said and "tests/unit/test_some.py::test_good" in said


def test_a_failure_shows_the_end_of_the_logs_of_services_that_run_then(tree: Path) -> None:
    (tree / "logs").mkdir()
    (tree / "logs/gateway.log").write_text("".join(f"line {number}\n" for number in range(100)))
    (tree / "tests/unit/test_logs.py").write_text(
        "from pathlib import Path\nfrom support.recording import service_logs\n"
        "def test_during():\n    with service_logs(Path('logs')):\n        assert False\n"
        "def test_beside(served):\n    assert False\n"
        "import pytest\n@pytest.fixture\ndef served():\n    with service_logs(Path('logs')):\n"
        "        Path('logs/worker.log').write_text('in its set-up')\n        yield\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/unit/test_logs.py"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stdout
    during, beside = said.split("test_beside", 1)
    assert "line 99" in during and "line 74" not in during
    assert "in its set-up" in beside and "line 99" not in beside, "nothing that was there before the case"


def test_the_kernels_of_another_compiler_are_not_used_and_go(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "TREE", tree)
    source = tree / "compiler/rdukit_compiler/backend.py"
    source.parent.mkdir(parents=True)
    homes = []
    for number in range(4):
        source.write_text(f"number = {number}\n")
        homes.append(script.kernel_home(tmp_path / "kept"))
    assert len(set(homes)) == 4 and script.kernel_home(tmp_path / "kept") == homes[-1]
    assert [home for home in homes if home.exists()] == homes[-script.HOMES_KEPT :]


def test_a_run_keeps_what_files_took_for_the_next_one(tree: Path, tmp_path: Path) -> None:
    (tree / "tests/unit/test_some.py").write_text("def test_good():\n    pass\n")
    _, cases = script.run([part("some", "test_some.py")], [], 1)
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"files": {"tests/unit/test_other.py": 3.0}, "tiers": {"all": 9.0}}))
    script.keep_times(file, cases, "short", 12.4)
    times = script.read_times(file)
    assert times.tiers == {"all": 9.0, "short": 12.0}
    assert times.files["tests/unit/test_other.py"] == 3.0 and "tests/unit/test_some.py" in times.files
    shutil.copy(__file__, file)
    assert script.read_times(file) == script.Times(), "a damaged file is no file"
