"""The console's pages of the catalog: everything that jobs can begin with, entries side by side, and one box."""

from dataclasses import dataclass
from shlex import quote
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rdukit.errors import InvalidArgument, RdukitError
from rdukit_platform.api.catalog import picture_of
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.entries import MAX_WORDS, compare_named, search_entries, show_one
from rdukit_platform.catalog.comparison import MAX_COMPARED, ComparedLine
from rdukit_platform.catalog.entries import FACETS, Entry, EntryKind, EntryList, EntryQuery, EntrySort
from rdukit_platform.catalog.figures import figure_words, headline
from rdukit_platform.catalog.own import box_of, get_own, versions_of
from rdukit_platform.console.access import Visitor
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.console.queries import submit_commands
from rdukit_platform.console.run_form import view_recipes

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Entries on a page.
PAGE: Final = 36
#: Names of the kinds, of one and of several.
KINDS: Final = {
    EntryKind.BOX: ("box", "Boxes"), EntryKind.MODEL: ("model", "Models"), EntryKind.EXPERT: ("expert", "Experts"),
    EntryKind.CHECKPOINT: ("checkpoint", "Checkpoints"), EntryKind.PEF: ("PEF", "PEFs"),
    EntryKind.DATASET: ("data set", "Data sets"),
}  # fmt: skip
ORDERS: Final = {"best": "Best match", "name": "Name", "newest": "Newest", "parameters": "Fewest parameters",
                 "-parameters": "Most parameters"}  # fmt: skip
_METRIC: Final = "metric."


@dataclass(frozen=True, slots=True)
class EntryCard:
    """An entry as a card shows it."""

    entry: Entry
    #: Its page.
    path: str
    kind: str
    figures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices in a facet's list: each value with the number of its entries."""

    name: str
    label: str
    chosen: str
    options: tuple[tuple[str, int], ...]


@router.get("/catalog")
def catalog(
    request: Request,
    caller: Visitor,
    search: str = "",
    kind: str = "",
    task: str = "",
    family: str = "",
    modality: str = "",
    licence: str = "",
    sort: str = "",
    deprecated: bool = False,
    cursor: str | None = None,
) -> Response:
    """Show the results of a catalog search, as cards that can be selected for comparison."""
    chosen = {"kind": kind, "task": task, "family": family, "modality": modality, "licence": licence}
    asked = {"search": search[:MAX_WORDS], **chosen, "sort": sort, "deprecated": "true" if deprecated else ""}
    facets = {name: [value] for name, value in chosen.items() if value}
    query = _query(asked["search"], facets, sort, with_deprecated=deprecated)
    try:
        found, error = search_entries(platform_of(request), caller, query, PAGE, cursor), ""
    except InvalidArgument:
        raise
    except RdukitError as failed:
        found, error = EntryList((), 0, {name: {} for name in FACETS}, (), None), failed.message
    return page(
        request, "catalog.html", section="Catalog", asked=asked, error=error, found=found, kinds=KINDS,
        cards=[_card(entry, query.metric) for entry in found.entries], orders=ORDERS, is_narrowed=any(asked.values()),
        facets=[_choices(name, chosen[name], found) for name in FACETS if name != "kind"],
        tabs=[(name, KINDS[name][1], found.counts["kind"].get(name, 0), _path({**asked, "kind": name}))
              for name in KINDS],
        all_path=_path({**asked, "kind": ""}), here=_path(asked), more=sum(found.counts["kind"].values()),
    )  # fmt: skip


@router.get("/entries/compare")
def compare(
    request: Request, caller: Visitor, entry: Annotated[list[str] | None, Query(max_length=20)] = None
) -> Response:
    """Show entries side by side; with one alone, the form that takes another."""
    platform, names = platform_of(request), [name.strip() for name in entry or () if name.strip()]
    names = list(dict.fromkeys(names))
    try:
        entries, lines = compare_named(platform, caller, names) if len(names) > 1 else (
            [show_one(platform, caller, name) for name in names], list[ComparedLine]()
        )  # fmt: skip
        error = ""
    except RdukitError as failed:
        entries, lines, error = [], [], failed.message
    groups: dict[str, list[ComparedLine]] = {}
    for line in lines:
        groups.setdefault(line.group, []).append(line)
    return page(
        request, "compare_entries.html", 200 if not error else 400, section="Catalog", error=error, names=names,
        cards=[_card(one) for one in entries], groups=groups, most=MAX_COMPARED,
        command="rdukit catalog compare " + " ".join(quote(one.id) for one in entries),
    )  # fmt: skip


@router.get("/catalog/{name}")
def box(request: Request, name: str, caller: Visitor) -> Response:
    """Show one ModelBox: verbs, parameters with their allowed values, how to submit."""
    platform = platform_of(request)
    shipped = platform.catalog.boxes()
    found, versions = shipped.boxes.get(name), list[int]()
    if found is None:
        with platform.database.read() as session:
            row = get_own(session, shipped, caller.tenant_id, name)
            versions = versions_of(session, caller.tenant_id, row.name)
        found = box_of(row)
    return page(
        request, "box.html", section="Catalog", box=found, commands=submit_commands(found), versions=versions[::-1],
        recipes=view_recipes(found.raw),
    )  # fmt: skip


@router.get("/catalog/{name}/picture")
def box_picture(request: Request, name: str, caller: Visitor) -> Response:
    """Return a box's picture."""
    return picture_of(platform_of(request), caller.tenant_id, name)


def _query(words: str, facets: dict[str, list[str]], sort: str, *, with_deprecated: bool) -> EntryQuery:
    """Return the query of a page.

    Raises:
        InvalidArgument: the order is unknown.
    """
    if sort.startswith(_METRIC):
        return EntryQuery(words, facets, with_deprecated, EntrySort.METRIC, sort.removeprefix(_METRIC)[:64])
    if sort and sort not in ORDERS:
        raise InvalidArgument(f"unknown order {sort[:64]!r}; expected {', '.join(ORDERS)}, metric.NAME")
    order = EntrySort(sort.removeprefix("-") or EntrySort.BEST)
    return EntryQuery(words, facets, with_deprecated, order, is_reversed=sort.startswith("-"))


def _card(entry: Entry, metric: str = "") -> EntryCard:
    """Return an entry as a card, with the metric first that the list is sorted by."""
    paths = {EntryKind.BOX: f"catalog/{entry.name}", EntryKind.MODEL: f"catalog/{entry.box}",
             EntryKind.EXPERT: f"experts/{entry.name}"}  # fmt: skip
    names = list(dict.fromkeys([*([metric] if metric in entry.metrics else []), *headline(entry.metrics, 2)]))
    figures = tuple(figure_words(name, entry.metrics[name]) for name in names)
    return EntryCard(
        entry, f"/console/{paths.get(entry.kind, f'artifacts/{entry.name}')}", KINDS[entry.kind][0], figures
    )


def _choices(name: str, chosen: str, found: EntryList) -> Choices:
    counts = dict(found.counts[name])
    if chosen:
        counts.setdefault(chosen, 0)
    return Choices(name, name.capitalize(), chosen, tuple(sorted(counts.items())))


def _path(asked: dict[str, str]) -> str:
    query = urlencode({key: value for key, value in asked.items() if value})
    return f"/console/catalog?{query}" if query else "/console/catalog"
