"""Parts of gRPC that all servers share: certificate, reflection, and plain values as ``google.protobuf.Struct``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.struct_pb2 import Struct, Value
from grpc_reflection.v1alpha import reflection, reflection_pb2

from rdukit.http.tls import TlsFiles

#: The released name of reflection; its messages are those of v1alpha, byte for byte.
REFLECTION_V1: Final = "grpc.reflection.v1.ServerReflection"


def credentials_of(tls: TlsFiles) -> Any:
    """Read the server's certificate; with an authority, callers also need a certificate."""
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    ca = None if tls.ca is None else tls.ca.read_bytes()
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)


def add_reflection(names: Sequence[str], pool: DescriptorPool, server: Any) -> None:
    """Add reflection, as v1 and as v1alpha, for the services ``names``, whose files are in ``pool``."""
    every = (*names, reflection.SERVICE_NAME, REFLECTION_V1)
    method = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(every, pool).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (reflection.SERVICE_NAME, REFLECTION_V1):
        handler = grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        server.add_generic_rpc_handlers((handler,))


def to_struct(values: Mapping[str, object]) -> Struct:
    """Convert JSON values to a ``Struct``; all numbers become doubles."""
    struct = Struct()
    struct.update(values)
    return struct


def from_struct(struct: Struct) -> dict[str, object]:
    """Convert a ``Struct`` to plain values: whole numbers to int, all others to float, including NaN and infinities."""
    return {name: _plain(value) for name, value in struct.fields.items()}


def _plain(value: Value) -> object:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            # Larger doubles may stand for more than one int.
            return int(number) if number.is_integer() and abs(number) < 1 << 53 else number
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [_plain(item) for item in value.list_value.values]
    return None
