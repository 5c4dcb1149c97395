"""Run the engine tests in two concurrent processes on one engine: ``python scripts/engine/lanes.py [ARGUMENT …]``.

One runs what needs the images, beginning with their build; the other all else, podman's half above all, and at its end
the second stack, on the images that the first has built. Each waits much of its time. The engine is there before either
and until both have ended: docker's and podman's rules of the network do not survive one another's start and end. An
engine that answers is used, otherwise one is started if it may be.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

TREE = Path(__file__).parents[2]
NOTHING_SELECTED = 5


def main(arguments: list[str]) -> int:
    """Run both lanes. Returns the worse of pytest's statuses; that nothing was selected counts only if both say so."""
    # A job in the background of a script would ignore Ctrl-C, and so would the lanes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="rdkeng", dir="/tmp"))
    lanes: list[subprocess.Popen[bytes]] = []
    try:
        environment = {**os.environ, **start_engine(folder)}
        with (folder / "others.txt").open("wb") as said:
            waiting = {**environment, "RDUKIT_ENGINE_BUILDS": "elsewhere"}
            lanes.append(start_lane("not images or second_stack", arguments, waiting, said))
            lanes.append(start_lane("images and not second_stack", arguments, environment, None))
            try:
                statuses = [lane.wait() for lane in reversed(lanes)]
            except KeyboardInterrupt:
                statuses = end_lanes(lanes)
        print("== what needs no image of ours, and the second stack", flush=True)
        sys.stdout.buffer.write((folder / "others.txt").read_bytes())
    finally:
        end_lanes(lanes)
        if (folder / "pid").exists():
            subprocess.run([TREE / "scripts/engine/down", folder], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    selected = [status for status in statuses if status != NOTHING_SELECTED]
    return max(selected, key=abs) if selected else NOTHING_SELECTED


def start_engine(folder: Path) -> dict[str, str]:
    """Start an engine if none answers. Returns the variables by which tests find it, or know that none can start."""
    if subprocess.run(["docker", "version"], capture_output=True, check=False).returncode == 0:
        return {}
    up = subprocess.run([TREE / "scripts/engine/up", folder], capture_output=True, text=True, check=False)
    return {"DOCKER_HOST": up.stdout.strip()} if up.returncode == 0 else {"RDUKIT_ENGINE_START": "1"}


def start_lane(
    selected: str, arguments: list[str], environment: dict[str, str], output: IO[bytes] | None
) -> "subprocess.Popen[bytes]":
    """Start pytest on the tests that the mark expression ``selected`` picks, in a process group of its own.

    Ctrl-C in a terminal then reaches it once and by way of ``end_lanes``: a second one would cut its end short.
    """
    command = [sys.executable, "-m", "pytest", "-q", "tests/engine", "-m", selected, *arguments]
    return subprocess.Popen(
        command, cwd=TREE, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
    )


def end_lanes(lanes: "list[subprocess.Popen[bytes]]") -> list[int]:
    """Interrupt the processes that still run, and wait for them. Returns the statuses."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for lane in lanes:
        if lane.poll() is None:
            lane.send_signal(signal.SIGINT)
    return [lane.wait() for lane in lanes]


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
