"""The tutorial docs/port.md as its reader does it: the ported script prints what the script of plain PyTorch prints."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support import shows
from support.pages import code_blocks, read_page

pytestmark = shows("port", "surface")

PAGE = read_page("port.md")


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "RDUKIT_KERNELS": "portable", "OMP_NUM_THREADS": "1", "RDUKIT_HOME": str(folder)}
    made = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


def figures(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"(?:loss|accuracy) ([\d.]+)", text)]


def commands(precision: str) -> list[list[str]]:
    """The page's commands that compile for a precision and run that."""
    lines = re.findall(r"^python (rdu_train\.py .*)$", PAGE, re.MULTILINE)
    name = {"bf16": "net", "f32": "net32"}[precision]
    return [shlex.split(line) for line in lines if re.search(rf"\b{name}\b(?!\.)|{name}\.pef", line)]


@pytest.mark.parametrize("precision", ["f32", pytest.param("bf16", marks=pytest.mark.long)])
def test_the_ported_script_prints_what_the_script_prints(tmp_path: Path, precision: str) -> None:
    before, after = (block for block in code_blocks(PAGE) if "def main():" in block)
    (tmp_path / "train.py").write_text(before)
    (tmp_path / "rdu_train.py").write_text(after)
    golden = figures(run(tmp_path, "train.py"))
    assert len(golden) == 8 and golden[::2] == sorted(golden[::2], reverse=True)
    compile_it, run_it = commands(precision)
    run(tmp_path, *compile_it)
    ours = figures(run(tmp_path, *run_it))
    assert ours == pytest.approx(golden, abs={"f32": 1e-3, "bf16": 0.02}[precision])
    load = "import torch, sys; sys.argv = ['x']; torch.load('net.pt', weights_only=True)['out.bias'].sum().item()"
    run(tmp_path, "-c", load)


def test_the_page_shows_what_plain_pytorch_prints_with_this_torch(tmp_path: Path) -> None:
    before = next(block for block in code_blocks(PAGE) if "def main():" in block)
    (tmp_path / "train.py").write_text(before)
    shown = PAGE.partition("The script prints")[2].partition("## What changes")[0]
    assert figures(run(tmp_path, "train.py")) == pytest.approx(figures(shown), abs=0.02)
