"""The gRPC wire of a box: ``rdukit.modelbox.v1.ModelBox``, health and reflection.

An operation keeps running if its client disconnects: ``Watch`` attaches again, ``Cancel`` ends it. Synchronous
``Infer`` and ``InferStream`` are cancelled with the call.
"""

import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.proto import modelbox_pb2 as pb
from rdukit.proto import modelbox_pb2_grpc
from rdukit.rpc.errors import Undecodable, add_strictly
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.server.grpc_messages import (
    answer_message,
    call_from,
    description_message,
    error_message,
    event_message,
    filter_from,
    infer_call_from,
    operation_message,
)
from rdukit_modelbox.server.service import BoxService
from rdukit_serving.rpc.server import answer_in_order

logger = logging.getLogger(__name__)

SERVICE_NAME: Final = pb.DESCRIPTOR.services_by_name["ModelBox"].full_name
#: Requests of one ``InferStream`` processed concurrently, so that they can share a batch.
STREAM_AT_ONCE: Final = 64

Context = Any


class ModelBoxServicer(modelbox_pb2_grpc.ModelBoxServicer):  # type: ignore[misc]
    """Each method turns messages into calls of ``BoxService``. Register it with ``add_strictly``."""

    def __init__(self, service: BoxService) -> None:
        self._service = service

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.Description:
        """Return verbs, parameters and their legal values."""
        return description_message(self._service.describe())

    async def Compile(self, request: pb.VerbRequest, context: Context) -> pb.Operation:
        """Compile the model to a PEF."""
        return self._submit(Verb.COMPILE, request)

    async def Train(self, request: pb.VerbRequest, context: Context) -> pb.Operation:
        """Train: make checkpoints from a PEF and a data set."""
        return self._submit(Verb.TRAIN, request)

    async def Preprocess(self, request: pb.VerbRequest, context: Context) -> pb.Operation:
        """Convert raw data to a data set."""
        return self._submit(Verb.PREPROCESS, request)

    async def Evaluate(self, request: pb.VerbRequest, context: Context) -> pb.Operation:
        """Evaluate: compute figures from a PEF, a data set and a checkpoint."""
        return self._submit(Verb.EVALUATE, request)

    async def Infer(self, request: pb.InferRequest, context: Context) -> pb.InferResponse:
        """Infer rows or tensors at once, or start an operation on a data set."""
        if request.WhichOneof("what") == "dataset":
            return pb.InferResponse(id=request.id, operation=self._submit(Verb.INFER, request.dataset))
        answer = await self._service.inferencer.infer(infer_call_from(request))
        return pb.InferResponse(id=request.id, answer=answer_message(answer))

    async def InferStream(
        self, requests: AsyncIterator[pb.InferRequest | Undecodable], context: Context
    ) -> AsyncIterator[pb.InferStreamResponse]:
        """Infer a stream of rows or tensors; answers have the same order."""
        answers = answer_in_order(requests, self._answer, STREAM_AT_ONCE)
        try:
            async for answer in answers:
                yield answer
        finally:
            await answers.aclose()

    async def Cancel(self, request: pb.OperationRequest, context: Context) -> pb.Operation:
        """Cancel and wait for the end."""
        return operation_message(await self._service.cancel(request.id))

    async def GetOperation(self, request: pb.OperationRequest, context: Context) -> pb.Operation:
        """Answer with one operation."""
        return operation_message(self._service.operations.get(request.id))

    async def ListOperations(self, request: pb.ListOperationsRequest, context: Context) -> pb.ListOperationsResponse:
        """List operations, newest first."""
        try:
            page = self._service.operations.page(*filter_from(request), request.page_token)
        except InvalidArgument as error:
            if error.detail.get("field") == "cursor":
                error.detail["field"] = "page_token"  # this wire's name of the field
            raise
        operations = [operation_message(operation) for operation in page.operations]
        return pb.ListOperationsResponse(operations=operations, next_page_token=page.cursor)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.OperationEvent]:
        """Stream the events of an operation after a number, past ones first."""
        async for event in self._service.watch(request.id, request.after):
            yield event_message(event)

    def _submit(self, verb: Verb, request: pb.VerbRequest) -> pb.Operation:
        return operation_message(self._service.submit(verb, call_from(request)))

    async def _answer(self, request: pb.InferRequest | Undecodable) -> pb.InferStreamResponse:
        if isinstance(request, Undecodable):
            return pb.InferStreamResponse(error=error_message(request.error))
        try:
            answer = await self._service.inferencer.infer(infer_call_from(request))
        except RdukitError as error:
            return pb.InferStreamResponse(id=request.id, error=error_message(error))
        except Exception as error:
            logger.exception("inference broke id=%s", request.id)
            broken = RdukitError(f"the box failed: {type(error).__name__}; its log has more")
            return pb.InferStreamResponse(id=request.id, error=error_message(broken))
        return pb.InferStreamResponse(id=request.id, answer=answer_message(answer))


def add_model_box(service: BoxService, server: Any) -> str:
    """Add ``rdukit.modelbox.v1.ModelBox``; returns the service's name."""
    add_strictly(modelbox_pb2_grpc.add_ModelBoxServicer_to_server, ModelBoxServicer(service), server)
    return str(SERVICE_NAME)
