"""Under ``make sanitize`` a kernel that writes beyond its tensors ends the process and says so; a right one runs."""

import os
import subprocess
import sys

import pytest

from rdukit.settings import SANITIZE, resolve
from support import shows

pytestmark = [
    shows("native", "settings"),
    shows("native", "settings"),
    pytest.mark.skipif(not resolve(SANITIZE), reason="runs under `make sanitize`"),
]

PROGRAM = """
import sys
import torch
from rdukit_compiler.backend.section_library import section_namespace
from rdukit_compiler.backend.section_library import compile_sections
from rdukit_compiler.torch_private import trace_aten, write_code
from rdukit_runtime.engine.native import load_native

inputs = [torch.ones(48), torch.ones(48)]
wrapper, kernels = write_code(trace_aten(lambda a, b: [a + b], inputs), inputs, {}, threads=1)
assert kernels.count("store(out_ptr0 + ") == 1
if sys.argv[1] == "beyond":
    kernels = kernels.replace("store(out_ptr0 + ", "store(out_ptr0 + 4 + ")
library = compile_sections({"a" * 64: section_namespace("section", wrapper, kernels)}, {})["a" * 64]
(made,) = load_native("a" * 64, library, 2, 1)(inputs, {})
print("SUM", made.sum().item())
"""


def run(word: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, word]
    return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False)


def test_a_write_beyond_a_tensor_ends_the_process_with_the_place() -> None:
    ended = run("beyond")
    assert ended.returncode != 0 and "SUM" not in ended.stdout
    assert "ERROR: AddressSanitizer" in ended.stderr
    assert "sections.cpp" in ended.stderr or "rdukit_section_" in ended.stderr


def test_a_right_kernel_runs() -> None:
    ended = run("within")
    assert (ended.returncode, ended.stdout) == (0, "SUM 96.0\n"), ended.stderr


def test_without_the_sanitizers_library_the_error_says_how_to_start() -> None:
    ended = run("within", LD_PRELOAD="")
    assert ended.returncode == 1 and "scripts/sanitize.py" in ended.stderr
