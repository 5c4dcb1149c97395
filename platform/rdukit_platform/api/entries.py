"""Routes of the catalog's entries: search over all kinds, and comparison."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel

from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import BoxesReader, Cursor, Limit, platform_of
from rdukit_platform.catalog.comparison import MAX_COMPARED, ComparedLine, compare_entries
from rdukit_platform.catalog.entries import Entry, EntryKind, EntryList, EntryQuery, EntrySort, find_entries
from rdukit_platform.catalog.listing import get_entry, read_entries
from rdukit_platform.catalog.model import directions_of
from rdukit_platform.tenants.scopes import ARTIFACTS_READ, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/v1/entries", tags=["catalog"])

#: Longest text of a search, and largest number of values of a facet.
MAX_WORDS = 200
MAX_VALUES = 20

Values = Annotated[list[str] | None, Query(max_length=MAX_VALUES, description="Any of these values; repeat for more.")]


class EntryPage(BaseModel):
    """Entries in the requested order; ``next_cursor`` asks for the rest."""

    entries: list[Entry]
    #: Number of results on all pages.
    total: int
    #: By kind, task, family, modality and licence: number of results per value.
    counts: dict[str, dict[str, int]]
    #: Metrics of some entries, to sort by.
    metrics: list[str]
    next_cursor: str | None


class EntryComparison(BaseModel):
    """Comparison of entries; each line has one value per entry."""

    entries: list[Entry]
    lines: list[ComparedLine]


@router.get("")
def list_(
    request: Request,
    caller: BoxesReader,
    search: Annotated[str, Query(max_length=MAX_WORDS, description="Words that each have to occur in an entry.")] = "",
    kind: Annotated[
        list[EntryKind] | None, Query(max_length=MAX_VALUES, description="Any of these values; repeat for more.")
    ] = None,
    task: Values = None,
    family: Values = None,
    modality: Values = None,
    licence: Values = None,
    deprecated: Annotated[bool, Query(description="Include deprecated ones.")] = False,
    sort: Annotated[EntrySort, Query(description="What comes first.")] = EntrySort.BEST,
    metric: Annotated[str, Query(max_length=64, description="Metric for sort=metric; the best first.")] = "",
    reverse: Annotated[bool, Query(description="Reverse the order.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> EntryPage:
    """Search the catalog: boxes, sizes of models, experts, checkpoints, PEFs and data sets.

    Boxes and models of rdukit are listed for all; other entries, and installed boxes, are the tenant's own. Artifacts
    need the scope ``artifacts:read``. The newest 2,000 experts and artifacts are searched.
    """
    asked = {"kind": kind, "task": task, "family": family, "modality": modality, "licence": licence}
    facets = {name: [str(value) for value in values or ()] for name, values in asked.items()}
    query = EntryQuery(search, facets, deprecated, sort, metric, reverse)
    found = search_entries(platform_of(request), caller, query, limit, cursor)
    return EntryPage(
        entries=list(found.entries), total=found.total, counts={name: dict(v) for name, v in found.counts.items()},
        metrics=list(found.metrics), next_cursor=found.next_cursor,
    )  # fmt: skip


@router.get("/compare")
def compare(
    request: Request,
    caller: BoxesReader,
    entry: Annotated[list[str] | None, Query(description="KIND/NAME, or a name; two to four.")] = None,
) -> EntryComparison:
    """Compare two to four entries of any kinds: descriptions, sizes, figures and recipes."""
    entries, lines = compare_named(platform_of(request), caller, entry or [])
    return EntryComparison(entries=entries, lines=lines)


@router.get("/show")
def show(
    request: Request,
    caller: BoxesReader,
    entry: Annotated[str, Query(max_length=MAX_WORDS, description="KIND/NAME, or a name.")],
) -> Entry:
    """Return one entry with all its properties."""
    return show_one(platform_of(request), caller, entry)


def search_entries(
    platform: Platform, caller: Caller, query: EntryQuery, limit: int = 50, cursor: str | None = None
) -> EntryList:
    """Return the results of a caller's query. Raises as ``find_entries``."""
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        known = read_entries(session, boxes, caller.tenant_id, query, with_artifacts=_reads_artifacts(caller))
    return find_entries(known, query, limit, cursor, directions_of(boxes))


def compare_named(platform: Platform, caller: Caller, names: list[str]) -> tuple[list[Entry], list[ComparedLine]]:
    """Return the entries that a caller names, and their comparison. Raises as ``get_entry`` and ``compare_entries``."""
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        entries = [
            get_entry(session, boxes, caller.tenant_id, name, with_artifacts=_reads_artifacts(caller))
            for name in names[: MAX_COMPARED + 1]
        ]
    return entries, compare_entries(entries)


def show_one(platform: Platform, caller: Caller, name: str) -> Entry:
    """Return the entry that a caller names. Raises as ``get_entry``."""
    boxes = platform.catalog.boxes()
    with platform.database.read() as session:
        return get_entry(session, boxes, caller.tenant_id, name, with_artifacts=_reads_artifacts(caller))


def _reads_artifacts(caller: Caller) -> bool:
    return allows(caller.scopes, ARTIFACTS_READ)
