"""Runs of ``sambatune`` below an artifact root. Files may be damaged or hostile: sizes are bounded.

Source: sambatune reference 1.4 and 1.5 (tree and names of files); ours otherwise.
"""

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, NotFound
from rdukit.strict_json import find_number
from rdukit_runtime.sambatune.reports import Row

#: Most bytes of a report that is read, and most runs and files in lists.
MOST_BYTES: Final = 1 << 24
_MOST_RUNS: Final = 1000
_MOST_FILES: Final = 500


@dataclass(frozen=True, slots=True)
class TuneRun:
    """A run's folder below ``sambatune_gen``."""

    name: str
    folder: Path

    @property
    def changed_s(self) -> float:
        """Time of the folder's last change, in seconds since 1970."""
        return self.folder.stat().st_mtime

    def document(self, path: str) -> dict[str, Any]:
        """Return a JSON object below the folder; empty if it is missing or unreadable."""
        try:
            value = json.loads(self._read(path))
        except (OSError, ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def table(self, path: str) -> list[Row]:
        """Return the rows of a CSV file below the folder, as cells by the first line's columns; empty if the file is
        missing.
        """
        try:
            found = csv.DictReader(io.StringIO(self._read(path)), restval="")
            return [{name: cell for name, cell in row.items() if name is not None} for row in found]
        except (OSError, ValueError, csv.Error):
            return []

    def lines(self, path: str) -> list[str]:
        """Return the lines of a log."""
        try:
            return self._read(path).splitlines()
        except (OSError, ValueError):
            return []

    @property
    def failures(self) -> list[str]:
        """Steps that failed, with their reasons."""
        return self.lines("logs/failures_debug.log")

    @property
    def verdict(self) -> str:
        """The verdict of the insights."""
        overview = self.document("reports/analysis/summary.json").get("Overview", "no insights were written")
        return str(overview.get("verdict", "")) if isinstance(overview, dict) else str(overview)

    @property
    def insights(self) -> list[str]:
        """Sentences of the insights: where to look on the host, and the longest sections."""
        document = self.document("reports/analysis/summary.json")
        listed = [each for part in ("Host", "RDU") for each in _rows(document.get(part)) if isinstance(each, dict)]
        return ["; ".join(str(value) for value in each.values() if isinstance(value, str)) for each in listed]

    @property
    def throughput(self) -> float | None:
        """Samples a second, measured on the machine of the run; None: not measured."""
        found = find_number(self.document("reports/runtime_perf_info.json").get("throughput_samples_s"))
        return found if found is not None and math.isfinite(found) else None

    def files(self) -> Iterator[str]:
        """Yield the paths of the run's reports and logs, the first few hundred."""
        found = (path for part in ("reports", "logs") for path in sorted((self.folder / part).rglob("*")))
        for _, path in zip(range(_MOST_FILES), (each for each in found if each.is_file()), strict=False):
            yield str(path.relative_to(self.folder))

    def file(self, path: str) -> Path:
        """Return a file of the run.

        Raises:
            NotFound: the file is missing, or the path leaves the folder, perhaps by a link.
        """
        try:
            found = (self.folder / path).resolve()
            is_inside = found.is_relative_to(self.folder.resolve()) and found.is_file()
        except (OSError, ValueError):
            is_inside = False
        if not is_inside:
            raise NotFound(f"the run {self.name!r} has no file {path!r}; its page lists its files")
        return found

    def _read(self, path: str) -> str:
        """Return a file's text.

        Raises:
            OSError: it cannot be read. ValueError: the file is too large, not text, or outside of the folder.
        """
        try:
            found = self.file(path)
        except NotFound as error:
            raise ValueError(error.message) from error
        with found.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise ValueError(f"{found} has over {MOST_BYTES} bytes")
        return data.decode()


def _rows(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def list_runs(root: Path) -> list[TuneRun]:
    """Return the runs below an artifact root, the latest first.

    Raises:
        InvalidArgument: the folder is not an artifact root.
    """
    folder = root / "sambatune_gen"
    if not folder.is_dir():
        raise InvalidArgument(f"{root} has no folder sambatune_gen; expected the --artifact-root of a sambatune run")
    found = [
        TuneRun(path.name, path) for path in folder.iterdir() if not path.is_symlink() and (path / "reports").is_dir()
    ]
    return sorted(found, key=lambda run: (-run.changed_s, run.name))[:_MOST_RUNS]


def find_run(root: Path, name: str) -> TuneRun:
    """Return a run by its name.

    Raises:
        NotFound: the run does not exist.
    """
    found = next((run for run in list_runs(root) if run.name == name), None)
    if found is None:
        raise NotFound(f"unknown run {name!r}; the first page lists all runs")
    return found
