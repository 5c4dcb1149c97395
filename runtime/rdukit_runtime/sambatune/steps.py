"""Steps of ``sambatune``: each is tried, and logged with its time and the command that repeats it; a failure does not
stop the others.

A line a step goes to the terminal and to ``logs/run.log`` in the vendor's form. The other logs are written at the end:
``status_summary`` (steps with their seconds, -1.000 where nothing was timed), ``status_debug`` (commands that repeat a
step), ``failures_debug`` (reasons) and ``elapsed_time``.

Source: compiler reference 10.3, sambatune reference 1.5 (logs and the lines' form); words of steps are ours.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from rdukit.errors import RdukitError
from rdukit.files.atomic import write_reports

#: Seconds of a step that was not timed.
NOT_TIMED: Final = -1.0


@dataclass(frozen=True, slots=True)
class TuneStep:
    """An ended step. ``failure``: empty if it succeeded; ``command``: repeats it, if a command can."""

    name: str
    seconds: float
    command: str = ""
    failure: str = ""


@dataclass(slots=True)
class StepLog:
    """Steps so far, in order.

    Args:
        folder: folder of the logs. echo: prints a line for the user. now: the time for lines. clock: monotonic seconds.
    """

    folder: Path
    echo: Callable[[str], None]
    now: Callable[[], datetime] = datetime.now
    clock: Callable[[], float] = time.monotonic
    results: list[TuneStep] = field(default_factory=list)

    @property
    def run_log(self) -> Path:
        """The file of all lines and of the programs' output."""
        return self.folder / "run.log"

    def run(self, name: str, action: Callable[[], object], command: Sequence[str] = ()) -> bool:
        """Do a step; returns whether it succeeded. A failure is noted, and raises nothing."""
        began, failure = self.clock(), ""
        try:
            action()
        except RdukitError as error:
            failure = error.message
        except OSError as error:
            failure = f"{error.strerror or error}: {error.filename or self.folder}"
        self._note(TuneStep(name, self.clock() - began, shlex.join(command), failure))
        return not failure

    def skip(self, name: str, missing: str) -> None:
        """Record that a step is impossible, because the step ``missing`` failed."""
        self._note(TuneStep(name, NOT_TIMED, failure=f"needs the result of step {missing!r}, which failed"))

    def info(self, text: str) -> None:
        """Log information for the user that is not a step."""
        self._say("Info", text)

    def _note(self, result: TuneStep) -> None:
        self.results.append(result)
        if not result.failure:
            self._say("Info", f"SUCCESS: {result.name}")
            return
        self._say("Error", f"FAILURE: {result.name}")
        self._say("Error", f"Message: {result.failure}")

    def _say(self, level: str, text: str) -> None:
        line = f"{self.now():%d-%b %H:%M:%S} - {level} - {text}"
        self.echo(line)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.run_log.open("a") as stream:
            print(line, file=stream)

    @property
    def failed(self) -> list[TuneStep]:
        """Steps that failed."""
        return [result for result in self.results if result.failure]

    def write(self) -> None:
        """Write the other logs.

        Raises:
            OSError: they cannot be written.
        """
        write_reports(self.folder, {name: text.encode() for name, text in log_texts(self.results).items()})


def log_texts(results: Sequence[TuneStep]) -> Mapping[str, str]:
    """Return the logs of ended steps by file name (pure)."""
    summary = [
        f"{'FAILURE' if result.failure else 'SUCCESS'} : {result.name} ({result.seconds:.3f} sec)" for result in results
    ]
    repeat = [f"# {result.name}\n{result.command}" for result in results if result.command]
    failures = [f"{result.name}: {result.failure}" for result in results if result.failure]
    total = sum(result.seconds for result in results if result.seconds > 0)
    timed = [f"{result.name}: {result.seconds:.3f} s" for result in results if result.seconds >= 0]
    return {
        "status_summary.log": _lines(summary),
        "status_debug.log": _lines(repeat),
        "failures_debug.log": _lines(failures),
        "elapsed_time.log": _lines([*timed, f"total: {total:.3f} s"]),
    }


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
