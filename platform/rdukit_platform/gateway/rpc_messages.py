"""Conversions between the API's values and the messages of ``jobs.proto``. Pure."""

from google.protobuf.descriptor import FieldDescriptor
from pydantic import ValidationError

from rdukit.proto import jobs_pb2 as pb
from rdukit.rpc.server import from_struct, to_struct
from rdukit.strict_json import as_words
from rdukit_platform.db.models import JobEventRow
from rdukit_platform.gateway.malformed import find_malformed, refusal_of
from rdukit_platform.jobs.schemas import Job, JobRequest


def request_from(message: pb.SubmitRequest) -> JobRequest:
    """Read a job that is to be submitted.

    Raises:
        InvalidArgument: a value is not valid; the detail has each field.
    """
    body: dict[str, object] = {field.name: getattr(message, field.name) for field, _ in message.ListFields()}
    body |= {"inputs": dict(message.inputs), "labels": dict(message.labels)}
    body["parameters"] = from_struct(message.parameters)
    if message.HasField("retry"):
        retry: dict[str, object] = {field.name: value for field, value in message.retry.ListFields()}
        body["retry"] = {**retry, **({"on": list(message.retry.on)} if message.retry.on else {})}
    try:
        return JobRequest.model_validate(body)
    except ValidationError as refused:
        schema = JobRequest.model_json_schema()
        found = [{**each, "loc": ("body", *each["loc"])} for each in refused.errors()]
        wrong = find_malformed(found, body, {"body": schema}, schema.get("$defs", {}))
        faults = [{"at": one["where"].removeprefix("body."), "message": one["problem"]} for one in wrong.said]
        raise refusal_of(wrong, faults=faults, others=wrong.others) from refused


def job_message(job: Job) -> pb.Job:
    """Return a job as a message; null fields stay unset."""
    message = pb.Job()
    for field in pb.Job.DESCRIPTOR.fields:
        value = getattr(job, field.name)
        if value is None:
            continue
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            getattr(message, field.name).CopyFrom(to_struct(_plain(value)))
        elif isinstance(value, dict):
            getattr(message, field.name).update(value)
        else:
            setattr(message, field.name, float(value) if field.type == FieldDescriptor.TYPE_DOUBLE else value)
    return message


def event_message(row: JobEventRow) -> pb.Event:
    """Return an event as a message."""
    data = to_struct(_plain(row.data))
    return pb.Event(sequence=row.id, kind=row.kind, at=row.at, attempt=row.attempt, data=data)


def line_message(row: JobEventRow) -> pb.LogLine:
    """Return a line of a log as a message."""
    line = str(row.data.get("line", "")).encode("utf-8", "replace").decode()
    return pb.LogLine(sequence=row.id, line=line, attempt=row.attempt, at=row.at)


def _plain(value: object) -> dict[str, object]:
    found = as_words(value)
    assert isinstance(found, dict)
    return found
