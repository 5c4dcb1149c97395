"""Entries of the catalog (pure): their properties, search, order and counts."""

import base64
import binascii
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rdukit.errors import IllegalValue, InvalidArgument, suggest
from rdukit.strict_json import find_number
from rdukit_platform.catalog.figures import is_lower_better
from rdukit_platform.db.rows import check_limit


class EntryKind(StrEnum):
    """Kinds of entries, in the order in which they are listed."""

    BOX = "box"
    MODEL = "model"
    EXPERT = "expert"
    CHECKPOINT = "checkpoint"
    PEF = "pef"
    DATASET = "dataset"


class EntrySort(StrEnum):
    """Orders of a list: best matches first, or by a key."""

    BEST = "best"
    NAME = "name"
    NEWEST = "newest"
    PARAMETERS = "parameters"
    METRIC = "metric"


#: Kinds that are artifacts; callers without the right to read artifacts do not find them.
ARTIFACT_KINDS: Final = (EntryKind.CHECKPOINT, EntryKind.PEF, EntryKind.DATASET)
#: Properties that a list can be filtered by.
FACETS: Final = ("kind", "task", "family", "modality", "licence")
_KINDS: Final = tuple(EntryKind)


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that the catalog lists. Unknown values are an empty text or null.

    ``sizes`` are numbers of parameters by the name of a published size. ``metrics`` are measured figures (for a
    box: its recipe's on held-out data). ``projected`` has the cost model's seconds of a step by emulated chip,
    ``recipes`` the results by kind of recipe.
    """

    #: Unique name of the entry: ``KIND/NAME``.
    id: str
    kind: EntryKind
    name: str
    title: str
    description: str = ""
    task: str = ""
    #: Name of the zoo's model.
    family: str = ""
    modality: str = ""
    licence: str = ""
    source: str = ""
    #: Box that it belongs to, or that runs it, as a job names it.
    box: str = ""
    #: The job that made it.
    job: str | None = None
    #: Whether it belongs to the tenant; otherwise to rdukit.
    is_own: bool = False
    parameters: int | None = None
    bytes: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, object] = field(default_factory=dict)
    projected: Mapping[str, float] = field(default_factory=dict)
    recipes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    #: Description of its picture (``GET /v1/catalog/{box}/picture``); empty: no picture.
    picture: str = ""
    created_at: float | None = None
    #: Reason of its deprecation; null: not deprecated.
    deprecated: str | None = None


@dataclass(frozen=True, slots=True)
class EntryQuery:
    """Query for entries: all words must match, and for each facet one of the given values."""

    words: str = ""
    facets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    with_deprecated: bool = False
    sort: EntrySort = EntrySort.BEST
    #: Metric for ``EntrySort.METRIC``.
    metric: str = ""
    #: Whether the order is reversed.
    is_reversed: bool = False


@dataclass(frozen=True, slots=True)
class EntryList:
    """A page of results, their total number, and counts of each value by facet."""

    entries: tuple[Entry, ...]
    total: int
    counts: Mapping[str, Mapping[str, int]]
    #: Metrics of the results, to sort by.
    metrics: tuple[str, ...]
    next_cursor: str | None


def find_entries(
    known: Iterable[Entry],
    query: EntryQuery,
    limit: int = 50,
    cursor: str | None = None,
    directions: Mapping[str, str] | None = None,
) -> EntryList:
    """Return a page of the entries that a query finds.

    Args:
        directions: the metrics that boxes declare, each with its direction: higher, lower, or neither.
    Raises:
        InvalidArgument: limit or cursor are not valid, or the order lacks its metric.
        IllegalValue: no box declares the metric of the order, and nothing has it.
    """
    check_limit(limit)
    if query.sort is EntrySort.METRIC and not query.metric:
        raise InvalidArgument("the order 'metric' needs a metric; expected a choice such as metric=accuracy")
    words, known = fold(query.words).split(), list(known)
    if query.sort is EntrySort.METRIC:
        _check_metric(query.metric, known, directions or {})
    ranks = {
        entry.id: rank
        for entry in known
        if (query.with_deprecated or entry.deprecated is None) and (rank := _rank(entry, words)) is not None
    }
    found = [entry for entry in known if entry.id in ranks]
    wanted = {name: frozenset(values) for name, values in query.facets.items() if values}
    counts: dict[str, dict[str, int]] = {name: {} for name in FACETS}
    listed = []
    for entry in found:
        misses = [name for name, values in wanted.items() if getattr(entry, name) not in values]
        if not misses:
            listed.append(entry)
        # A value's count is the number of entries listed if it were chosen.
        for name in FACETS if not misses else misses[:1] if len(misses) == 1 else ():
            if value := str(getattr(entry, name)):
                counts[name][value] = counts[name].get(value, 0) + 1
    listed = _sort(listed, query, ranks, (directions or {}).get(query.metric, ""))
    start = _place(listed, cursor)
    page = tuple(listed[start : start + limit])
    is_last = start + limit >= len(listed)
    names = {name for entry in listed for name, value in entry.metrics.items() if find_number(value) is not None}
    return EntryList(
        page, len(listed), {name: _ordered(name, values) for name, values in counts.items()}, tuple(sorted(names)),
        None if is_last else _cursor(page[-1].id, start + limit),
    )  # fmt: skip


def fold(text: str) -> str:
    """Return a text in the form that searches compare: without case."""
    return text.casefold()


def text_of_entry(entry: Entry) -> str:
    """Return the searched text of an entry, folded."""
    parts = (entry.name, entry.title, entry.kind, entry.task, entry.family, entry.modality, entry.licence,
             entry.source, entry.box, entry.job or "", entry.description, entry.id, *entry.sizes)  # fmt: skip
    return fold("\n".join(parts))


def _rank(entry: Entry, words: Sequence[str]) -> int | None:
    """Return an entry's score, higher is better; ``None``: a word does not match."""
    if not words:
        return 0
    name, title, text = fold(entry.name), fold(entry.title), text_of_entry(entry)
    rank = 0
    for word in words:
        if word not in text:
            return None
        rank += 4 if word == name else 3 if word in name else 2 if word in title else 1
    return rank


def _check_metric(name: str, known: Iterable[Entry], directions: Mapping[str, str]) -> None:
    measured = {each for entry in known for each, value in entry.metrics.items() if find_number(value) is not None}
    legal = sorted({*measured, *directions})
    if legal and name not in legal:
        raise IllegalValue(
            f"metric: no box declares {name[:64]!r}, and no entry here has it.{suggest(name[:64], legal)} "
            f"Legal: {', '.join(legal)}",
            legal=legal,
        )


def _sort(entries: list[Entry], query: EntryQuery, ranks: Mapping[str, int], better: str = "") -> list[Entry]:
    """Return the entries in the requested order; entries without its key come last, also if reversed."""
    best = sorted(
        entries,
        key=lambda one: (-ranks[one.id], _KINDS.index(one.kind), -(one.created_at or 0.0), fold(one.name), one.id),
    )
    if query.sort is EntrySort.BEST:
        return best[::-1] if query.is_reversed else best
    keys = {entry.id: _key(entry, query) for entry in best}
    is_lower = better == "lower" if better else is_lower_better(query.metric)
    falls = query.sort is EntrySort.NEWEST or (query.sort is EntrySort.METRIC and not is_lower)
    with_key = [entry for entry in best if keys[entry.id] is not None]
    with_key.sort(key=lambda one: keys[one.id], reverse=falls != query.is_reversed)  # type: ignore[arg-type,return-value]
    return with_key + [entry for entry in best if keys[entry.id] is None]


def _key(entry: Entry, query: EntryQuery) -> str | float | None:
    if query.sort is EntrySort.NAME:
        return fold(entry.name)
    if query.sort is EntrySort.NEWEST:
        return entry.created_at
    if query.sort is EntrySort.PARAMETERS:
        return entry.parameters
    value = find_number(entry.metrics.get(query.metric))
    return value if value is not None and math.isfinite(value) else None


def _ordered(name: str, counts: Mapping[str, int]) -> dict[str, int]:
    if name == "kind":
        return {kind: counts[kind] for kind in _KINDS if kind in counts}
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _cursor(last_id: str, place: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([last_id, place]).encode()).decode().rstrip("=")


def _place(entries: Sequence[Entry], cursor: str | None) -> int:
    """Return the start of a page: after the previous page's last entry, or at its position if it is gone."""
    if cursor is None:
        return 0
    try:
        last_id, place = json.loads(base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
        place = int(place)
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error) as cause:
        raise InvalidArgument(f"{cursor[:80]!r} is not a cursor; use next_cursor of the previous page") from cause
    found = next((at for at, entry in enumerate(entries) if entry.id == last_id), None)
    return max(place, 0) if found is None else found + 1
