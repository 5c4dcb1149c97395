"""The application for the control routes of a box: routes, errors and limits put together."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from rdukit import __version__
from rdukit.errors import MalformedRequest, RdukitError
from rdukit_modelbox.rest.malformed import malformed_request
from rdukit_modelbox.rest.routes_box import box_routes
from rdukit_modelbox.rest.routes_operations import operation_routes
from rdukit_modelbox.rest.routes_verbs import verb_routes
from rdukit_modelbox.service import BoxService
from rdukit_serving.rest.web import BodyLimits, ClientGone, error_answer, plain_error

logger = logging.getLogger(__name__)

_CODES: Final = {404: "not-found", 405: "method-not-allowed"}
_TAGS: Final = [
    {"name": "box", "description": "What the box is and how it is."},
    {"name": "verbs", "description": "Compile, train, preprocess and infer."},
    {"name": "inference", "description": "Open Inference Protocol v2."},
    {"name": "operations", "description": "Verbs that take their time: poll, follow, cancel."},
]


def make_app(service: BoxService, more: Sequence[APIRouter] = (), told: Mapping[str, Any] | None = None) -> FastAPI:
    """The application for ``service``, with ``more`` routes.

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
    _add_errors(app)
    app.add_middleware(BodyLimits)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RdukitError)
    async def refused(request: Request, error: RdukitError) -> Response:
        return error_answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return error_answer(request, malformed_request(error.errors(), request.headers.get("content-type", "")))

    @app.exception_handler(HTTPException)
    async def refused_by_framework(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, RdukitError):
            return error_answer(request, error.__cause__)
        if error.status_code == 400:
            # Its parser failed: bytes that are not UTF-8, or nested too deeply.
            return error_answer(request, MalformedRequest(f"the body is not JSON: {error.detail}", field="body"))
        code = _CODES.get(error.status_code, "invalid-request")
        message = f"{request.method} {request.url.path[:200]}: {error.detail}; the routes are listed at /openapi.json"
        return plain_error(request, error.status_code, code, message, error.headers)

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        logger.error("request broke path=%s", request.url.path, exc_info=error)
        return plain_error(request, 500, "internal", "the box failed; its log has more under this request id")
