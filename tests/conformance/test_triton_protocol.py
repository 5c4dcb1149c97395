"""The same bytes to a real Triton and to a box, where the wheel nvidia-pytriton is there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import shows

pytestmark = shows("inference")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "programs" / "compare_with_triton.py"


def test_a_box_answers_what_triton_answers_and_never_takes_what_it_refuses(tmp_path: Path) -> None:
    home = os.environ.get("PEERS_HOME", "")
    if not Path(home, "v-triton", "bin", "python").is_file():
        pytest.skip(
            "PEERS_HOME names no folder with the environment v-triton (docs/bench.md): no Triton to compare with"
        )
    found = tmp_path / "rows.json"
    command = [sys.executable, str(SCRIPT), "--peers-home", home, "--json", str(found)]
    environment = {**os.environ, "RDUKIT_KERNELS": "portable"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
    rows = json.loads(found.read_text())["rows"]
    assert len(rows) >= 70
    assert sum(row["verdict"] == "same" and row["good"] for row in rows) >= 17
