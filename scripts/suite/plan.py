"""Plan of a run of the tests: files, the parts that run them, and each layer's share of the time.

Each part is a pytest of its own with files of one layer. Parts that mostly wait for processes that they start and parts
that compute alternate, so that any stretch of the run has of both.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from suite.features import read_shown

#: Mark of the cases that only ``make test-all`` runs.
LONG = "long"


@dataclass(frozen=True, slots=True)
class Layer:
    """Folder of tests: the number of parts in each tier, and its share of the short tier."""

    folder: str
    parts: int
    parts_of_all: int
    #: Core-seconds that its short cases may take on two quiet cores; 1,440 in all are twelve minutes.
    share_core_s: int
    #: Whether it mostly waits for processes that it starts; the others compute.
    is_waiting: bool


LAYERS = (
    Layer("tests/integration", 5, 8, 560, True),
    Layer("tests/conformance", 3, 6, 460, False),
    Layer("tests/security", 1, 2, 120, False),
    Layer("tests/browser", 1, 1, 60, True),
    Layer("tests/unit", 2, 2, 200, False),
    Layer("tests/engine", 1, 1, 40, True),
)
#: Seconds of a case's own part, without its fixtures, above which a new case is marked ``long`` or replaces another.
CASE_S = 2.0
#: Short cases that are over it today, where it stays so: the reader of the report sees which they are.
CASES_OVER = 60


@dataclass(frozen=True, slots=True)
class Part:
    """Files that one pytest runs."""

    name: str
    files: list[str]


def layer_of(file: str) -> str:
    """Return the name of a test file's layer, such as ``unit``."""
    return file.split("/")[1]


def short_files() -> list[str]:
    """Return the test files with a case in the short tier."""
    return [each.file for each in read_shown() if each.is_short]


def all_files() -> list[str]:
    """Return all test files."""
    return [str(path) for layer in LAYERS for path in sorted(Path(layer.folder).rglob("test_*.py"))]


def deal(name: str, files: Iterable[str], count: int, times: Mapping[str, float] | None = None) -> list[Part]:
    """Split a layer's files into parts that take about the same time.

    Args:
        times: core-seconds of files in the last run; a file without counts as the mean. Neighbours by name, which are
            often alike, come to different parts.
    """
    times = times or {}
    known = [times[file] for file in files if file in times]
    mean = sum(known) / len(known) if known else 1.0
    dealt: list[list[str]] = [[] for _ in range(count)]
    sums = [0.0] * count
    for file in sorted(sorted(files), key=lambda file: -times.get(file, mean)):
        least = min(range(count), key=lambda part: sums[part])
        dealt[least].append(file)
        sums[least] += times.get(file, mean)
    named = [Part(f"{name} {i + 1}/{count}" if count > 1 else name, sorted(part)) for i, part in enumerate(dealt)]
    return [part for part in named if part.files]


def mix(first: list[Part], second: list[Part]) -> list[Part]:
    """Return the parts of both in their order, spread so that any stretch has of both what the whole has."""
    placed = [((i + 0.5) / len(parts), part) for parts in (first, second) for i, part in enumerate(parts)]
    return [part for _, part in sorted(placed, key=lambda each: each[0])]


def plan(files: Iterable[str], is_all: bool, times: Mapping[str, float] | None = None) -> list[Part]:
    """Return parts with the files, each in one of them."""
    files = list(files)

    def parts_of(is_waiting: bool) -> list[Part]:
        return [
            part
            for layer in LAYERS
            if layer.is_waiting is is_waiting
            for part in deal(
                layer.folder,
                [file for file in files if file.startswith(f"{layer.folder}/")],
                layer.parts_of_all if is_all else layer.parts,
                times,
            )
        ]

    return mix(parts_of(True), parts_of(False))
