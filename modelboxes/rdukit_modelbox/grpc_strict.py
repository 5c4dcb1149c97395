"""Registers a service so that a message that cannot be decoded is the caller's fault and says so.

gRPC's own server answers such a request with ``UNKNOWN``, as if the server had broken. Errors of ours end the call with
their status here too, so that no method needs to think of it.
"""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rdukit.errors import MalformedRequest, RdukitError
from rdukit_modelbox.grpc_errors import only_known, refuse

logger = logging.getLogger(__name__)

Behavior = Callable[[Any, Any], Any]


class Undecodable:
    """In place of a message whose bytes are none."""

    def __init__(self, size: int, reason: str) -> None:
        self.error = MalformedRequest(f"the request's {size} bytes cannot be decoded: {reason}", field="request")


def add_strictly(add_to_server: Callable[[Any, Any], None], servicer: object, server: Any) -> None:
    """Call a generated ``add_…Servicer_to_server`` so that its methods are strict.

    A method that takes a stream gets ``Undecodable`` objects among its messages.
    """
    add_to_server(servicer, _Registrar(server))


class _Registrar:
    """Stands for the server while the generated code registers its methods."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Passed over: the same methods come by ``add_registered_method_handlers``."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Register the methods of ``service``."""
        strict = {name: strict_handler(handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, strict),))
        self._server.add_registered_method_handlers(service, strict)


def strict_handler(handler: Any) -> Any:
    """A method's handler, made strict."""
    decode, encode = _strict_decoder(handler.request_deserializer), handler.response_serializer
    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary), decode, encode)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(_streaming(handler.unary_stream), decode, encode)
    if handler.stream_stream:
        return grpc.stream_stream_rpc_method_handler(_streaming(handler.stream_stream), decode, encode)
    return grpc.stream_unary_rpc_method_handler(_unary(handler.stream_unary), decode, encode)


def _strict_decoder(decode: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """``decode`` that gives ``Undecodable`` where it would raise."""

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
