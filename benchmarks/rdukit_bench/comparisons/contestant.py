"""One contestant of a comparison in a process of its own: build what is to be timed, then answer requests.

``contestants.py`` starts ``python -m rdukit_bench.comparisons.contestant MODULE:FUNCTION ARGUMENTS``. The arguments are
keywords as JSON; the function returns ``ContestantCalls``. The process writes one JSON object a line: first the facts,
then one answer for each request on stdin. It ends when stdin ends.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TextIO


@dataclass(frozen=True, slots=True)
class ContestantCalls:
    """Calls and facts of a contestant.

    ``calls``: what can be timed, by name; what a call returns is read only if it is asked for. ``facts``: small numbers
    that the parent checks, as JSON takes them. The clocks are those of the process: wall time and CPU time of all its
    threads.
    """

    calls: Mapping[str, Callable[[], Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)


def main(function: str, arguments: Mapping[str, Any], requests: TextIO, answers: TextIO) -> None:
    """Build, then answer every request."""
    module, _, name = function.partition(":")
    work: ContestantCalls = getattr(import_module(module), name)(**arguments)
    _answer(answers, {"facts": dict(work.facts)})
    for line in requests:
        request = json.loads(line)
        call = work.calls[request["call"]]
        if request["do"] == "value":
            _save(call(), request["path"])
            _answer(answers, {})
        else:
            _answer(answers, time_calls(call, request["repeats"]))


def time_calls(
    call: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> dict[str, float]:  # fmt: skip
    """Return the seconds a call, by the wall clock and by the processor's.

    A sample of several calls begins with one that does not count: another side had the caches before.
    """
    if repeats > 1:
        call()
    began, cpu_began = clock(), cpu_clock()
    for _ in range(repeats):
        call()
    return {"wall_s": (clock() - began) / repeats, "cpu_s": (cpu_clock() - cpu_began) / repeats}


def _save(value: Any, path: str) -> None:
    import torch

    torch.save(value, path)


def _answer(answers: TextIO, body: Mapping[str, Any]) -> None:
    answers.write(json.dumps(body) + "\n")
    answers.flush()


def _run(function: str, arguments: str) -> int:
    """Run the process; what compilers and peers print does not mix with the answers."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        main(function, json.loads(arguments), sys.stdin, answers)
    # The process's border: the parent gets the reason.
    except Exception as cause:
        words = next((line.strip() for line in str(cause).splitlines() if line.strip()), "")
        _answer(answers, {"error": f"{type(cause).__name__}: {words}"})
        raise
    return 0


if __name__ == "__main__":
    sys.exit(_run(sys.argv[1], sys.argv[2]))
