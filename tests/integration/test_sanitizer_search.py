"""``scripts/sanitize.py`` where the compiler has no sanitizers."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from support import shows

pytestmark = shows("native", "project")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sanitize", ROOT / "scripts/sanitize.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["no such compiler", "a compiler without sanitizers"])
def compiler(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "c++"
    if request.param != "no such compiler":
        path.write_text('#!/bin/sh\necho "${1#*=}"\n')
        path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    return str(path)


def test_without_sanitizers_it_says_what_is_missing_and_the_short_form_passes(
    script: ModuleType, compiler: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert script.main([]) == script.NO_SANITIZER
    said = capsys.readouterr().err
    assert f"{compiler} has no libasan.so: nothing is sanitized" in said
    assert script.main(["--short"]) == 0
    assert capsys.readouterr().err == said
