"""The console's overview: running and waiting jobs with reasons, latest failures, endpoints that are not ready, and
free tiles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fastapi import APIRouter, Request
from markupsafe import Markup
from sqlalchemy.orm import Session
from starlette.responses import Response

from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.endpoints import show_all
from rdukit_platform.api.nodes import nodes_seen
from rdukit_platform.console import curve as picture
from rdukit_platform.console.access import Visitor
from rdukit_platform.console.endpoint_pages import TONES as ENDPOINT_TONES
from rdukit_platform.console.navigation import OVERVIEW
from rdukit_platform.console.page import PageRoute, fragment, live, page
from rdukit_platform.console.tiles import view_nodes
from rdukit_platform.console.utilisation import read_utilisation
from rdukit_platform.console.views import JobView, view_job
from rdukit_platform.endpoints.plan import EndpointState
from rdukit_platform.endpoints.schemas import Endpoint
from rdukit_platform.endpoints.service import list_endpoints
from rdukit_platform.jobs.listing import list_jobs
from rdukit_platform.jobs.schemas import show_job
from rdukit_platform.jobs.states import JobState
from rdukit_platform.jobs.tenant_use import read_tenant_uses
from rdukit_platform.tenants.service import Caller, find_tenant

router = APIRouter(prefix="/console", include_in_schema=False, route_class=PageRoute)

#: Jobs that each list of the overview has, and the newest endpoints that it looks at.
SHOWN: Final = 5
ENDPOINTS: Final = 200
AT_WORK: Final = (JobState.STARTING, JobState.RUNNING)
WAITING: Final = (JobState.QUEUED, JobState.RETRYING, JobState.SUBMITTED, JobState.PAUSED)
#: States of endpoints that are as wanted; the overview shows the others.
AS_WANTED: Final = frozenset({EndpointState.READY, EndpointState.IDLE, EndpointState.STOPPED})


@dataclass(frozen=True, slots=True)
class JobPanel:
    """List of the overview: newest jobs in some states, and the number of jobs in each of them."""

    title: str
    views: tuple[JobView, ...]
    #: State and number of jobs in it, for links to all of them.
    counts: tuple[tuple[str, int], ...]
    #: Text of the empty list.
    empty: str

    @property
    def total(self) -> int:
        """Number of jobs in these states."""
        return sum(count for _, count in self.counts)


@router.get("/overview")
def overview(request: Request, caller: Visitor) -> Response:
    """Show the state of the tenant's work and of the nodes at one look."""
    platform = platform_of(request)
    with platform.database.read() as session:
        use = read_utilisation(session, caller.tenant_id, platform.clock.now())
    return page(
        request, "overview.html", section=OVERVIEW.name, live=_overview_part(request, caller), use=use,
        size=(picture.WIDTH, picture.HEIGHT), edges=(picture.LEFT, picture.WIDTH - picture.RIGHT),
    )  # fmt: skip


@router.get("/parts/overview")
def overview_part(request: Request, caller: Visitor) -> Response:
    """Return the overview again."""
    return fragment(request, _overview_part(request, caller))


def endpoints_to_look_at(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the endpoints that differ from their wanted state (pure)."""
    return [one for one in endpoints if one.state not in AS_WANTED]


def read_panel(
    session: Session,
    tenant_id: str,
    now: float,
    counts: Mapping[str, int],
    title: str,
    states: Sequence[JobState],
    empty: str,
) -> JobPanel:
    """Read the newest jobs in some states; each state is read by its index, so that no page waits for many jobs."""
    rows = [row for state in states for row in list_jobs(session, tenant_id, str(state), SHOWN)[0]]
    rows = sorted(rows, key=lambda row: row.created_at, reverse=True)[:SHOWN]
    return JobPanel(
        title,
        tuple(view_job(show_job(row), now) for row in rows),
        tuple((str(state), counts[state]) for state in states if counts.get(state)),
        empty,
    )


def _overview_part(request: Request, caller: Caller) -> Markup:
    platform = platform_of(request)
    now = platform.clock.now()
    with platform.database.read() as session:
        counts = platform.counts.read(session, caller.tenant_id, platform.clock)
        panels = [
            read_panel(session, caller.tenant_id, now, counts, "At work", AT_WORK, "Nothing runs."),
            read_panel(session, caller.tenant_id, now, counts, "Waiting", WAITING, "Nothing waits."),
            read_panel(session, caller.tenant_id, now, counts, "Failed", (JobState.FAILED,), "No job has failed."),
        ]
        rows, more = list_endpoints(session, caller.tenant_id, ENDPOINTS)
        endpoints = show_all(session, rows, now)
        tenant = find_tenant(session, caller.tenant_id)
        use = read_tenant_uses(session, [tenant])[tenant.id] if tenant is not None else None
    nodes = view_nodes(nodes_seen(platform, caller))
    up = [node for node in nodes if node["state"] == "up"]
    return live(
        request, "overview", "/console/parts/overview", "_overview.html", seconds=5,
        panels=panels, is_new=not counts and not endpoints, nodes=nodes,
        free=sum(node["free"] for node in up),
        total=sum(node["total"] for node in up), faults=sum(len(node["faults"]) for node in nodes),
        endpoints=len(endpoints), more_endpoints=more is not None, unready=endpoints_to_look_at(endpoints),
        endpoint_tones=ENDPOINT_TONES, tenant=tenant, use=use,
    )  # fmt: skip
