"""Measurements of ``rdukit tune``, in a process of their own, with the program's variables: JSON on the last line.

``python -m rdukit_runtime.tune.measure FILE.pef`` times a step; with two PEFs it compares them in turns.

Source: ours.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

#: A measurement takes the best of at least this many steps, and of as many as fit into the time.
_LEAST_STEPS: Final = 10
_MOST_STEPS: Final = 2000
_SECONDS: Final = 1.0


def measure_step(path: Path, seconds: float = _SECONDS) -> float:
    """Return the best seconds of a step of a PEF with made-up values.

    A step that one thread of the processor computes is timed by that thread's own time, so other programs on a busy
    machine do not count.

    Args:
        seconds: time to measure, by the same clock.
    Raises:
        PefError: the file cannot be used. NoResources: the node has no room.
    """
    from rdukit.pef.file import read_pef
    from rdukit_runtime.application import open_application
    from rdukit_runtime.profile.run import ProfileRequest, fill_program, run_once, schedule_of

    with open_application(path, "tune") as application:
        fill_program(application.program, read_pef(path).kernels)
        schedule = schedule_of(application, ProfileRequest(path))
        run_once(application, schedule)
        is_alone = application.threads == 1 and application.program.device.type == "cpu"
        now = time.thread_time if is_alone else time.perf_counter
        best_s, steps, until = float("inf"), 0, now() + seconds
        while steps < _LEAST_STEPS or (steps < _MOST_STEPS and now() < until):
            began = now()
            run_once(application, schedule)
            best_s = min(best_s, now() - began)
            steps += 1
    return best_s


def measure(paths: list[Path], rounds: int, runs: int) -> dict[str, Any]:
    """Return the measurement of one PEF, or the comparison of two, as plain values."""
    from rdukit_runtime.profile.compare_command import compare_files
    from rdukit_runtime.profile.comparison import comparison_to_dict

    if len(paths) == 1:
        return {"step_s": measure_step(paths[0])}
    return comparison_to_dict(compare_files(paths[0], paths[1], rounds, runs))


def main() -> None:
    """Entry point: rounds, runs, then one PEF or two."""
    rounds, runs, *paths = sys.argv[1:]
    print(json.dumps(measure([Path(path) for path in paths], int(rounds), int(runs))), flush=True)


if __name__ == "__main__":
    main()
