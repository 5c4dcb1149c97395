"""Between the box's values and the messages of ``modelbox.proto``. Pure."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct

from rdukit.proto import modelbox_pb2 as pb
from rdukit_modelbox.operations import Operation, OperationEvent
from rdukit_modelbox.service import VerbCall


def to_struct(values: Mapping[str, object]) -> Struct:
    """JSON-able values as a ``Struct``; all numbers become doubles."""
    struct = Struct()
    struct.update(dict(values))
    return struct


def call_from(request: pb.VerbRequest) -> VerbCall:
    """A verb's request; whole doubles count as ints when the parameters are checked."""
    parameters: dict[str, Any] = MessageToDict(request.parameters)
    return VerbCall(parameters, dict(request.inputs), request.output, request.idempotency_key)


def description_message(description: Mapping[str, object]) -> pb.Description:
    """What ``describe`` gives."""
    message = pb.Description()
    ParseDict(dict(description), message)
    return message


def operation_message(operation: Operation) -> pb.Operation:
    """An operation; what is not set stays empty."""
    message = pb.Operation(
        id=operation.id,
        verb=str(operation.verb),
        state=str(operation.state),
        created_at=operation.created_at,
        ended_at=operation.ended_at or 0.0,
        outputs=dict(operation.outputs or {}),
    )
    if operation.failure is not None:
        message.error_code, message.error_message = operation.failure.code, operation.failure.message
        message.error_detail.CopyFrom(to_struct(operation.failure.detail))
    if operation.result is not None:
        message.result.CopyFrom(to_struct(operation.result))
    return message


def event_message(event: OperationEvent) -> pb.OperationEvent:
    """One event."""
    message = pb.OperationEvent(sequence=event.sequence, kind=event.kind, at=event.at, log=event.log or "")
    if event.operation is not None:
        message.operation.CopyFrom(operation_message(event.operation))
    if event.progress is not None:
        told = event.progress
        message.progress.CopyFrom(
            pb.Progress(
                stage=told.stage,
                step=told.step,
                total=told.total,
                loss=told.loss or 0.0,
                throughput=told.throughput or 0.0,
                eta_s=told.eta_s or 0.0,
            )
        )
    return message
