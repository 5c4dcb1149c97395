"""The contestants of a comparison, each in a process of its own, of which one runs at a time.

In one process they would share the allocator's options, the threads and what importing one of them changes for the
others. The parent tells them in turn how many calls to time, so that a slow spell of the machine hits all of them.
A side that fails or crashes is left out from then on, with its reason in ``Contestants.failed``. Source: ours.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rdukit.errors import RuntimeFault
from rdukit_bench.comparisons.timing import SampleTiming, choose_repeats

#: A call of a side: the side's name, and the call's.
Place = tuple[str, str]


class Contestants:
    """The processes, by name; a context manager that ends all of them."""

    def __init__(self, folder: Path) -> None:
        """Open in a scratch folder, through which processes exchange values."""
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[str]] = {}
        #: Facts of each side that has started.
        self.facts: dict[str, dict[str, Any]] = {}
        #: Why a side is not there (any more), in a line.
        self.failed: dict[str, str] = {}

    def __enter__(self) -> "Contestants":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in list(self._processes):
            self.close(name)

    def start(self, name: str, function: str, /, **arguments: Any) -> bool:
        """Start a side and wait until it is built; nothing else runs meanwhile.

        Args:
            function: ``package.module:function``, which gives a ``ContestantCalls``; ``arguments`` are its keywords.
        Returns:
            Whether it is there; if not, ``failed`` has the reason.
        """
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", "rdukit_bench.comparisons.contestant", function, json.dumps(arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with suppress(RuntimeFault):
            self.facts[name] = self._read(name)["facts"]
        return name in self._processes

    def has(self, name: str) -> bool:
        """Return whether the contestant is there."""
        return name in self._processes

    def measure(
        self, places: Mapping[str, Place], rounds: int, *, sample_s: float, warmup: int = 2
    ) -> dict[str, SampleTiming]:
        """Time the calls in turn, ``rounds`` samples of each; a sample is as many calls as last about ``sample_s``.

        Args:
            places: what is timed, by the name that its timing gets.
        Returns:
            Timings of those whose contestants lasted to the end.
        """
        counts: dict[str, int] = {}
        samples: dict[str, list[dict[str, float]]] = {label: [] for label in places}
        # A side that fails is in ``failed`` from then on; the others go on.
        for label, place in places.items():
            with suppress(RuntimeFault):
                for _ in range(warmup):
                    self.time(place, 1)
                counts[label] = choose_repeats(self.time(place, 1)["wall_s"], sample_s)
        for _ in range(rounds):
            for label, count in counts.items():
                with suppress(RuntimeFault):
                    samples[label].append(self.time(places[label], count))
        return {
            label: SampleTiming(tuple(s["wall_s"] for s in samples[label]), tuple(s["cpu_s"] for s in samples[label]))
            for label, (side, _) in places.items()
            if side in self._processes
        }

    def time(self, place: Place, repeats: int) -> dict[str, float]:
        """Return the seconds a call of one sample: ``wall_s`` and ``cpu_s``.

        Raises:
            RuntimeFault: the side is not there, or fails now.
        """
        return self._ask(place, do="time", repeats=repeats)

    def value(self, place: Place) -> Any:
        """Return the result of a call: a tensor.

        Raises:
            RuntimeFault: the side is not there, or fails now.
        """
        import torch

        path = self._folder / "value.pt"
        self._ask(place, do="value", path=str(path))
        return torch.load(path)

    def close(self, name: str) -> None:
        """End a side that is there: its memory is free for the others."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def _ask(self, place: Place, **request: Any) -> dict[str, Any]:
        name, call = place
        if name not in self._processes:
            raise RuntimeFault(f"{name} is not there: {self.failed.get(name, 'it was not started')}")
        stdin = self._processes[name].stdin
        assert stdin is not None
        with suppress(BrokenPipeError):
            stdin.write(json.dumps({**request, "call": call}) + "\n")
            stdin.flush()
        return self._read(name)

    def _read(self, name: str) -> dict[str, Any]:
        process = self._processes[name]
        assert process.stdout is not None
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": _describe_end(process.wait())}
        if "error" in answer:
            self.failed[name] = str(answer["error"])
            self.close(name)
            raise RuntimeFault(f"{name}: {self.failed[name]}")
        return answer


def _describe_end(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def run_sample(module: str, *arguments: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Run ``python -m rdukit_bench.comparisons.<module>`` to its end.

    Raises:
        RuntimeFault: it failed; with the last line of its stderr.
    """
    made = subprocess.run(
        [sys.executable, "-m", f"rdukit_bench.comparisons.{module}", *arguments],
        capture_output=True, text=True, env=dict(environ), check=False,
    )  # fmt: skip
    if made.returncode != 0:
        last = (made.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeFault(f"{module} {' '.join(arguments)} ended with {made.returncode}: {last}")
    found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return found


def warm_environment(folder: Path, **more: str) -> dict[str, str]:
    """Return this environment with caches of Inductor and of Python's bytecode in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **kept,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        **more,
    }
