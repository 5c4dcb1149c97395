"""Errors over gRPC: status, ``grpc-status-details-bin`` and ``rdukit-error-bin``; handlers that end calls with them.

gRPC's own server answers a message that cannot be decoded with ``UNKNOWN``, as if the server had failed; a strict
handler reports an error of the caller. Source: google.rpc's ``status.proto`` and ``error_details.proto``: ``ErrorInfo``
names the error for machines, ``BadRequest`` the wrong fields.
"""

import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from google.rpc.status_pb2 import Status

from rdukit.errors import MalformedRequest, RdukitError
from rdukit.strict_json import as_words

ERROR_METADATA: Final = "rdukit-error-bin"
STATUS_METADATA: Final = "grpc-status-details-bin"
DOMAIN: Final = "rdukit.dev"
#: Bytes of each part on the wire. Clients take 8 KiB of metadata in all by default, names, base64 and (in the message)
#: percent-encoding included; a larger response ends as RESOURCE_EXHAUSTED.
_MESSAGE_BYTES: Final = 1200
_STATUS_BYTES: Final = 2100
_BODY_BYTES: Final = 1900
#: Maximum bytes of one value, or of one field's fault.
_VALUE_BYTES: Final = 200
_FAULT_BYTES: Final = 500
_CUT: Final = "..."

Context = Any


def status_code_of(error: RdukitError) -> grpc.StatusCode:
    """Return the gRPC status of an error's class."""
    return grpc.StatusCode[error.grpc_status]


def fields_of(error: RdukitError) -> list[tuple[str, str]]:
    """Return the wrong fields of the request, each with the reason."""
    faults = error.detail.get("faults")
    if isinstance(faults, list):
        return [(str(f["at"]), str(f["message"])) for f in faults if isinstance(f, dict) and "at" in f]
    field = error.detail.get("field")
    return [(str(field), error.message)] if field else []


@dataclass(frozen=True, slots=True)
class Refusal:
    """End of a refused call: the status's message and the trailing metadata."""

    message: str
    metadata: tuple[tuple[str, bytes], ...]


def status_of(error: RdukitError) -> Status:
    """Return ``google.rpc.Status`` of an error, with as many values and faults as fit, in order."""
    reason = error.code.replace("-", "_").upper()
    scalars = {key: str(value) for key, value in error.detail.items() if isinstance(value, (str, int, float, bool))}
    faults = [(_fit(f, _VALUE_BYTES), _fit(words, _FAULT_BYTES)) for f, words in fields_of(error)]
    status = Status(code=status_code_of(error).value[0], message=_fit(error.message, _FAULT_BYTES * 2))
    info, bad = ErrorInfo(reason=reason, domain=DOMAIN), BadRequest()
    left = _STATUS_BYTES - status.ByteSize() - 200
    for field, words in faults:
        if (left := left - len(field.encode()) - len(words.encode()) - 12) < 0:
            break
        bad.field_violations.append(BadRequest.FieldViolation(field=field, description=words))
    for key, value in scalars.items():
        key, value = _fit(key, 63), _fit(value, _VALUE_BYTES)
        if (left := left - len(key.encode()) - len(value.encode()) - 12) < 0:
            break
        info.metadata[key] = value
    details: list[Message] = [info, bad] if bad.field_violations else [info]
    for message in details:
        packed = AnyMessage()
        packed.Pack(message)
        status.details.append(packed)
    return status


def refusal_of(error: RdukitError) -> Refusal:
    """Return the wire form of the error, short enough for any client."""
    message = _fit(error.message, _MESSAGE_BYTES)
    detail = as_words(error.detail)
    body = _body(error, message, detail)
    if len(body) > _BODY_BYTES:
        field = error.detail.get("field")
        kept = {} if field is None else {"field": _fit(str(field), _VALUE_BYTES)}
        body = _body(error, _fit(error.message, _MESSAGE_BYTES // 2), kept)
    metadata = ((STATUS_METADATA, status_of(error).SerializeToString()), (ERROR_METADATA, body))
    return Refusal(message, metadata)


async def refuse(context: Context, error: RdukitError) -> NoReturn:
    """End the call with the error."""
    refusal = refusal_of(error)
    await context.abort(status_code_of(error), refusal.message, refusal.metadata)
    raise AssertionError("abort does not return")


async def only_known(events: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    """Yield ``events``; end the call with its status if they raise an rdukit error."""
    try:
        async for event in events:
            yield event
    except RdukitError as error:
        await refuse(context, error)


def _body(error: RdukitError, message: str, detail: object) -> bytes:
    body = {"error": {"code": error.code, "message": message, "detail": detail, "request_id": None}}
    return json.dumps(body, default=repr, ensure_ascii=False).encode("utf-8", "replace")


def _fit(text: str, limit: int) -> str:
    """Truncate ``text`` to ``limit`` bytes of a header, in which most bytes are percent-encoded."""
    text = text.encode("utf-8", "replace").decode()
    used, kept = 0, 0
    for number, letter in enumerate(text):
        used += 1 if " " <= letter <= "~" and letter not in '%"\\' else 3 * len(letter.encode())
        if used <= limit - len(_CUT):
            kept = number + 1
        elif used > limit:
            return text[:kept] + _CUT
    return text


logger = logging.getLogger(__name__)

Behavior = Callable[[Any, Any], Any]


class Undecodable:
    """Placeholder of a message that cannot be decoded."""

    def __init__(self, size: int, reason: str) -> None:
        self.error = MalformedRequest(f"the request of {size} bytes cannot be decoded: {reason}", field="request")


def add_strictly(add_to_server: Callable[[Any, Any], None], servicer: object, server: Any) -> None:
    """Call a generated ``add_…Servicer_to_server`` so that its methods are strict.

    A method that takes a stream gets ``Undecodable`` objects among its messages.
    """
    add_to_server(servicer, _Registrar(server))


class _Registrar:
    """Stand-in for the server while the generated code registers its methods."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Do nothing: ``add_registered_method_handlers`` receives the same methods."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Register the methods of ``service``."""
        strict = {name: strict_handler(handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, strict),))
        self._server.add_registered_method_handlers(service, strict)


def strict_handler(handler: Any) -> Any:
    """Return a method's handler, made strict."""
    decode, encode = _strict_decoder(handler.request_deserializer), handler.response_serializer
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary), decode, encode)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_streaming(handler.unary_stream), decode, encode)
    if handler.stream_stream:
        return grpc.stream_stream_rpc_method_handler(_streaming(handler.stream_stream), decode, encode)
    return grpc.stream_unary_rpc_method_handler(_unary(handler.stream_unary), decode, encode)


def _strict_decoder(decode: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """Wrap ``decode`` to return ``Undecodable`` where it would raise."""

    def decoded(data: bytes) -> object:
        try:
            return decode(data)
        except (DecodeError, UnicodeDecodeError) as error:
            return Undecodable(len(data), str(error))

    return decoded


def _unary(behavior: Behavior) -> Behavior:
    async def answer(request: Any, context: Any) -> Any:
        try:
            if isinstance(request, Undecodable):
                raise request.error
            return await behavior(request, context)
        except RdukitError as error:
            await refuse(context, error)

    return answer


def _streaming(behavior: Behavior) -> Behavior:
    async def answers(request: Any, context: Any) -> AsyncIterator[Any]:
        if isinstance(request, Undecodable):
            await refuse(context, request.error)
        async for answer in only_known(behavior(request, context), context):
            yield answer

    return answers
