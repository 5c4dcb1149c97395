"""``scripts/sanitize.py``: what it says without sanitizers, and what it runs."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from rdukit.settings import SANITIZE
from rdukit.system.cpu import cpu_signature, native_signature
from support import shows

pytestmark = shows("project", "native")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sanitize", ROOT / "scripts/sanitize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs_files_that_exist_and_random_modules_unless_told_what(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert all(Path(path).exists() for path in script.LONG) and set(script.SHORT) < set(script.LONG)
    tests, fuzz = script.commands([], is_short=True)
    assert tests[-len(script.SHORT) :] == script.SHORT and "--kernels native" in " ".join(fuzz)
    (chosen,) = script.commands(["tests/unit", "-k", "x"], is_short=False)
    assert chosen[-3:] == ["tests/unit", "-k", "x"] and not set(script.LONG) & set(chosen)
    assert script.commands(["--", "python", "x.py"], is_short=False) == [["python", "x.py"]]


def test_sanitized_kernels_fit_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SANITIZE.variable, "0")
    plain = native_signature()
    monkeypatch.setenv(SANITIZE.variable, "1")
    assert native_signature() == f"{plain}-sanitized" and plain.startswith(f"{cpu_signature()}-build")
