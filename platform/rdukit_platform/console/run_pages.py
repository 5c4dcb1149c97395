"""The console's pages of runs side by side: choose some, compare them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from pydantic import JsonValue
from starlette.responses import Response

from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.catalog.figures import figure_text
from rdukit_platform.console import curve as picture
from rdukit_platform.console.access import Visitor
from rdukit_platform.console.page import PageRoute, page
from rdukit_platform.console.views import view_job
from rdukit_platform.jobs import listing, service
from rdukit_platform.jobs.compare import MOST, Comparison, Line, compare_runs, read_ids, read_runs
from rdukit_platform.jobs.metrics import iterate_progress_events, points_of
from rdukit_platform.jobs.schemas import show_job
from rdukit_platform.jobs.search import MAX_SEARCH
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Jobs that the page to choose from shows at once.
CHOICES = 50
#: Heading of the verb's arguments, in its own names.
DIFFERENT = "Parameters that differ"


@dataclass(frozen=True, slots=True)
class TextLine:
    """Line of the comparison in words."""

    name: str
    cells: tuple[str, ...]
    differs: bool


@router.get("/compare")
def compare(
    request: Request,
    caller: Visitor,
    ids: Annotated[list[str] | None, Query()] = None,
    choose: bool = False,
    q: Annotated[str, Query(max_length=MAX_SEARCH)] = "",
    cursor: str | None = None,
    metric: str = "",
) -> Response:
    """Show runs side by side, with the curves of a metric, or, with fewer than two, those to choose from."""
    asked = [word for text in ids or [] for word in text.split(",") if word.strip()]
    if choose or len(set(asked)) < 2:
        return _choice_page(request, caller, asked, q.strip(), cursor)
    chosen = read_ids(asked)
    platform = platform_of(request)
    boxes, now = platform.catalog.boxes(), platform.clock.now()
    with platform.database.read() as session:
        runs = read_runs(session, boxes, caller.tenant_id, chosen)
        found = compare_runs(runs)
        metrics = picture.metric_names(line.name for line in found.metrics)
        drawn = metric if metric in metrics else next(iter(metrics), picture.LOSS)
        series = [points_of((event.values for event in iterate_progress_events(session, one)), drawn) for one in chosen]
    return page(
        request, "compare.html", section="Jobs", views=[view_job(run.job, now) for run in runs], tables=_tables(found),
        same=[_text_line(line, is_parameter=True) for line in found.parameters if not line.differs],
        curves=picture.draw_curves(series), metric=drawn, metrics=metrics, title_of=picture.metric_title,
        text_of=picture.metric_text,
        size=(picture.WIDTH, picture.HEIGHT), edges=(picture.LEFT, picture.WIDTH - picture.RIGHT),
        command=f"rdukit job compare {' '.join(chosen)}", query="&".join(f"ids={one}" for one in chosen),
    )  # fmt: skip


def _choice_page(request: Request, caller: Caller, asked: Sequence[str], q: str, cursor: str | None) -> Response:
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.read() as session:
        found = listing.find_jobs(session, caller.tenant_id, q, limit=CHOICES, cursor=cursor)
        listed = {row.id for row in found.jobs}
        others = [service.get_job(session, caller.tenant_id, one) for one in dict.fromkeys(asked) if one not in listed]
        views = [view_job(show_job(row), now) for row in [*others, *found.jobs]]
    return page(
        request, "compare_choice.html", section="Jobs", views=views, chosen=set(asked), most=MOST,
        next_cursor=found.next_cursor, q=q, searched_to=found.searched_to,
        older="/console/compare?" + urlencode([("choose", "true"), *([("q", q)] if q else []),
                                               *(("ids", one) for one in asked)]),
    )  # fmt: skip


def _tables(found: Comparison) -> list[tuple[str, list[TextLine]]]:
    metrics = [
        Line(name=f"{line.name}{suffix}", values=[*values], differs=any(value != values[0] for value in values))
        for line in found.metrics
        for suffix, values in (("", line.last), (", lowest", line.lowest), (", highest", line.highest))
        if not suffix or line.name == "loss"
    ]
    tables = [
        (DIFFERENT, [line for line in found.parameters if line.differs]),
        ("Results", found.results),
        ("Metrics, at last", metrics),
        ("Times", found.durations),
    ]
    return [
        (title, [_text_line(line, is_parameter=title == DIFFERENT) for line in lines])
        for title, lines in tables if lines
    ]  # fmt: skip


def _text_line(line: Line, *, is_parameter: bool = False) -> TextLine:
    """Return a line as text with units; a figure differs only if runs that have it disagree."""
    name = line.name if is_parameter else line.name.removesuffix("_s").replace("_", " ")
    known = [value for value in line.values if value is not None]
    differs = line.differs and (is_parameter or any(value != known[0] for value in known))
    return TextLine(name, tuple(_cell(line.name, value) for value in line.values), differs)


def _cell(name: str, value: JsonValue) -> str:
    if value is None:
        return "–"
    if isinstance(value, list | dict):
        return str(value)
    return figure_text(name, value)
