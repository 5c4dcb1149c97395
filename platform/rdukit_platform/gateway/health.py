"""Health of the platform's parts, and its metrics."""

from typing import Final

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from rdukit_platform.api.context import Platform
from rdukit_platform.api.dependencies import PUBLIC_ROUTE, platform_of
from rdukit_platform.api.nodes import is_any_up
from rdukit_platform.artifacts.stores.s3 import S3Store
from rdukit_platform.db.engine import is_reachable
from rdukit_platform.services import live_services

router = APIRouter(tags=["health"])

READY: Final = "ready"


class GatewayHealth(BaseModel):
    """``ready`` when all parts are up, else ``degraded``; ``parts`` says which are."""

    status: str
    parts: dict[str, bool]


@router.get("/health", dependencies=[PUBLIC_ROUTE], response_model=GatewayHealth)
def health(request: Request) -> Response:
    """Report whether the platform is ready; 503 only when the database is unreachable."""
    found = read_health(platform_of(request))
    return JSONResponse(found.model_dump(), 200 if found.parts["database"] else 503)


@router.get("/health/live", dependencies=[PUBLIC_ROUTE])
def live() -> dict[str, str]:
    """Report that the gateway answers at all, regardless of other parts."""
    return {"status": "live"}


def read_health(platform: Platform) -> GatewayHealth:
    """Return the present state of the parts."""
    parts = {"database": is_reachable(platform.database), "broker": platform.notifier.is_up(), "node": False}
    kinds = set()
    if parts["database"]:
        parts["node"] = is_any_up(platform)
        with platform.database.read() as session:
            kinds = {service.kind for service in live_services(session, platform.clock.now())}
    parts["scheduler"], parts["worker"] = "scheduler" in kinds, "worker" in kinds
    if isinstance(platform.store, S3Store):
        parts["artifacts"] = platform.store.bucket.is_up()
    return GatewayHealth(status=READY if all(parts.values()) else "degraded", parts=parts)
