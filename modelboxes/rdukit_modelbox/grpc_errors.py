"""How a refused request ends over gRPC: status, ``grpc-status-details-bin`` and ``rdukit-error-bin``.

Source: google.rpc's ``status.proto`` and ``error_details.proto``: ``ErrorInfo`` names the error for machines,
``BadRequest`` the wrong fields.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from rdukit.errors import RdukitError
from rdukit_modelbox.finite import as_words

ERROR_METADATA: Final = "rdukit-error-bin"
STATUS_METADATA: Final = "grpc-status-details-bin"
DOMAIN: Final = "rdukit.dev"
#: Metadata have room for 8 KiB in all by default, and the message goes three times.
_MAX_MESSAGE: Final = 1000
_MAX_DETAIL: Final = 2000

Context = Any


def status_code_of(error: RdukitError) -> grpc.StatusCode:
    """The gRPC status of an error's class."""
    return grpc.StatusCode[error.grpc_status]


def fields_of(error: RdukitError) -> list[tuple[str, str]]:
    """The fields of the request that are wrong, each with why."""
    faults = error.detail.get("faults")
    if isinstance(faults, list):
        return [(str(f["at"]), str(f["message"])) for f in faults if isinstance(f, dict) and "at" in f]
    field = error.detail.get("field")
    return [(str(field), error.message)] if field else []


def status_of(error: RdukitError) -> Status:
    """``google.rpc.Status`` of an error."""
    scalars = {key: str(value) for key, value in error.detail.items() if isinstance(value, (str, int, float, bool))}
    reason = error.code.replace("-", "_").upper()
    told: list[Message] = [ErrorInfo(reason=reason, domain=DOMAIN, metadata=_short(scalars))]
    if fields := fields_of(error):
        violations = [
            BadRequest.FieldViolation(field=field, description=words[:_MAX_MESSAGE]) for field, words in fields[:10]
        ]
        told.append(BadRequest(field_violations=violations))
    status = Status(code=status_code_of(error).value[0], message=error.message[:_MAX_MESSAGE])
    for message in told:
        packed = AnyMessage()
        packed.Pack(message)
        status.details.append(packed)
    return status


async def refuse(context: Context, error: RdukitError) -> NoReturn:
    """End the call with the error."""
    status = status_of(error)
    body = {"error": {"code": error.code, "message": status.message, "detail": _detail_of(error), "request_id": None}}
    metadata = ((STATUS_METADATA, status.SerializeToString()), (ERROR_METADATA, json.dumps(body).encode()))
    await context.abort(status_code_of(error), status.message, metadata)
    raise AssertionError("abort does not return")


async def only_known(events: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    """``events``, ending the call in order when they raise an error of ours."""
    try:
        async for event in events:
            yield event
    except RdukitError as error:
        await refuse(context, error)


def _detail_of(error: RdukitError) -> object:
    detail = as_words(error.detail)
    return detail if len(json.dumps(detail, default=repr)) <= _MAX_DETAIL else {"field": error.detail.get("field")}


def _short(values: Mapping[str, str]) -> dict[str, str]:
    return {key[:63]: value[:200] for key, value in list(values.items())[:10]}
