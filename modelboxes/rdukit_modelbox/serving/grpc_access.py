"""Tokens on the gRPC wire: every service but health asks for one, when the box has any.

A service is registered through ``Guarded``, which stands for the server. An interceptor would do the same at a third
of the cost of a whole inference, for every call; here the token is looked at where the call's method is.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from rdukit.errors import Unauthenticated
from rdukit_modelbox.serving.access import Access


class Guarded:
    """Stands for an asynchronous server while services are added to it."""

    def __init__(self, server: Any, access: Access) -> None:
        self._server = server
        self._access = access

    def add_generic_rpc_handlers(self, handlers: tuple[Any, ...]) -> None:
        """As the server's."""
        self._server.add_generic_rpc_handlers(tuple(_GuardedService(handler, self._access) for handler in handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Passed over, as the server does: the same methods come by ``add_generic_rpc_handlers``."""


class _GuardedService(grpc.ServiceRpcHandler):  # type: ignore[misc]
    """A service whose calls need a token."""

    def __init__(self, service: Any, access: Access) -> None:
        self._service = service
        self._access = access

    def service_name(self) -> str:
        """Its full name."""
        return str(self._service.service_name())

    def service(self, details: Any) -> Any:
        """The handler of a call, or one that refuses it; None if the service has no such method."""
        handler = self._service.service(details)
        if handler is None:
            return None
        metadata = details.invocation_metadata or ()
        header = next((value for key, value in metadata if key == "authorization"), None)
        try:
            self._access.check(None if header is None else str(header).encode())
        except Unauthenticated as error:
            return _refusing(handler, error.message)
        return handler


def _refusing(handler: Any, reason: str) -> Any:
    """A handler that ends every call. As of a stream, whatever the method is: so no message is read before."""

    async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
        yield  # makes it a stream

    return grpc.stream_stream_rpc_method_handler(stream, handler.request_deserializer, handler.response_serializer)
