"""Routes of the box itself."""

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from rdukit_modelbox.rest.schemas import Described, Status, errors
from rdukit_modelbox.server.service import BoxService
from rdukit_serving.rest.web import JsonAnswer


def box_routes(service: BoxService) -> APIRouter:
    """Health, metrics and description."""
    router = APIRouter(tags=["box"])

    @router.get("/health/live", response_model=Status, responses=errors())
    async def live() -> Response:
        """Say whether the process answers."""
        return JsonAnswer({"status": "live"})

    @router.get(
        "/health/ready",
        response_model=Status,
        responses={**errors(), 503: {"model": Status, "description": "not ready"}},
    )
    async def ready() -> Response:
        """Say whether the box takes work now."""
        health = await service.readiness()
        if health.is_ready:
            return JsonAnswer({"status": "ready"})
        return JsonAnswer({"status": "not ready", "reason": health.reason}, 503)

    @router.get(
        "/metrics", response_class=Response,
        responses={**errors(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )  # fmt: skip
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(service.metrics.text(service.operations.all()), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/describe", response_model=Described, responses=errors())
    async def describe() -> Response:
        """Verbs, parameters and their legal values."""
        return JsonAnswer(service.describe())

    return router
