"""Whether the platform's parts are up, and its metrics."""

from typing import Final

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from sqlalchemy import func, select
from starlette.responses import JSONResponse, Response

from rdukit.errors import RdukitError
from rdukit.snd import SndClient
from rdukit_platform.context import Platform
from rdukit_platform.db.engine import is_reachable
from rdukit_platform.db.models import JobRow
from rdukit_platform.gateway.dependencies import platform_of
from rdukit_platform.jobs.states import JobState
from rdukit_platform.services import live_services

router = APIRouter(tags=["health"])

READY: Final = "ready"


class Health(BaseModel):
    """``ready`` when all parts are up, else ``degraded``; ``parts`` says which are."""

    status: str
    parts: dict[str, bool]


@router.get("/health", response_model=Health)
def health(request: Request) -> Response:
    """Whether the platform is ready; 503 only when the database is away."""
    found = read_health(platform_of(request))
    return JSONResponse(found.model_dump(), 200 if found.parts["database"] else 503)


@router.get("/health/live")
def live() -> dict[str, str]:
    """Whether the gateway answers at all, whatever else is up."""
    return {"status": "live"}


@router.get("/metrics", include_in_schema=False)
def metrics(request: Request) -> Response:
    """Prometheus text: this gateway's requests, and the jobs by state."""
    platform = platform_of(request)
    lines = ["# HELP rdukit_jobs Jobs by state.", "# TYPE rdukit_jobs gauge"]
    with platform.database.read() as session:
        counts = dict(session.execute(select(JobRow.state, func.count()).group_by(JobRow.state)).tuples().all())
    lines += [f'rdukit_jobs{{state="{state}"}} {counts.get(str(state), 0)}' for state in JobState]
    return Response(generate_latest() + "\n".join([*lines, ""]).encode(), media_type=CONTENT_TYPE_LATEST)


def read_health(platform: Platform) -> Health:
    """The state of the parts, asked now."""
    parts = {"database": is_reachable(platform.database), "broker": platform.waker.is_up(), "node": False}
    try:
        with SndClient(platform.home.snd_socket, timeout_s=1.0) as snd:
            snd.call("hello")
            parts["node"] = True
    except RdukitError:
        pass
    kinds = set()
    if parts["database"]:
        with platform.database.read() as session:
            kinds = {service.kind for service in live_services(session, platform.clock.now())}
    parts["scheduler"], parts["worker"] = "scheduler" in kinds, "worker" in kinds
    return Health(status=READY if all(parts.values()) else "degraded", parts=parts)
