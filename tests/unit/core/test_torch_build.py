"""Which builds of torch are tried where, one after another."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from support import shows

pytestmark = shows("containers")


@pytest.fixture(scope="module")
def program() -> ModuleType:
    path = Path(__file__).parents[3] / "docker" / "torch_build.py"
    spec = importlib.util.spec_from_file_location("torch_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_the_cpu_build_is_tried_here_and_elsewhere_before_what_the_index_has(program: ModuleType) -> None:
    tried = program.attempts("torch==1.2", "auto", False, "https://elsewhere")
    assert tried == [
        ["torch==1.2+cpu"], ["--no-deps", "--index-url", "https://elsewhere", "torch==1.2+cpu"], ["torch==1.2"],
    ]  # fmt: skip
    assert program.attempts("torch==1.2", "cpu", True, "") == [["torch==1.2+cpu"], ["torch==1.2"]]


def test_with_a_gpu_or_on_request_what_the_index_has_is_taken(program: ModuleType) -> None:
    assert program.attempts("torch==1.2", "auto", True, "https://elsewhere") == [["torch==1.2"]]
    assert program.attempts("torch==1.2", "index", False, "https://elsewhere") == [["torch==1.2"]]


def test_another_word_is_refused(program: ModuleType) -> None:
    with pytest.raises(SystemExit, match="TORCH_BUILD is 'gpu'; expected one of auto, cpu, index"):
        program.attempts("torch==1.2", "gpu", False, "")
