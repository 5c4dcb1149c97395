"""The Open Inference Protocol v2 over gRPC: ``inference.GRPCInferenceService``.

Invalid requests are ``INVALID_ARGUMENT``, unknown models or versions ``NOT_FOUND``. If the caller disconnects or its
deadline passes, its request is cancelled.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
from google.protobuf import json_format

from rdukit.errors import RdukitError
from rdukit.proto import inference_pb2 as pb
from rdukit.rpc.errors import Undecodable, strict_handler
from rdukit_serving.access import AccessLog
from rdukit_serving.checks import classify
from rdukit_serving.models.repository import (
    load_model,
    model_configuration,
    model_metadata,
    server_metadata,
    unload_model,
)
from rdukit_serving.models.served import ServedModels
from rdukit_serving.rpc.codec import (
    RawAnswers,
    needs_raw_outputs,
    parameter_values,
    parse_infer,
    render_infer,
)
from rdukit_serving.rpc.server import answer_in_order

#: The protocol's name; the generated code's package has another so that it never meets a client's.
SERVICE_NAME: Final = "inference.GRPCInferenceService"
#: Requests of one stream that may be under way; more wait in the connection.
STREAM_DEPTH: Final = 64

Context = Any


class OpenInferenceServicer:
    """Servicer of the protocol; each method answers one call."""

    def __init__(
        self, models: ServedModels, access_log: AccessLog, why_not_ready: Callable[[], Awaitable[str]]
    ) -> None:
        self._models = models
        self._log = access_log
        self._why_not_ready = why_not_ready
        #: By version.
        self._raw: dict[str, RawAnswers] = {}

    async def ServerLive(self, request: Any, context: Context) -> Any:
        """Answer that the process lives."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:
        """Answer whether an inference goes through the device."""
        return pb.ServerReadyResponse(ready=not await self._why_not_ready())

    async def ModelReady(self, request: Any, context: Context) -> Any:
        """Answer whether an inference goes through this version's device."""
        found = self._models.repository_of(request.name).find(request.name, request.version)
        return pb.ModelReadyResponse(ready=not await found.why_not_ready())

    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        """Answer with name, version and extensions."""
        return json_format.ParseDict(server_metadata(), pb.ServerMetadataResponse())

    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        """Answer with inputs and outputs; load the newest trained model if nothing is loaded."""
        found = await self._models.ensure(request.name, request.version)
        repository = self._models.repository_of(request.name)
        return json_format.ParseDict(model_metadata(repository, found), pb.ModelMetadataResponse())

    async def ModelConfig(self, request: Any, context: Context) -> Any:
        """Answer with the configuration, in Triton's words."""
        repository = self._models.repository_of(request.name)
        value = {"config": model_configuration(repository, repository.find(request.name, request.version))}
        return json_format.ParseDict(value, pb.ModelConfigResponse(), ignore_unknown_fields=True)

    async def ModelStatistics(self, request: Any, context: Context) -> Any:
        """Answer with counts and durations of a version, or of all."""
        repositories = [self._models.repository_of(request.name)] if request.name else self._models.repositories
        entries = []
        for repository in repositories:
            name = request.name or repository.name
            versions = [request.version] if request.version else repository.ready_versions()
            found = [repository.find(name, version) for version in versions]
            entries += [each.statistics.to_json(repository.name, each.version) for each in found]
        return json_format.ParseDict({"model_stats": entries}, pb.ModelStatisticsResponse())

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        """Answer with versions and their states."""
        index = [entry for repository in self._models.repositories for entry in repository.index()]
        entries = [e for e in index if not request.ready or e["state"] == "READY"]
        return json_format.ParseDict({"models": entries}, pb.RepositoryIndexResponse())

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        """Load, probe, switch, drain."""
        name = request.model_name
        repository, given = self._models.repository_of(name), parameter_values(request.parameters)
        await load_model(repository, name, given, self._models.resolve_path)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        """Drain and unload."""
        repository = self._models.repository_of(request.model_name)
        await unload_model(repository, request.model_name, parameter_values(request.parameters))
        return pb.RepositoryModelUnloadResponse()

    async def ModelInfer(self, request: Any, context: Context) -> Any:
        """Answer one inference."""
        return await self._infer(request)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """Answer inferences in their order; a refused one does not end the stream."""
        async with contextlib.aclosing(answer_in_order(requests, self._answer, STREAM_DEPTH)) as answers:
            async for answer in answers:
                yield answer

    async def _answer(self, message: Any) -> Any:
        try:
            answer = await self._infer(message)
            if isinstance(answer, bytes):
                answer = pb.ModelInferResponse.FromString(answer)
            return pb.ModelStreamInferResponse(infer_response=answer)
        except RdukitError as error:
            return pb.ModelStreamInferResponse(error_message=error.message)

    async def _infer(self, message: Any) -> Any:
        """Return a ``ModelInferResponse``, or its bytes."""
        if isinstance(message, Undecodable):
            raise message.error
        name = message.model_name
        found = await self._models.ensure(name, message.model_version)
        signature = found.signature
        try:
            request, is_raw = parse_infer(message)
            if not is_raw:
                is_raw = needs_raw_outputs(signature, request)
        except RdukitError:
            found.statistics.count_failed(1)
            raise
        answer = await found.submit(request)
        if self._log.is_on:
            self._log.add("grpc", name, found.version, 0, answer.rows, answer.timing.queue, answer.timing.compute)
        load_us = int(found.load_seconds * 1e6)
        if is_raw and not request.classes:
            answers = self._raw.get(found.version)
            if answers is None or answers.signature is not signature:
                answers = self._raw[found.version] = RawAnswers(name, found.version, signature, load_us)
            return answers.render(request, answer)
        if request.classes:
            signature, answer = classify(signature, answer, request.classes)
        return render_infer(name, found.version, signature, request, answer, is_raw, load_us)

    def add_to(self, server: Any) -> str:
        """Add the service to a gRPC server; return its name."""
        server.add_generic_rpc_handlers((self.handler(),))
        return SERVICE_NAME

    def handler(self) -> Any:
        """Return all methods as a handler for ``grpc.aio.Server.add_generic_rpc_handlers``."""
        handlers = {}
        for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            request, response = getattr(pb, method.input_type.name), getattr(pb, method.output_type.name)
            is_stream = method.name == "ModelStreamInfer"
            make = grpc.stream_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
            encode = _encode if response is pb.ModelInferResponse else response.SerializeToString
            handlers[method.name] = strict_handler(make(getattr(self, method.name), request.FromString, encode))
        return grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)


def _encode(response: Any) -> bytes:
    encoded: bytes = response if isinstance(response, bytes) else response.SerializeToString()
    return encoded
