"""Health of the platform's parts, and its metrics."""

from typing import Final

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from sqlalchemy import func, select
from starlette.responses import JSONResponse, Response

from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import Anyone, check_scope, platform_of
from rdukit_platform.api.roster import is_any_up
from rdukit_platform.db.engine import is_reachable
from rdukit_platform.db.models import JobRow
from rdukit_platform.jobs.states import JobState
from rdukit_platform.services import live_services
from rdukit_platform.tenants.scopes import JOBS_READ, METRICS, allows

router = APIRouter(tags=["health"])

READY: Final = "ready"


class GatewayHealth(BaseModel):
    """``ready`` when all parts are up, else ``degraded``; ``parts`` says which are."""

    status: str
    parts: dict[str, bool]


@router.get("/health", response_model=GatewayHealth)
def health(request: Request) -> Response:
    """Report whether the platform is ready; 503 only when the database is away."""
    found = read_health(platform_of(request))
    return JSONResponse(found.model_dump(), 200 if found.parts["database"] else 503)


@router.get("/health/live")
def live() -> dict[str, str]:
    """Report that the gateway answers at all, whatever else is up."""
    return {"status": "live"}


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request, caller: Anyone) -> Response:
    """Prometheus text: the tenant's jobs by state; with the scope ``metrics`` all jobs, and this gateway's requests."""
    platform = platform_of(request)
    sees_all = allows(caller.scopes, METRICS)
    query = select(JobRow.state, func.count()).group_by(JobRow.state)
    if not sees_all:
        check_scope(caller, JOBS_READ)
        query = query.where(JobRow.tenant_id == caller.tenant_id)
    lines = ["# HELP rdukit_jobs Jobs by state.", "# TYPE rdukit_jobs gauge"]
    with platform.database.read() as session:
        counts = {str(row[0]): int(row[1]) for row in session.execute(query)}
    lines += [f'rdukit_jobs{{state="{state}"}} {counts.get(str(state), 0)}' for state in JobState]
    of_gateway = generate_latest() if sees_all else b""
    return Response(of_gateway + "\n".join([*lines, ""]).encode(), media_type=CONTENT_TYPE_LATEST)


def read_health(platform: Platform) -> GatewayHealth:
    """Return the state of the parts, asked now."""
    parts = {"database": is_reachable(platform.database), "broker": platform.notifier.is_up(), "node": False}
    kinds = set()
    if parts["database"]:
        parts["node"] = is_any_up(platform)
        with platform.database.read() as session:
            kinds = {service.kind for service in live_services(session, platform.clock.now())}
    parts["scheduler"], parts["worker"] = "scheduler" in kinds, "worker" in kinds
    return GatewayHealth(status=READY if all(parts.values()) else "degraded", parts=parts)
