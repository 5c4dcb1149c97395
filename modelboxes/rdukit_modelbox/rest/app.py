"""The application for the control routes of a box: routes, errors and limits put together."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI

from rdukit import __version__
from rdukit_modelbox.rest.malformed import malformed_request
from rdukit_modelbox.rest.routes_box import box_routes
from rdukit_modelbox.rest.routes_operations import operation_routes
from rdukit_modelbox.rest.routes_verbs import verb_routes
from rdukit_modelbox.server.service import BoxService
from rdukit_serving.rest.web import BodyLimits, add_error_handlers

_TAGS: Final = [
    {"name": "box", "description": "What the box is and how it is."},
    {"name": "verbs", "description": "Compile, train, preprocess, infer and evaluate."},
    {"name": "inference", "description": "Open Inference Protocol v2."},
    {"name": "operations", "description": "Verbs that take their time: poll, follow, cancel."},
]


def make_app(service: BoxService, more: Sequence[APIRouter] = (), told: Mapping[str, Any] | None = None) -> FastAPI:
    """Return the application for ``service``, with ``more`` routes.

    ``told``: paths that others answer, for ``/openapi.json``.
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
    describe, others = app.openapi, dict(told or {})

    def describe_all() -> dict[str, Any]:
        own = describe()
        return {**own, "paths": {**own["paths"], **others}}

    app.openapi = describe_all  # type: ignore[method-assign]
    add_error_handlers(app, malformed_request)
    app.add_middleware(BodyLimits)
    return app
