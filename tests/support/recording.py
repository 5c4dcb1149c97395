"""A pytest plugin: records each case's time, and shows the end of services' logs beside a failure.

``scripts/run_tests.py`` names a folder; without one nothing is written. Loaded by ``tests/conftest.py``.
"""

import json
import os
import resource
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import pytest

#: Names the folder that records are written to.
FOLDER_VARIABLE: Final = "RDUKIT_TEST_RECORDS"
#: Lines of each log that a failure shows.
TAIL_LINES: Final = 25
#: Log files, and folders with ``*.log`` files, of services that tests started.
_logs: Final = list[Path]()
#: When the case at work began.
_began_s: Final = [0.0]
#: What services that a case itself ran had logged when it failed, until the case has ended.
_said: Final = list[str]()


def note_log(place: Path) -> None:
    """Show the end of this log with each case from now on that fails, if it was written to during the case."""
    _logs.append(place)


@contextmanager
def service_logs(place: Path) -> Iterator[None]:
    """Show the end of these logs with each case that fails meanwhile.

    Args:
        place: a log file, or a folder whose ``*.log`` files are shown; it may be gone afterwards.
    """
    _logs.append(place)
    try:
        yield
    except BaseException:
        _said.append(read_tails([place]))
        raise
    finally:
        _logs.remove(place)


def read_tails(places: Iterable[Path], since_s: float = 0.0) -> str:
    """Return the last lines of each log that has any and was written to since then."""
    files = [file for place in places for file in (sorted(place.rglob("*.log")) if place.is_dir() else [place])]
    tails = []
    for file in files:
        try:
            lines = file.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            is_new = file.stat().st_mtime >= since_s
        except OSError:
            continue
        if lines and is_new:
            tails.append("\n".join([f"-- end of {file.name}", *lines]))
    return "\n".join(tails)


def used_s() -> float:
    """Return the processor time of this process and of its children that have ended, in seconds."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


class CaseRecorder:
    """Writes a line for each set-up, call and end of a case."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._used_s = used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:  # fmt: skip
        """Record what a phase took and how it ended."""
        report = yield
        now_s = used_s()
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        line = {
            "case": item.nodeid, "phase": report.when, "seconds": round(report.duration, 3),
            "core_s": round(now_s - self._used_s, 3), "outcome": report.outcome, "why": why,
        }  # fmt: skip
        self._used_s = now_s
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        return report


def pytest_runtest_logstart() -> None:
    """Remember when a case begins."""
    _began_s[0] = time.time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of services' logs to what a failed case shows."""
    report = yield
    tails = "\n".join(filter(None, [*_said, read_tails(_logs, _began_s[0])])) if report.failed else ""
    _said.clear()
    if tails:
        report.sections.append(("Logs of services", tails))
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Begin to record where a folder is named."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        file = (Path(folder) / f"{os.getpid()}.jsonl").open("a")
        config.add_cleanup(file.close)
        config.pluginmanager.register(CaseRecorder(file))
