"""The application with a box's control routes, and the routes of the box itself."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from rdukit import __version__
from rdukit_modelbox.rest.malformed import malformed_request
from rdukit_modelbox.rest.routes_operations import operation_routes
from rdukit_modelbox.rest.routes_verbs import verb_routes
from rdukit_modelbox.rest.schemas import Described, Status, errors
from rdukit_modelbox.server.service import BoxService
from rdukit_serving.rest.web import BodyLimits, JsonAnswer, add_error_handlers

_TAGS: Final = [
    {"name": "box", "description": "Description and health of the box."},
    {"name": "verbs", "description": "Compile, train, preprocess, infer and evaluate."},
    {"name": "inference", "description": "Open Inference Protocol v2."},
    {"name": "operations", "description": "Operations, kept in memory while the box runs: poll, follow, cancel."},
]


def make_app(
    service: BoxService, more: Sequence[APIRouter] = (), other_paths: Mapping[str, Any] | None = None
) -> FastAPI:
    """Return the application for ``service``, with ``more`` routes.

    ``other_paths``: paths of other servers, for ``/openapi.json``.
    """
    app = FastAPI(
        title=service.box.title,
        description=service.box.description,
        version=__version__,
        openapi_tags=_TAGS,
        docs_url=None,  # its page would load scripts from elsewhere; /openapi.json is the same for machines
        redoc_url=None,
    )
    for routes in (box_routes, verb_routes, operation_routes):
        app.include_router(routes(service))
    for router in more:
        app.include_router(router)
    describe, others = app.openapi, dict(other_paths or {})

    def describe_all() -> dict[str, Any]:
        own = describe()
        return {**own, "paths": {**own["paths"], **others}}

    app.openapi = describe_all  # type: ignore[method-assign]
    add_error_handlers(app, malformed_request)
    app.add_middleware(BodyLimits)
    return app


def box_routes(service: BoxService) -> APIRouter:
    """Return the routes of health, metrics and description."""
    router = APIRouter(tags=["box"])

    @router.get("/health/live", response_model=Status, responses=errors())
    async def live() -> Response:
        """Report that the process answers."""
        return JsonAnswer({"status": "live"})

    @router.get(
        "/health/ready",
        response_model=Status,
        responses={**errors(), 503: {"model": Status, "description": "not ready"}},
    )
    async def ready() -> Response:
        """Report whether the box accepts work now."""
        health = await service.readiness()
        if health.is_ready:
            return JsonAnswer({"status": "ready"})
        return JsonAnswer({"status": "not ready", "reason": health.reason}, 503)

    @router.get(
        "/metrics", response_class=Response,
        responses={**errors(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )  # fmt: skip
    async def metrics() -> Response:
        """Return metrics as Prometheus text."""
        return Response(service.metrics.text(service.operations.all()), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/describe", response_model=Described, responses=errors())
    async def describe() -> Response:
        """Verbs, parameters and their legal values."""
        return JsonAnswer(service.describe())

    return router
