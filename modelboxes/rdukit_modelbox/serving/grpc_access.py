"""Tokens on the gRPC wire: every service but health asks for one, when the box has any."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from rdukit.errors import Unauthenticated
from rdukit_modelbox.serving.access import Access

_OPEN = "/grpc.health.v1.Health/"


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls without a known token in the metadata ``authorization``."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(self, proceed: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """The method's own handler, or one that refuses."""
        handler = await proceed(details)
        if handler is None or details.method.startswith(_OPEN):
            return handler
        header = next((value for key, value in details.invocation_metadata if key == "authorization"), None)
        try:
            self._access.check(None if header is None else str(header).encode())
        except Unauthenticated as error:
            return _refusing(handler, error.message)
        return handler


def _refusing(handler: Any, message: str) -> Any:
    async def refuse(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)

    async def refuse_stream(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, message)
        yield

    if handler.unary_unary:
        return grpc.unary_unary_rpc_method_handler(refuse, handler.request_deserializer, handler.response_serializer)
    if handler.unary_stream:
        return grpc.unary_stream_rpc_method_handler(
            refuse_stream, handler.request_deserializer, handler.response_serializer
        )  # fmt: skip
    return grpc.stream_stream_rpc_method_handler(
        refuse_stream, handler.request_deserializer, handler.response_serializer
    )  # fmt: skip
