"""The gRPC wire of a box: ``rdukit.modelbox.v1.ModelBox``, health and reflection.

A refused request ends with the error's own gRPC status; its REST body is in the trailing metadata
``rdukit-error-bin``. A client that goes away leaves its operation running: ``Watch`` attaches again, ``Cancel`` ends
it.
"""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any, Final, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rdukit.errors import RdukitError
from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto import modelbox_pb2_grpc
from rdukit_modelbox.box import Verb
from rdukit_modelbox.grpc_messages import call_from, description_message, event_message, operation_message
from rdukit_modelbox.service import BoxService

logger = logging.getLogger(__name__)

ERROR_METADATA: Final = "rdukit-error-bin"
SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["ModelBox"].full_name
#: Rows of 4096 requests of 784 floats fit.
MAX_MESSAGE_BYTES: Final = 64 << 20

Context = Any


class ModelBoxServicer(modelbox_pb2_grpc.ModelBoxServicer):  # type: ignore[misc]
    """Each method turns messages into calls of ``BoxService``."""

    def __init__(self, service: BoxService) -> None:
        self._service = service

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.Description:
        """Verbs, parameters and their legal values."""
        return description_message(self._service.describe())

    async def Compile(self, request: pb.VerbRequest, context: Context) -> AsyncIterator[pb.OperationEvent]:
        """The model to a PEF."""
        async for message in self._submit(Verb.COMPILE, request, context):
            yield message

    async def Train(self, request: pb.VerbRequest, context: Context) -> AsyncIterator[pb.OperationEvent]:
        """A PEF and a data set to checkpoints."""
        async for message in self._submit(Verb.TRAIN, request, context):
            yield message

    async def Infer(self, request: pb.VerbRequest, context: Context) -> AsyncIterator[pb.OperationEvent]:
        """Classify a data set."""
        async for message in self._submit(Verb.INFER, request, context):
            yield message

    async def Preprocess(self, request: pb.VerbRequest, context: Context) -> AsyncIterator[pb.OperationEvent]:
        """Images to a data set."""
        async for message in self._submit(Verb.PREPROCESS, request, context):
            yield message

    async def InferTensors(self, request: pb.InferTensorsRequest, context: Context) -> pb.InferTensorsResponse:
        """Classify rows at once."""
        try:
            rows = [list(row.values) for row in request.rows]
            outputs, labels = await self._service.infer_rows(rows, dict(request.inputs))
        except RdukitError as error:
            await _refuse(context, error)
        return pb.InferTensorsResponse(outputs=[pb.Row(values=row) for row in outputs], labels=labels)

    async def Watch(self, request: pb.OperationRequest, context: Context) -> AsyncIterator[pb.OperationEvent]:
        """All events of an operation, the past ones first."""
        async for message in self._watch(request.id, context):
            yield message

    async def Cancel(self, request: pb.OperationRequest, context: Context) -> pb.Operation:
        """Cancel and wait for the end."""
        try:
            return operation_message(await self._service.cancel(request.id))
        except RdukitError as error:
            await _refuse(context, error)

    async def GetOperation(self, request: pb.OperationRequest, context: Context) -> pb.Operation:
        """One operation."""
        try:
            return operation_message(self._service.operations.get(request.id))
        except RdukitError as error:
            await _refuse(context, error)

    async def ListOperations(self, request: pb.ListOperationsRequest, context: Context) -> pb.ListOperationsResponse:
        """All operations of this process."""
        return pb.ListOperationsResponse(operations=[operation_message(o) for o in self._service.operations.all()])

    async def _submit(self, verb: Verb, request: pb.VerbRequest, context: Context) -> AsyncIterator[pb.OperationEvent]:
        try:
            operation = self._service.submit(verb, call_from(request))
        except RdukitError as error:
            await _refuse(context, error)
        async for message in self._watch(operation.id, context):
            yield message

    async def _watch(self, operation_id: str, context: Context) -> AsyncIterator[pb.OperationEvent]:
        try:
            async for event in self._service.watch(operation_id):
                yield event_message(event)
        except RdukitError as error:
            await _refuse(context, error)


class BoxHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The standard health service; the box's own readiness each time it is asked."""

    def __init__(self, service: BoxService) -> None:
        self._service = service

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """Readiness of the server (empty name) or of the ModelBox service."""
        if request.service not in {"", SERVICE_NAME}:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}; legal: {SERVICE_NAME}")
        status = health_pb2.HealthCheckResponse.ServingStatus
        is_ready = self._service.health().is_ready
        return health_pb2.HealthCheckResponse(status=status.SERVING if is_ready else status.NOT_SERVING)


async def start_grpc(service: BoxService, host: str, port: int) -> tuple[Any, int]:
    """Start serving; returns the server and the port it got."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.so_reuseport", 0),
        ]
    )
    modelbox_pb2_grpc.add_ModelBoxServicer_to_server(ModelBoxServicer(service), server)
    health_pb2_grpc.add_HealthServicer_to_server(BoxHealth(service), server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    bound = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    return server, bound


async def _refuse(context: Context, error: RdukitError) -> NoReturn:
    body = json.dumps(error.body()).encode()
    await context.abort(getattr(grpc.StatusCode, error.grpc_status), error.message, ((ERROR_METADATA, body),))
    raise AssertionError("abort does not return")
