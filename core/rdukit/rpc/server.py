"""Parts of a gRPC server that are the same whatever it serves: its certificate, and reflection."""

from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha import reflection, reflection_pb2

from rdukit.http.tls import TlsFiles

#: The released name of reflection; its messages are those of v1alpha, byte for byte.
REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"


def credentials_of(tls: TlsFiles) -> Any:
    """Read the server's certificate; with an authority, callers must show one too."""
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    ca = None if tls.ca is None else tls.ca.read_bytes()
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)


def add_reflection(names: Sequence[str], pool: DescriptorPool, server: Any) -> None:
    """Add reflection, as v1 and as v1alpha, of the services ``names``, whose files ``pool`` has."""
    every = (*names, reflection.SERVICE_NAME, REFLECTION_V1)
    method = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(every, pool).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (reflection.SERVICE_NAME, REFLECTION_V1):
        handler = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        server.add_generic_rpc_handlers((handler,))
