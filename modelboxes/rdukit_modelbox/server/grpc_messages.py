"""Conversions between the box's values and the messages of ``modelbox.proto``. Pure."""

from collections.abc import Mapping
from typing import Final

from google.protobuf.json_format import ParseDict
from google.protobuf.unknown_fields import UnknownFieldSet

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.proto import modelbox_pb2 as pb
from rdukit.rpc.errors import status_code_of
from rdukit.rpc.server import from_struct, to_struct
from rdukit.strict_json import as_words
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.operations.values import REMOVED_FIELDS, Operation, OperationEvent, OperationState, VerbCall
from rdukit_modelbox.server.inference import InferAnswer, InferCall
from rdukit_modelbox.verbs.context import Progress
from rdukit_serving.signature import RawTensor

#: Reserved numbers of ``VerbRequest`` -> the names that 0.1.0 gave them.
_REMOVED_NUMBERS: Final = {4: "idempotency_key", 6: "resume", 7: "webhook"}


def call_from(request: pb.VerbRequest) -> VerbCall:
    """Return a verb's request; whole doubles count as ints when the parameters are checked.

    Raises:
        InvalidArgument: the request has a field of 0.1.0; the message names the replacement.
    """
    for unknown in UnknownFieldSet(request):
        if (name := _REMOVED_NUMBERS.get(unknown.field_number)) is not None:
            raise InvalidArgument(f"{name} was removed after 0.1.0: {REMOVED_FIELDS[name]}", field=name)
    parameters, inputs = from_struct(request.parameters), dict(request.inputs)
    return VerbCall(parameters, inputs, request.output, request.timeout_s, request.profile)


def infer_call_from(request: pb.InferRequest) -> InferCall:
    """Return a call for synchronous inference of rows or tensors.

    Raises:
        InvalidArgument: it has neither.
    """
    match request.WhichOneof("what"):
        case "rows":
            rows = [list(row.values) for row in request.rows.rows]
            return InferCall(rows=rows, inputs=dict(request.inputs), outputs=list(request.outputs))
        case "tensors":
            tensors = [RawTensor(t.name, t.datatype, tuple(t.shape), t.data) for t in request.tensors.tensors]
            return InferCall(tensors=tensors, inputs=dict(request.inputs), outputs=list(request.outputs))
        case "table":
            table = [from_struct(row) for row in request.table.rows]
            return InferCall(table=table, inputs=dict(request.inputs), outputs=list(request.outputs))
        case "dataset":
            message = "a data set is not valid in a stream; call Infer, which answers with an operation"
            raise InvalidArgument(message, field="dataset")
    raise InvalidArgument("the request has nothing to infer; expected rows, tensors, table or dataset", field="rows")


def filter_from(request: pb.ListOperationsRequest) -> tuple[OperationState | None, Verb | None, int]:
    """Return state, verb and page size of a filter.

    Raises:
        InvalidArgument: one of them is not valid.
    """
    states, verbs = [str(s) for s in OperationState], [str(v) for v in Verb]
    if request.state and request.state not in states:
        raise InvalidArgument(f"state {request.state[:80]!r} is not valid; expected {', '.join(states)}", field="state")
    if request.verb and request.verb not in verbs:
        raise InvalidArgument(f"verb {request.verb[:80]!r} is not valid; expected {', '.join(verbs)}", field="verb")
    if not 0 <= request.page_size <= 1000:
        raise InvalidArgument(f"page_size {request.page_size} is not valid; expected 0 to 1000", field="page_size")
    return (
        OperationState(request.state) if request.state else None,
        Verb(request.verb) if request.verb else None,
        request.page_size or 100,
    )


def description_message(description: Mapping[str, object]) -> pb.Description:
    """Return the message for what ``describe`` gives."""
    message = pb.Description()
    ParseDict(dict(description), message)
    return message


def answer_message(answer: InferAnswer) -> pb.Answer:
    """Return the message for an inference's answer."""
    return pb.Answer(
        outputs=[pb.Row(values=row) for row in answer.rows],
        labels=answer.labels,
        tensors=[
            pb.Tensor(name=t.name, datatype=t.datatype, shape=t.shape, data=bytes(t.data)) for t in answer.tensors
        ],
        timing_us=answer.timing_us,
        predictions=[pb.Prediction(**each.to_json()) for each in answer.predictions],
    )


def error_message(error: RdukitError) -> pb.Error:
    """Return an error inside a stream."""
    detail = as_words(error.detail)
    assert isinstance(detail, dict)
    status = status_code_of(error).value[0]
    return pb.Error(code=error.code, message=error.message, detail=to_struct(detail), status=status)


def operation_message(operation: Operation) -> pb.Operation:
    """Return an operation; missing values stay unset."""
    message = pb.Operation(
        id=operation.id,
        verb=str(operation.verb),
        state=str(operation.state),
        created_at=operation.created_at,
        started_at=operation.started_at or 0.0,
        ended_at=operation.ended_at or 0.0,
        peak_memory_bytes=operation.peak_memory_bytes or 0,
        outputs=dict(operation.outputs or {}),
    )
    if operation.failure is not None:
        message.error_code, message.error_message = operation.failure.code, operation.failure.message
        message.error_detail.CopyFrom(to_struct(operation.failure.detail))
    if operation.result is not None:
        message.result.CopyFrom(to_struct(operation.result))
    if operation.progress is not None:
        message.progress.CopyFrom(progress_message(operation.progress))
    return message


def event_message(event: OperationEvent) -> pb.OperationEvent:
    """Return the message for one event."""
    message = pb.OperationEvent(sequence=event.sequence, kind=event.kind, at=event.at, log=event.log or "")
    if event.operation is not None:
        message.operation.CopyFrom(operation_message(event.operation))
    if event.progress is not None:
        message.progress.CopyFrom(progress_message(event.progress))
    return message


def progress_message(progress: Progress) -> pb.Progress:
    """Return the message for a verb's progress; unknown figures stay unset."""
    step, total = max(progress.step, 0), max(progress.total, 0)
    return pb.Progress(
        stage=progress.stage, step=step, total=total, loss=progress.loss, throughput=progress.throughput,
        eta_s=progress.eta_s,
    )  # fmt: skip
