"""A sample taken in a fresh process: a module of this package is run, its last line is JSON."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdukit.errors import RuntimeFault


def run_sample(module: str, *arguments: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Run ``python -m rdukit_zoo.comparisons.<module>`` to its end.

    Raises:
        RuntimeFault: it failed; with the last line of its stderr.
    """
    made = subprocess.run(
        [sys.executable, "-m", f"rdukit_zoo.comparisons.{module}", *arguments],
        capture_output=True, text=True, env=dict(environ), check=False,
    )  # fmt: skip
    if made.returncode != 0:
        last = (made.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeFault(f"{module} {' '.join(arguments)} ended with {made.returncode}: {last}")
    found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return found


def warm_environment(folder: Path, **more: str) -> dict[str, str]:
    """This environment with caches of Inductor and of Python's bytecode in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        **more,
    }
