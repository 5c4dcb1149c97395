"""Descriptors for gRPC reflection: ours as they are, the inference protocol's under the protocol's own names."""

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool

from rdukit.proto import inference_pb2 as pb

_OWN_PACKAGE: Final = pb.DESCRIPTOR.package
_PROTOCOL_PACKAGE: Final = "inference"
_PROTOCOL_FILE: Final = "open_inference_grpc.proto"


def reflected_pool(services: Sequence[str]) -> descriptor_pool.DescriptorPool:
    """A pool with the files of ``services``, those of generated code in this process and the inference protocol."""
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    default = descriptor_pool.Default()
    for name in services:
        try:
            _add(pool, default.FindFileContainingSymbol(name), added)
        except KeyError:
            continue
    pool.Add(protocol_file())
    return pool


def protocol_file() -> descriptor_pb2.FileDescriptorProto:
    """Our file of the inference protocol, with the protocol's package in place of ours."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = _PROTOCOL_FILE, _PROTOCOL_PACKAGE
    for service in file.service:
        for method in service.method:
            method.input_type = _renamed(method.input_type)
            method.output_type = _renamed(method.output_type)
    pending = list(file.message_type)
    while pending:
        message = pending.pop()
        pending.extend(message.nested_type)
        for field in message.field:
            if field.type_name:
                field.type_name = _renamed(field.type_name)
    return file


def _renamed(name: str) -> str:
    return name.replace(f".{_OWN_PACKAGE}.", f".{_PROTOCOL_PACKAGE}.", 1)


def _add(pool: descriptor_pool.DescriptorPool, file: Any, added: set[str]) -> None:
    if file.name in added:
        return
    added.add(file.name)
    for dependency in file.dependencies:
        _add(pool, dependency, added)
    copy = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(copy)
    pool.Add(copy)
