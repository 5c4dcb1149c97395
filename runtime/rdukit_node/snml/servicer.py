"""The servicers of ``SNMLRPC``, which the vendor's node has too, and of ``EmulatedNodeRPC``, which is ours.

Each method turns messages into calls of the daemon.
"""

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from rdukit.errors import InvalidArgument, RdukitError
from rdukit.pef.file import FORMAT_VERSION
from rdukit.proto import snml_pb2 as pb
from rdukit.proto import snml_pb2_grpc
from rdukit_node.faults.schema import VERSION as DATABASE_VERSION
from rdukit_node.snml import rows
from rdukit_node.snml.calls import answers, streams
from rdukit_node.snml.messages import as_count, full_path, resource_tree, routes
from rdukit_node.snml.node_calls import NodeCalls
from rdukit_node.snml.rows import application_reply
from rdukit_node.snml.watch import EventWatch

_PEF_VERSION: Final = ".".join(str(part) for part in FORMAT_VERSION)


class SnmlServicer(snml_pb2_grpc.SNMLRPCServicer):  # type: ignore[misc]
    """The node of one daemon."""

    def __init__(self, calls: NodeCalls, token: str) -> None:
        self._calls: Final = calls
        #: Requirement for changes.
        self.token: Final = token

    # -- identity ----------------------------------------------------------------------------------------------------

    @answers()
    async def GetSystemPlatformInfo(self, request: pb.GetSystemPlatformInfoRequest) -> pb.GetSystemPlatformInfoReply:
        """Return the platform's name."""
        return rows.platform_info(await self._calls.call("hello"))

    @answers()
    async def GetSystemVersionInfo(self, request: pb.GetSystemVersionInfoRequest) -> pb.GetSystemVersionInfoReply:
        """Versions of the parts."""
        return rows.version_info(await self._calls.call("hello"), _PEF_VERSION, str(DATABASE_VERSION))

    @answers()
    async def GetSystemPlatformDetails(
        self, request: pb.GetSystemPlatformDetailsRequest
    ) -> pb.GetSystemPlatformDetailsReply:
        """Return maxima of the platform."""
        inventory = await self._calls.call("inventory")
        hello, status = await self._calls.call("hello"), await self._calls.call("status")
        return rows.platform_details(hello, status, inventory["components"])

    # -- inventory ---------------------------------------------------------------------------------------------------

    @answers()
    async def GetStaticResource(self, request: pb.GetResourceRequest) -> pb.GetResourceReply:
        """Return components as installed."""
        return await self._resource(request, only_usable=False)

    @answers()
    async def GetOnlineResource(self, request: pb.GetResourceRequest) -> pb.GetResourceReply:
        """Return components as usable now."""
        return await self._resource(request, only_usable=True)

    # -- state -------------------------------------------------------------------------------------------------------

    @streams()
    async def GetRDUOperationalStatus(
        self, request: pb.GetRDUOperationalStatusRequest
    ) -> AsyncGenerator[pb.GetRDUOperationalStatusReply, None]:
        """Report whether each RDU can run applications."""
        answer = await self._calls.call("op_state")
        for reply in rows.operational_status(answer["rdus"], request.comp_name):
            yield reply

    @answers()
    async def GetTileInfo(self, request: pb.GetTileInfoRequest) -> pb.GetTileInfoReply:
        """Return state of each tile, and who occupies it."""
        status = await self._calls.call("status")
        return rows.tile_info(status, await self._calls.call("counters"), request.comp_name)

    @streams()
    async def GetHangRecoveryHistory(
        self, request: pb.GetHangRecoveryHistoryRequest
    ) -> AsyncGenerator[pb.GetHangRecoveryHistoryReply, None]:
        """List resets and their outcomes."""
        answer = await self._calls.call("hangs", component=_component(request), limit=request.limit or None)
        for row in answer["hangs"]:
            yield rows.hang_reply(row)

    # -- faults ------------------------------------------------------------------------------------------------------

    @streams()
    async def GetSystemErrors(
        self, request: pb.GetSystemErrorsRequest
    ) -> AsyncGenerator[pb.GetSystemErrorsReply, None]:
        """Error rows, oldest first."""
        found = self._calls.rows(
            "errors",
            "errors",
            "err_uuid",
            0,
            component=_component(request),
            type=request.err_type,
            since=request.since or None,
            until=request.until or None,
            fault=request.fault_uuid,
            after=request.after_uuid or None,
        )
        sent = 0
        async for row in found:
            if rows.is_counted(row, request.min_count, request.max_count):
                yield rows.error_reply(row)
                sent += 1
                if sent == request.limit:
                    return

    @streams()
    async def GetSystemFaults(
        self, request: pb.GetSystemFaultsRequest
    ) -> AsyncGenerator[pb.GetSystemFaultsReply, None]:
        """Return faults, oldest first."""
        found = self._calls.rows(
            "faults",
            "faults",
            "fault_uuid",
            request.limit,
            component=_component(request),
            type=request.fault_type,
            since=request.since or None,
            until=request.until or None,
            fault=request.fault_uuid,
            severity=request.severity,
            cleared=request.include_cleared,
            after=request.after_uuid or None,
        )
        async for row in found:
            yield rows.fault_reply(row)

    @streams()
    async def GetSystemFaultState(
        self, request: pb.GetSystemFaultStateRequest
    ) -> AsyncGenerator[pb.GetSystemFaultStateReply, None]:
        """Report whether each component has an active fault."""
        inventory = await self._calls.call("inventory")
        found = self._calls.rows("faults", "faults", "fault_uuid", 0, component=_component(request), cleared=False)
        faults = [row async for row in found]
        for reply in rows.fault_states(inventory["components"], faults, request.comp_name):
            yield reply

    @streams()
    async def GetSystemPolicyInfo(
        self, request: pb.GetSystemPolicyInfoRequest
    ) -> AsyncGenerator[pb.GetSystemPolicyInfoReply, None]:
        """Report which errors make a fault."""
        for row in (await self._calls.call("policies"))["policies"]:
            yield rows.policy_reply(row)

    # -- counters, topology ------------------------------------------------------------------------------------------

    @answers()
    async def GetPerfCounter(self, request: pb.GetPerfCounterRequest) -> pb.GetPerfCounterReply:
        """Return counters since the daemon started."""
        return rows.perf_counters(await self._calls.call("counters"), request.kinds, request.comp_name)

    @answers()
    async def GetSystemLocalPcieRoute(self, request: pb.GetRouteRequest) -> pb.GetRouteReply:
        """Return routes between the RDUs of each XRDU."""
        return await self._routes(request, only_local=True)

    @answers()
    async def GetSystemP2PRoute(self, request: pb.GetRouteRequest) -> pb.GetRouteReply:
        """Return routes between all RDUs."""
        return await self._routes(request, only_local=False)

    # -- admin -------------------------------------------------------------------------------------------------------

    @streams(is_admin=True)
    async def ClearSystemFault(
        self, request: pb.ClearSystemFaultRequest
    ) -> AsyncGenerator[pb.ClearSystemFaultReply, None]:
        """Clear faults; a fault whose cause persists returns under a new uuid."""
        if not request.fault_uuids:
            raise InvalidArgument("fault_uuids is empty; expected the uuids of active faults, from GetSystemFaults")
        for uuid in request.fault_uuids:
            try:
                yield rows.clear_reply(await self._calls.call("clear", may_repeat=False, fault=uuid or "-"))
            except RdukitError as error:
                yield pb.ClearSystemFaultReply(fault_uuid=uuid, error_details=[f"{error.code}: {error.message}"])

    @streams(is_admin=True)
    async def ResetRDU(self, request: pb.ResetRDURequest) -> AsyncGenerator[pb.ResetRDUReply, None]:
        """Reset tiles or RDUs; applications on them end with an exception."""
        if not request.comp_names:
            raise InvalidArgument("comp_names is empty; expected paths of RDUs or tiles, from GetStaticResource")
        for comp_name in request.comp_names:
            try:
                answer = await self._calls.call("reset", may_repeat=False, component=full_path(comp_name))
                yield rows.reset_reply(comp_name, answer["hang"])
            except RdukitError as error:
                yield pb.ResetRDUReply(comp_name=full_path(comp_name), error_details=[f"{error.code}: {error.message}"])

    async def _resource(self, request: pb.GetResourceRequest, *, only_usable: bool) -> pb.GetResourceReply:
        hello = await self._calls.call("hello")
        inventory, states = await self._calls.call("inventory"), await self._calls.call("op_state")
        root = resource_tree(inventory["components"], states["rdus"], request.comp_name, only_usable=only_usable)
        return pb.GetResourceReply(platform_name=rows.platform_name(hello), root=root)

    async def _routes(self, request: pb.GetRouteRequest, *, only_local: bool) -> pb.GetRouteReply:
        inventory = await self._calls.call("inventory")
        found = routes(inventory["components"], request.comp_name, only_local=only_local)
        reply = pb.GetRouteReply(routes=found)
        if not found:
            reply.error_details.append("this platform connects no two RDUs in this way")
        return reply


