"""A client of SNML in Python: calls by name, errors as ``rdukit.errors``, the UNIX socket before TCP.

``SnmlClient().ask("GetSystemFaults")`` asks the node of this home folder or root prefix.
"""

import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.protobuf import message_factory

from rdukit.errors import InvalidArgument, NotFound, PermissionDenied, RdukitError, Unavailable, error_from_body
from rdukit.http.tls import client_files
from rdukit.interfaces import Closable
from rdukit.proto import snml_pb2 as pb
from rdukit.settings import TLS_CA, resolve
from rdukit_node.settings import DEFAULT_PORT, NodePaths, node_paths, server_address
from rdukit_node.snml.calls import ERROR_METADATA
from rdukit_node.snml.token import AUTHORIZATION, read_token

logger = logging.getLogger(__name__)

#: Methods that change the node.
ADMIN_METHODS: Final = frozenset({"ClearSystemFault", "ResetRDU", "Inject", "Repair"})
_METHODS: Final = {
    method.name: method for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods
}
#: A restarted node is found within a second, even by an older client.
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


def find_target(address: str | None, paths: NodePaths) -> tuple[str, str | None]:
    """Choose the gRPC target, and the message for the user about it.

    ``address``: ``unix:PATH``, an absolute path, ``HOST:PORT``; ``None``: the node's socket if it exists, else TCP.

    Source: runtime reference 7.1 (the socket is preferred, TCP with a notice).
    """
    if address:
        if address.startswith("/"):
            return f"unix:{quote(address)}", None
        if address.startswith("unix:") or address.rpartition(":")[2].isdecimal():
            return address, None
        raise InvalidArgument(f"{address!r} is not an SNML address; expected unix:PATH, an absolute path, HOST:PORT")
    if paths.snml_socket.is_socket():
        return f"unix:{quote(str(paths.snml_socket))}", None
    target = f"127.0.0.1:{DEFAULT_PORT}"
    return target, f"SNML socket not found at {paths.snml_socket}, using TCP {target}"


def _open_channel(target: str) -> grpc.Channel:
    """TCP uses TLS if the setting ``tls.ca`` names an authority; the UNIX socket is plain."""
    if target.startswith("unix:") or not resolve(TLS_CA):
        return grpc.insecure_channel(target, options=_OPTIONS)
    return grpc.secure_channel(target, grpc.ssl_channel_credentials(*client_files()), options=_OPTIONS)


class SnmlClient(Closable):
    """A channel to one node. Safe for several threads."""

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        paths: NodePaths | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        """``address``: see ``find_target``; default ``$SNML_SERVER``. ``token``: default the node's, if readable."""
        self._paths: Final = paths or node_paths()
        self.target, self.notice = find_target(address or server_address(), self._paths)
        if self.notice:
            logger.warning("%s", self.notice)
        self._token = token
        self._timeout_s: Final = timeout_s
        self._channel = _open_channel(self.target)

    def ask(self, method: str, **fields: object) -> Any:
        """Call ``method`` with these fields as its request. Returns the reply, or the list of a stream's replies.

        Raises:
            InvalidArgument: no such method or field.
            RdukitError: the node's error; ``Unavailable``: it does not answer.
        """
        if method == "WatchEvents":
            fields = {**fields, "no_follow": True}
        found = self._start(method, self._timeout_s, fields)
        try:
            return list(found) if _METHODS[method].server_streaming else found
        except grpc.RpcError as cause:
            raise _error_of(cause, self.target) from cause

    def watch(self, **fields: object) -> Iterator[Any]:
        """Return events, then those to come, until the caller stops iterating. The call is sent at once."""
        return self._events_of(self._start("WatchEvents", None, fields))

    def _events_of(self, call: Any) -> Iterator[Any]:
        try:
            yield from call
        except grpc.RpcError as cause:
            raise _error_of(cause, self.target) from cause
        finally:
            call.cancel()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _start(self, method: str, timeout_s: float | None, fields: dict[str, object]) -> Any:
        descriptor = _METHODS.get(method)
        if descriptor is None:
            raise InvalidArgument(f"SNML has no method {method!r}; expected {', '.join(sorted(_METHODS))}")
        request_class = message_factory.GetMessageClass(descriptor.input_type)
        reply_class = message_factory.GetMessageClass(descriptor.output_type)
        try:
            request = request_class(**{"request_id": secrets.token_hex(8), **fields})
        except (ValueError, TypeError) as cause:
            legal = ", ".join(field.name for field in descriptor.input_type.fields)
            raise InvalidArgument(f"{method}: {cause}; legal fields: {legal}") from cause
        make = self._channel.unary_stream if descriptor.server_streaming else self._channel.unary_unary
        function = make(
            f"/{descriptor.containing_service.full_name}/{method}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=reply_class.FromString,
        )
        try:
            return function(request, timeout=timeout_s, metadata=self._metadata(method))
        except grpc.RpcError as cause:
            raise _error_of(cause, self.target) from cause

    def _metadata(self, method: str) -> list[tuple[str, str]]:
        if method not in ADMIN_METHODS:
            return []
        if self._token is None:
            try:
                self._token = read_token(self._paths.admin_token)
            except (NotFound, PermissionDenied):
                return []  # the server's error names what is missing
        return [(AUTHORIZATION, f"Bearer {self._token}")]


def _error_of(call: grpc.RpcError, target: str) -> RdukitError:
    for key, value in call.trailing_metadata() or ():
        if key == ERROR_METADATA:
            return error_from_body(json.loads(value))
    code = call.code()
    words = f"SNML at {target}: {code.name}: {call.details()}"
    if code is grpc.StatusCode.UNAVAILABLE:
        return Unavailable(f"{words}; is the node running? start one with: rdukit node start")
    if code in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}:
        return Unavailable(words)
    return RdukitError(words)
