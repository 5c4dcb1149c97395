"""Tokens on the gRPC wire: every service but health asks for one, when the box has any.

A service is registered through ``Guarded``, which stands for the server. An interceptor would do the same at a third
of the cost of a whole inference, for every call.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from rdukit.errors import Unauthenticated
from rdukit_modelbox.serving.access import Access


class Guarded:
    """Stands for a server while services are added to it: their methods look at the token first."""

    def __init__(self, server: Any, access: Access) -> None:
        self._server = server
        self._access = access

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        """As the server's."""
        self._server.add_generic_rpc_handlers(tuple(_GuardedService(handler, self._access) for handler in handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """As the server's."""
        guarded = {name: _guarded(handler, self._access) for name, handler in handlers.items()}
        self._server.add_registered_method_handlers(service, guarded)


class _GuardedService(grpc.ServiceRpcHandler):  # type: ignore[misc]
    """A service whose methods are guarded."""

    def __init__(self, service: Any, access: Access) -> None:
        self._service = service
        self._access = access
        self._guarded: dict[str, Any] = {}

    def service_name(self) -> str:
        """Its full name."""
        return str(self._service.service_name())

    def service(self, details: Any) -> Any:
        """The handler of a call, guarded; None if the service has no such method."""
        known = self._guarded.get(details.method)
        if known is None:
            handler = self._service.service(details)
            if handler is None:
                return None
            known = self._guarded[details.method] = _guarded(handler, self._access)
        return known


def _guarded(handler: Any, access: Access) -> Any:
    decode, encode = handler.request_deserializer, handler.response_serializer
    if handler.unary_unary:

        async def call(request: Any, context: Any) -> Any:
            if error := _why_not(access, context):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, error)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(call, decode, encode)
    answer = handler.unary_stream or handler.stream_stream

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        if error := _why_not(access, context):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error)
        async for response in answer(request, context):
            yield response

    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(stream, decode, encode)
    return grpc.stream_stream_rpc_method_handler(stream, decode, encode)


def _why_not(access: Access, context: Any) -> str:
    """Empty for a caller with a token that is known."""
    header = next((value for key, value in context.invocation_metadata() or () if key == "authorization"), None)
    try:
        access.check(None if header is None else str(header).encode())
    except Unauthenticated as error:
        return error.message
    return ""
