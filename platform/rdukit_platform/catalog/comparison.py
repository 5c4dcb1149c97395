"""Comparison of catalog entries, line by line (pure): descriptions, sizes, figures and recipes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit.strict_json import find_number
from rdukit_platform.catalog.entries import Entry
from rdukit_platform.catalog.figures import figure_words, is_effort, is_lower_better, is_projected

MIN_COMPARED: Final = 2
MAX_COMPARED: Final = 4

IDENTITY: Final = "What it is"
SIZES: Final = "Sizes"
MEASURED: Final = "Measured"
EFFORT: Final = "What it took"
EMULATED: Final = "Emulated chip, projected"
RECIPES: Final = "Recipes reach"
_FACTS: Final = ("kind", "title", "task", "family", "modality", "licence", "source", "box", "job", "deprecated")


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """A line of a comparison: a value for each entry, or null."""

    group: str
    name: str
    values: tuple[object, ...]
    #: Whether the entries have different values.
    differs: bool
    #: Indices of the entries with the best value of a quality figure; empty: no difference.
    best: tuple[int, ...] = ()


def compare_entries(entries: Sequence[Entry]) -> list[ComparedLine]:
    """Compare two to four entries. Lines without any value are left out.

    Raises:
        InvalidArgument: there are too few or too many entries, or an entry occurs twice.
    """
    if not MIN_COMPARED <= len(entries) <= MAX_COMPARED:
        raise InvalidArgument(f"{len(entries)} entries to compare; expected {MIN_COMPARED} to {MAX_COMPARED}")
    if len({entry.id for entry in entries}) < len(entries):
        raise InvalidArgument("an entry is repeated; expected different entries")
    lines = [*_facts(entries), *_sizes(entries), *_figures(entries), *_projected(entries), *_recipes(entries)]
    return [line for line in lines if any(value not in (None, "") for value in line.values)]


def _facts(entries: Sequence[Entry]) -> Iterator[ComparedLine]:
    for name in _FACTS:
        values = [str(value) if (value := getattr(entry, name)) is not None else None for entry in entries]
        yield _line(IDENTITY, name, values)


def _sizes(entries: Sequence[Entry]) -> Iterator[ComparedLine]:
    yield _line(SIZES, "parameters", [entry.parameters for entry in entries])
    yield _line(SIZES, "bytes", [entry.bytes for entry in entries])
    names = dict.fromkeys(name for entry in entries for name in entry.sizes if name != "default")
    for name in names:
        yield _line(SIZES, name, [entry.sizes.get(name) for entry in entries])


def _figures(entries: Sequence[Entry]) -> Iterator[ComparedLine]:
    names = dict.fromkeys(name for entry in entries for name in entry.metrics if name != "parameters")
    groups = {name: _group_of(name, entries) for name in names}
    for group in (MEASURED, EFFORT, EMULATED):
        for name in (name for name in names if groups[name] == group):
            values = [entry.metrics.get(name) for entry in entries]
            yield _line(group, name, values, find_best(name, values) if group == MEASURED else ())


def _group_of(name: str, entries: Sequence[Entry]) -> str:
    if is_projected(name):
        return EMULATED
    is_number = any(find_number(entry.metrics.get(name)) is not None for entry in entries)
    return MEASURED if is_number and not is_effort(name) else EFFORT


def _projected(entries: Sequence[Entry]) -> Iterator[ComparedLine]:
    for chip in dict.fromkeys(chip for entry in entries for chip in entry.projected):
        yield _line(EMULATED, f"{chip}_step_seconds", [entry.projected.get(chip) for entry in entries])


def _recipes(entries: Sequence[Entry]) -> Iterator[ComparedLine]:
    for kind in dict.fromkeys(kind for entry in entries for kind in entry.recipes):
        reached = [entry.recipes.get(kind, {}) for entry in entries]
        yield _line(RECIPES, kind, [_words(figures) if figures else None for figures in reached])


def find_best(name: str, values: Sequence[object]) -> tuple[int, ...]:
    """Return the indices of the best values, judged by the figure's name; empty: all are equal, or only one has it."""
    read = {at: find_number(value) for at, value in enumerate(values)}
    numbers = {at: number for at, number in read.items() if number is not None and math.isfinite(number)}
    if len(numbers) < MIN_COMPARED or len(set(numbers.values())) == 1:
        return ()
    best = (min if is_lower_better(name) else max)(numbers.values())
    return tuple(at for at, number in numbers.items() if number == best)


def _line(group: str, name: str, values: Sequence[object], best: tuple[int, ...] = ()) -> ComparedLine:
    return ComparedLine(group, name, tuple(values), any(value != values[0] for value in values), best)


def _words(figures: Mapping[str, object]) -> str:
    return ", ".join(figure_words(name, value) for name, value in figures.items())
