"""``grpc.health.v1``: the box's own readiness each time it is asked, and as it changes."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from grpc_health.v1 import health_pb2, health_pb2_grpc

from rdukit.errors import NotFound
from rdukit_modelbox.service import BoxService

#: Seconds between two looks of a ``Watch``.
LOOK_EVERY_S: Final = 0.25

Context = Any
Status = health_pb2.HealthCheckResponse.ServingStatus


class BoxHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Readiness of the server (empty name) or of one of its services."""

    def __init__(self, service: BoxService, names: Iterable[str]) -> None:
        """``names``: the services that the server has."""
        self._service = service
        self._names = frozenset({"", *names})

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """Now."""
        if request.service not in self._names:
            legal = ", ".join(sorted(self._names - {""}))
            raise NotFound(f"no service {request.service[:80]!r}; legal: {legal}", field="service")
        if not (await self._service.readiness()).is_ready:
            return health_pb2.HealthCheckResponse(status=Status.NOT_SERVING)
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Now, and whenever it changes; a service that is not there is ``SERVICE_UNKNOWN``."""
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(LOOK_EVERY_S)

    def _status(self, name: str) -> int:
        if name not in self._names:
            return int(Status.SERVICE_UNKNOWN)
        return int(Status.SERVING if self._service.health().is_ready else Status.NOT_SERVING)
