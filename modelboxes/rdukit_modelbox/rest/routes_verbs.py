"""Routes of the verbs. Their JSON bodies refuse repeated keys; FastAPI's own bodies take the last one."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Header, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from rdukit.box.sse import EVENT_STREAM
from rdukit.strict_json import read_json
from rdukit.telemetry.spans import TRACEPARENT, current_context, find_traceparent, within
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.rest.routes_operations import EVENTS_CONTENT, answer_events
from rdukit_modelbox.rest.schemas import InferBody, OperationResponse, RowsResponse, TableBody, VerbBody, errors
from rdukit_modelbox.server.service import BoxService
from rdukit_serving.rest.web import JsonAnswer, while_connected

_SUBMITTED: Final[dict[int | str, dict[str, Any]]] = {
    **errors(404, 409, 503),
    200: {"description": f"its events, if `Accept` is {EVENT_STREAM}", "content": EVENTS_CONTENT},
}
_EXAMPLES: Final[dict[str, Any]] = {
    "defaults": {"summary": "every parameter at its default", "value": {}},
    "deadline": {"summary": "with a deadline", "value": {"timeout_s": 3600}},
}
_INFER_EXAMPLES: Final[dict[str, Any]] = {
    "rows": {"summary": "answered at once", "value": {"rows": [[0.0, 1.0]]}},
    "table": {
        "summary": "rows by column name, answered at once",
        "value": {"rows": [{"age": 41, "city": "Oslo", "since": "2024-03-01", "income": None}]},
    },
    "data set": {
        "summary": "answered with an operation",
        "value": {"inputs": {"pef": "out.pef", "dataset": "data", "checkpoint": "trained/checkpoint"}},
    },
}

Asked = Annotated[VerbBody, Body(openapi_examples=_EXAMPLES)]
Accept = Annotated[str, Header(include_in_schema=False)]


def verb_routes(service: BoxService) -> APIRouter:
    """Return a router with one route for each verb."""
    router = APIRouter(tags=["verbs"], route_class=StrictRoute)

    def submit(verb: Verb, body: VerbBody, accept: str) -> Response:
        operation = service.submit(verb, body.to_call())
        headers = {"Location": f"/v1/operations/{operation.id}"}
        if EVENT_STREAM in accept:
            return answer_events(service.watch(operation.id), headers)
        return JsonAnswer(operation.to_json(), 202, headers)

    @router.post("/v1/preprocess", status_code=202, response_model=OperationResponse, responses=_SUBMITTED)
    async def preprocess(body: Asked, accept: Accept = "") -> Response:
        """Convert raw data to a data set."""
        return submit(Verb.PREPROCESS, body, accept)

    @router.post("/v1/compile", status_code=202, response_model=OperationResponse, responses=_SUBMITTED)
    async def compile_model(body: Asked, accept: Accept = "") -> Response:
        """Compile the model to a PEF."""
        return submit(Verb.COMPILE, body, accept)

    @router.post("/v1/train", status_code=202, response_model=OperationResponse, responses=_SUBMITTED)
    async def train(body: Asked, accept: Accept = "") -> Response:
        """Train: make checkpoints from a PEF and a data set."""
        return submit(Verb.TRAIN, body, accept)

    @router.post("/v1/evaluate", status_code=202, response_model=OperationResponse, responses=_SUBMITTED)
    async def evaluate(body: Asked, accept: Accept = "") -> Response:
        """Evaluate: compute figures from a PEF, a data set and a checkpoint."""
        return submit(Verb.EVALUATE, body, accept)

    @router.post(
        "/v1/infer", status_code=202, response_model=OperationResponse,
        responses={
            **errors(404, 409, 500, 503, 504),
            200: {"model": RowsResponse, "description": "rows, or events", "content": EVENTS_CONTENT},
        },
    )  # fmt: skip
    async def infer(
        body: Annotated[InferBody, Body(openapi_examples=_INFER_EXAMPLES)], request: Request, accept: Accept = ""
    ) -> Response:
        """Infer a data set (202, an operation), or the rows in the body (200, the answer; ends with its client)."""
        if isinstance(body, VerbBody):
            return submit(Verb.INFER, body, accept)
        answer = await while_connected(request, service.inferencer.infer(body.to_call()))
        if isinstance(body, TableBody):
            predictions = [each.to_json() for each in answer.predictions]
            return JsonAnswer({"predictions": predictions, "timing_us": dict(answer.timing_us)})
        return JsonAnswer({"outputs": answer.rows, "labels": list(answer.labels), "timing_us": dict(answer.timing_us)})

    return router


class StrictRequest(Request):
    """A request that reads its JSON strictly. FastAPI wraps its errors: see the cause of the HTTP error."""

    async def json(self) -> Any:
        """Return the body's value.

        Raises:
            InvalidArgument: an object has a key twice.
        """
        return read_json(await self.body())


class StrictRoute(APIRoute):
    """A route of strict requests; their operations belong to the trace that they name."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, called with a strict request."""
        handle = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            named = find_traceparent(request.headers.get(TRACEPARENT))
            with within(named or current_context()):
                return await handle(StrictRequest(request.scope, request.receive, request._send))

        return strictly
