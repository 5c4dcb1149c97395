"""The README's port, run as its reader does."""

import os
import re
import subprocess
import sys
from pathlib import Path

from support import shows
from support.pages import DOCS, code_blocks

pytestmark = shows("surface", "project")


def test_the_port_of_the_readme_prints_a_small_difference(tmp_path: Path) -> None:
    (port,) = code_blocks((DOCS.parent / "README.md").read_text())
    (tmp_path / "net.py").write_text(port)
    environment = {**os.environ, "RDUKIT_KERNELS": "portable", "OMP_NUM_THREADS": "1", "RDUKIT_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "net.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    difference = re.search(r"^([\d.]+(?:e-\d+)?)$", done.stdout, re.MULTILINE)
    assert difference is not None, done.stdout
    assert 0 < float(difference[1]) < 0.02, "bf16 has eight bits of a number"
