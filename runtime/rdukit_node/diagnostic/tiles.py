"""Checks of the tiles: a program of the model zoo computes on each, and prints its results as lines."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rdukit.errors import RuntimeFault, Unavailable
from rdukit.settings import DEVICE, LEASE, SND_SOCKET
from rdukit_node.diagnostic.model import CheckResult, CheckVerdict, TilePlan
from rdukit_node.settings import ACQUIRE_WAIT_S, NODE, TILE_AFFINITY_VARIABLE

PROGRAM: Final = "rdukit_zoo.diagnostic"
#: Checks of each tile by level, for progress: sections and memory; at level 3 sections in bf16 too.
CHECKS: Final = {2: 2, 3: 3}
_SETTINGS_NOT_TAKEN: Final = (LEASE.variable, ACQUIRE_WAIT_S.variable, DEVICE.variable, TILE_AFFINITY_VARIABLE)


def count_checks(plan: TilePlan, level: int) -> int:
    """Return the number of results of ``check_tiles`` without a failure."""
    return len(plan.tiles) * CHECKS[level] + (len(plan.rdus) if level == 3 else 0)


def check_tiles(plan: TilePlan, chip: str, level: int, socket: Path) -> Iterator[CheckResult]:
    """Yield results as they come, tile by tile. Closing the iterator ends the program.

    Args:
        chip: of the node. level: 2 or 3. socket: of the node's daemon.
    Raises:
        Unavailable: the program or one of its packages is not installed. RuntimeFault: the program ended with an error.
    """
    if importlib.util.find_spec(PROGRAM.partition(".")[0]) is None:
        raise Unavailable("levels 2 and 3 compile and run a program: install rdukit with its SDK here, or take level 1")
    if not plan.tiles:
        return
    command = [
        sys.executable, "-m", PROGRAM, "--arch", chip, "--level", str(level),
        "--tiles", ",".join(map(str, plan.tiles)),
        "--rdus", ";".join(",".join(map(str, tiles)) for tiles in plan.rdus.values()),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name not in _SETTINGS_NOT_TAKEN}
    environment |= {NODE.variable: "daemon", SND_SOCKET.variable: str(socket), "OMP_NUM_THREADS": "1"}
    rdus = {tiles: rdu for rdu, tiles in plan.rdus.items()}
    # The folder belongs to this process, so an interrupted program leaves nothing.
    with (
        tempfile.TemporaryDirectory(prefix="rdukit-diag-") as folder,
        (Path(folder) / "words").open("w+") as words,
        subprocess.Popen(
            [*command, "--folder", folder], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=words, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        try:
            for text in process.stdout:
                line = json.loads(text)
                tiles = tuple(line["tiles"])
                path = plan.tiles[tiles[0]] if len(tiles) == 1 else rdus[tiles]
                yield CheckResult(
                    line["check"], path, CheckVerdict(line["verdict"]), line["said"],
                    "snfadm --cordon PATH keeps jobs away from it" if line["verdict"] == CheckVerdict.FAIL else "",
                    line["seconds"],
                )  # fmt: skip
            if process.wait():
                words.seek(0)
                raise RuntimeFault(f"{PROGRAM} ended with status {process.returncode}: {_last_line(words.read())}")
        finally:
            process.kill()  # closed early, or Ctrl-C: its lease ends with it


def _last_line(words: str) -> str:
    lines = [line for line in words.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
