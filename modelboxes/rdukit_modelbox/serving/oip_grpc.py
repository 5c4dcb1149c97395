"""The Open Inference Protocol v2 over gRPC: ``inference.GRPCInferenceService``.

What the caller got wrong is ``INVALID_ARGUMENT``, an unknown model or version ``NOT_FOUND``. A call whose caller goes
away, or whose deadline passes, takes its request back.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NoReturn

import grpc
from google.protobuf import json_format

from rdukit.errors import RdukitError
from rdukit.proto import inference_pb2 as pb
from rdukit_modelbox.grpc_strict import Undecodable, strict_decoder
from rdukit_modelbox.serving.access import Access
from rdukit_modelbox.serving.access_log import AccessLog
from rdukit_modelbox.serving.box_models import BoxModels
from rdukit_modelbox.serving.grpc_access import check_access
from rdukit_modelbox.serving.grpc_codec import check_forms, parameter_values, parse_infer, render_infer
from rdukit_modelbox.serving.metadata import model_configuration, model_metadata, server_metadata
from rdukit_modelbox.serving.repository_calls import load_model, unload_model

logger = logging.getLogger(__name__)

#: The protocol's name; the generated code's package has another so that it never meets a client's.
SERVICE_NAME: Final = "inference.GRPCInferenceService"
#: Requests of one stream that may be under way; more wait in the connection.
STREAM_DEPTH: Final = 64

Context = Any


class OpenInferenceServicer:
    """Each method answers one call of the protocol."""

    def __init__(
        self, models: BoxModels, access: Access, access_log: AccessLog, why_not_ready: Callable[[], Awaitable[str]]
    ) -> None:
        self._models = models
        self._repository = models.repository
        self._access = access
        self._log = access_log
        self._why_not_ready = why_not_ready

    async def ServerLive(self, request: Any, context: Context) -> Any:
        """The process answers."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> Any:
        """An inference goes through the device."""
        return pb.ServerReadyResponse(ready=not await self._why_not_ready())

    async def ModelReady(self, request: Any, context: Context) -> Any:
        """An inference goes through this version's device."""
        found = self._repository.find(request.name, request.version)
        return pb.ModelReadyResponse(ready=not await found.is_ready(2.0))

    async def ServerMetadata(self, request: Any, context: Context) -> Any:
        """Name, version, extensions."""
        return json_format.ParseDict(server_metadata(), pb.ServerMetadataResponse())

    async def ModelMetadata(self, request: Any, context: Context) -> Any:
        """Inputs and outputs."""
        found = self._repository.find(request.name, request.version)
        return json_format.ParseDict(model_metadata(self._repository, found), pb.ModelMetadataResponse())

    async def ModelConfig(self, request: Any, context: Context) -> Any:
        """The configuration, in Triton's words."""
        found = self._repository.find(request.name, request.version)
        value = {"config": model_configuration(self._repository, found)}
        return json_format.ParseDict(value, pb.ModelConfigResponse(), ignore_unknown_fields=True)

    async def ModelStatistics(self, request: Any, context: Context) -> Any:
        """Counts and durations of a version, or of all."""
        repository = self._repository
        name = request.name or repository.name
        versions = [request.version] if request.version else repository.ready_versions()
        versions = [repository.find(name, version).version for version in versions]
        entries = [repository.versions[v].statistics.to_json(repository.name, v) for v in versions]
        return json_format.ParseDict({"model_stats": entries}, pb.ModelStatisticsResponse())

    async def RepositoryIndex(self, request: Any, context: Context) -> Any:
        """Versions and their states."""
        entries = [e for e in self._repository.index() if not request.ready or e["state"] == "READY"]
        return json_format.ParseDict({"models": entries}, pb.RepositoryIndexResponse())

    async def RepositoryModelLoad(self, request: Any, context: Context) -> Any:
        """Load, probe, switch, drain."""
        await load_model(
            self._repository, request.model_name, parameter_values(request.parameters), self._models.resolve_path
        )  # fmt: skip
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Context) -> Any:
        """Drain and unload."""
        await unload_model(self._repository, request.model_name, parameter_values(request.parameters))
        return pb.RepositoryModelUnloadResponse()

    async def ModelInfer(self, request: Any, context: Context) -> Any:
        """One inference."""
        return await self._infer(request)

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        """Inferences one after another, answered in their order; a refused one does not end the stream."""
        under_way: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(STREAM_DEPTH)

        async def read() -> None:
            async for request in requests:
                await under_way.put(asyncio.ensure_future(self._infer(request)))
            await under_way.put(None)

        reading = asyncio.ensure_future(read())
        try:
            while (task := await under_way.get()) is not None:
                try:
                    yield pb.ModelStreamInferResponse(infer_response=await task)
                except RdukitError as error:
                    yield pb.ModelStreamInferResponse(error_message=error.message)
        finally:
            reading.cancel()
            while not under_way.empty():
                task = under_way.get_nowait()
                if task is not None:
                    task.cancel()

    async def _infer(self, message: Any) -> Any:
        if isinstance(message, Undecodable):
            raise message.error
        name = message.model_name
        found = await self._models.ensure(name, message.model_version)
        signature = found.signature
        try:
            request, is_raw = parse_infer(message)
            if not is_raw:
                check_forms(signature, request, is_raw)
        except RdukitError:
            found.statistics.count_failed(1)
            raise
        answer = await found.submit(request)
        response = render_infer(name, found.version, signature, request, answer, is_raw)
        if self._log.is_on:
            self._log.add("grpc", name, found.version, 0, answer.rows, answer.timing.queue, answer.timing.compute)
        return response

    def handler(self) -> Any:
        """All methods as a handler for ``grpc.aio.Server.add_generic_rpc_handlers``."""
        handlers = {}
        for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            request = getattr(pb, method.input_type.name)
            response = getattr(pb, method.output_type.name)
            serve = getattr(self, method.name)
            if method.name == "ModelStreamInfer":
                handlers[method.name] = grpc.stream_stream_rpc_method_handler(
                    self._guard_stream(serve), strict_decoder(request.FromString), response.SerializeToString
                )
            else:
                handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                    self._guard(serve), strict_decoder(request.FromString), response.SerializeToString
                )
        return grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)

    def _guard(self, serve: Callable[[Any, Context], Awaitable[Any]]) -> Callable[[Any, Context], Awaitable[Any]]:
        is_open = self._access.is_open

        async def guarded(request: Any, context: Context) -> Any:
            try:
                if not is_open:
                    check_access(self._access, context)
                if isinstance(request, Undecodable):
                    raise request.error
                return await serve(request, context)
            except RdukitError as error:
                await _refuse(context, error)

        return guarded

    def _guard_stream(self, serve: Callable[[Any, Context], AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def guarded(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            try:
                check_access(self._access, context)
            except RdukitError as error:
                await _refuse(context, error)
            async for response in serve(requests, context):
                yield response

        return guarded


async def _refuse(context: Context, error: RdukitError) -> NoReturn:
    await context.abort(getattr(grpc.StatusCode, error.grpc_status), error.message)
    raise AssertionError("abort does not return")
