"""The REST wire of a box: routes of ``docs/design/wire.md``, errors in one body, progress as server-sent events."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from starlette.exceptions import HTTPException

from rdukit import __version__
from rdukit.errors import RdukitError
from rdukit_modelbox.box import Verb
from rdukit_modelbox.service import BoxService, VerbCall
from rdukit_modelbox.sse import KEEP_ALIVE, frame_event

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 15.0


class VerbBody(BaseModel):
    """A verb's request. Parameters are checked against the box, not here."""

    model_config = ConfigDict(extra="forbid")

    parameters: dict[str, Any] = Field(default_factory=dict)
    inputs: dict[str, str] = Field(default_factory=dict)
    output: str = ""
    idempotency_key: str | None = None

    def to_call(self) -> VerbCall:
        """The service's form."""
        return VerbCall(self.parameters, self.inputs, self.output, self.idempotency_key or "")


class RowsBody(BaseModel):
    """Rows to classify at once."""

    model_config = ConfigDict(extra="forbid")

    rows: list[list[float]] = Field(min_length=1)
    inputs: dict[str, str] = Field(default_factory=dict)


def _kind_of_infer(body: object) -> str:
    return "rows" if isinstance(body, RowsBody) or (isinstance(body, dict) and "rows" in body) else "verb"


InferBody = Annotated[
    Annotated[RowsBody, Tag("rows")] | Annotated[VerbBody, Tag("verb")], Discriminator(_kind_of_infer)
]


def make_app(service: BoxService) -> FastAPI:
    """The application for ``service``."""
    app = FastAPI(
        title=service.box.title,
        description=service.box.description,
        version=__version__,
        docs_url=None,  # its page would load scripts from elsewhere; /openapi.json is the same for machines
        redoc_url=None,
    )
    _add_errors(app)
    _add_health(app, service)
    _add_verbs(app, service)
    _add_operations(app, service)
    return app


def _add_health(app: FastAPI, service: BoxService) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """The process answers."""
        return {"status": "live"}

    @app.get("/health/ready")
    async def ready() -> Response:
        """The box takes work now."""
        health = service.health()
        if health.is_ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": health.reason}, 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text."""
        return Response(service.metrics.text(service.operations.all()), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/describe")
    async def describe() -> dict[str, Any]:
        """Verbs, parameters and their legal values."""
        return service.describe()


def _add_verbs(app: FastAPI, service: BoxService) -> None:
    @app.post("/v1/preprocess", status_code=202)
    async def preprocess(body: VerbBody) -> dict[str, Any]:
        """Images to a data set."""
        return service.submit(Verb.PREPROCESS, body.to_call()).to_json()

    @app.post("/v1/compile", status_code=202)
    async def compile_model(body: VerbBody) -> dict[str, Any]:
        """The model to a PEF."""
        return service.submit(Verb.COMPILE, body.to_call()).to_json()

    @app.post("/v1/train", status_code=202)
    async def train(body: VerbBody) -> dict[str, Any]:
        """A PEF and a data set to checkpoints."""
        return service.submit(Verb.TRAIN, body.to_call()).to_json()

    @app.post("/v1/infer", status_code=202)
    async def infer(body: InferBody, response: Response) -> dict[str, Any]:
        """Classify a data set (202, an operation), or the rows in the body (200, the answer)."""
        if isinstance(body, VerbBody):
            return service.submit(Verb.INFER, body.to_call()).to_json()
        outputs, labels = await service.infer_rows(body.rows, body.inputs)
        response.status_code = 200
        return {"outputs": outputs, "labels": labels}


def _add_operations(app: FastAPI, service: BoxService) -> None:
    @app.get("/v1/operations")
    async def list_operations() -> dict[str, Any]:
        """All operations of this process, oldest first."""
        return {"operations": [operation.to_json() for operation in service.operations.all()]}

    @app.get("/v1/operations/{operation_id}")
    async def get_operation(operation_id: str) -> dict[str, Any]:
        """One operation."""
        return service.operations.get(operation_id).to_json()

    @app.get("/v1/operations/{operation_id}/events")
    async def events(operation_id: str, request: Request, after: Annotated[int, Query(ge=0)] = 0) -> Response:
        """What happens to it, as it happens; ends after the result. ``Last-Event-ID`` continues as ``after`` does."""
        service.operations.get(operation_id)
        last = request.headers.get("last-event-id", "")
        start = max(after, int(last) if last.isdigit() else 0)
        return StreamingResponse(
            _stream(service, operation_id, start), media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )  # fmt: skip

    @app.post("/v1/operations/{operation_id}/cancel")
    async def cancel(operation_id: str) -> dict[str, Any]:
        """Cancel it and wait until it has ended."""
        operation = await service.cancel(operation_id)
        return operation.to_json()


async def _stream(service: BoxService, operation_id: str, after: int) -> AsyncIterator[bytes]:
    events = aiter(service.watch(operation_id, after))
    pending = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=KEEP_ALIVE_S)
            if not done:
                yield KEEP_ALIVE
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            yield frame_event(event.kind, event.sequence, event.to_json())
            pending = asyncio.ensure_future(anext(events))
    finally:
        pending.cancel()


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RdukitError)
    async def refused(request: Request, error: RdukitError) -> Response:
        return JSONResponse(error.body(_request_id(request)), error.http_status)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        faults = [{"at": ".".join(map(str, e["loc"])), "message": str(e["msg"])} for e in error.errors()]
        words = "; ".join(f"{fault['at']}: {fault['message']}" for fault in faults)
        return _body(request, 422, "malformed-request", f"the request is malformed: {words}", {"faults": faults})

    @app.exception_handler(HTTPException)
    async def refused_by_framework(request: Request, error: HTTPException) -> Response:
        code = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "invalid-request")
        message = f"{request.method} {request.url.path}: {error.detail}; the routes are listed at /docs"
        return _body(request, error.status_code, code, message, {}, error.headers)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        logger.error("request broke path=%s", request.url.path, exc_info=error)
        return _body(request, 500, "internal", "the box failed; its log has more under this request id", {})


def _body(
    request: Request,
    status: int,
    code: str,
    message: str,
    detail: dict[str, object],
    headers: Mapping[str, str] | None = None,
) -> Response:
    value = {"error": {"code": code, "message": message, "detail": detail, "request_id": _request_id(request)}}
    return JSONResponse(value, status, headers=dict(headers or {}))


def _request_id(request: Request) -> str:
    return request.headers.get("x-request-id", "")[:128] or f"req-{secrets.token_hex(8)}"