def _component(request: object) -> str | None:
    comp_name = str(getattr(request, "comp_name", ""))
    return full_path(comp_name) if comp_name else None


MAX_DATA: Final = 4096


class EmulatedNodeServicer(snml_pb2_grpc.EmulatedNodeRPCServicer):  # type: ignore[misc]
    """The node of one daemon."""

    def __init__(self, calls: NodeCalls, watch: EventWatch, token: str) -> None:
        self._calls: Final = calls
        self._watch: Final = watch
        #: Requirement for changes.
        self.token: Final = token

    @answers(is_admin=True)
    async def Inject(self, request: pb.InjectRequest) -> pb.InjectReply:
        """Make hardware events happen."""
        if not request.events:
            raise InvalidArgument("events is empty; expected 1 to 1000 events")
        events = [injection(event, index) for index, event in enumerate(request.events)]
        answer = await self._calls.call("inject", may_repeat=False, events=events)
        return pb.InjectReply(err_uuids=answer["errors"], fault_uuids=answer["faults"])

    @answers(is_admin=True)
    async def Repair(self, request: pb.RepairRequest) -> pb.RepairReply:
        """Replace a component."""
        if not request.comp_name:
            raise InvalidArgument("comp_name is empty; expected a component, from GetStaticResource")
        answer = await self._calls.call("repair", may_repeat=False, component=full_path(request.comp_name))
        return pb.RepairReply(repaired=as_count(answer["repaired"]), cleared_fault_uuids=answer["cleared"])

    @streams(limit_s=None)
    async def WatchEvents(self, request: pb.WatchEventsRequest) -> AsyncGenerator[pb.WatchEventsReply, None]:
        """Stream the events so far, then new ones."""
        found = self._watch.follow(
            min(request.since, 2**62),
            set(request.kinds),
            only_new=request.only_new,
            follow=not request.no_follow,
        )
        async with contextlib.aclosing(found) as replies:
            async for reply in replies:
                yield reply

    @answers()
    async def ListApplications(self, request: pb.ListApplicationsRequest) -> pb.ListApplicationsReply:
        """Return the accounting, newest first."""
        answer = await self._calls.call("applications", limit=request.limit or None)
        return pb.ListApplicationsReply(applications=[application_reply(row) for row in answer["applications"]])


def injection(event: pb.Injection, index: int) -> Mapping[str, Any]:
    """Return an event in the daemon's form.

    Raises:
        InvalidArgument: its data is not a JSON object.
    """
    made: dict[str, Any] = {"class": event.class_name}
    if event.comp_name:
        made["component"] = full_path(event.comp_name)
    if event.count:
        made["count"] = event.count
    if event.HasField("seed"):
        made["seed"] = event.seed
    if event.data:
        made["data"] = _data(event.data, index)
    return made


def _data(text: str, index: int) -> dict[str, Any]:
    if len(text) > MAX_DATA:
        raise InvalidArgument(f"events[{index}].data has {len(text)} characters; expected {MAX_DATA} at most")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument(f"events[{index}].data is not JSON ({cause}); expected a JSON object") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"events[{index}].data is a {type(value).__name__}; expected a JSON object")
    return value
