"""``EmulatedNodeRPC``: what only an emulated node offers. Source: ours."""

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from rdukit.errors import InvalidArgument
from rdukit.proto import snml_pb2 as pb
from rdukit.proto import snml_pb2_grpc
from rdukit_node.snml.calls import answers, streams
from rdukit_node.snml.components import full_path
from rdukit_node.snml.messages import as_count
from rdukit_node.snml.node_calls import NodeCalls
from rdukit_node.snml.rows import application_reply
from rdukit_node.snml.watch import EventWatch

MAX_DATA: Final = 4096


class EmulatedNodeServicer(snml_pb2_grpc.EmulatedNodeRPCServicer):  # type: ignore[misc]
    """The node of one daemon."""

    def __init__(self, calls: NodeCalls, watch: EventWatch, token: str) -> None:
        self._calls: Final = calls
        self._watch: Final = watch
        #: What changes need.
        self.token: Final = token

    @answers(is_admin=True)
    async def Inject(self, request: pb.InjectRequest) -> pb.InjectReply:
        """Make hardware events happen."""
        if not request.events:
            raise InvalidArgument("events is empty; legal: 1 to 1000 events")
        events = [injection(event, index) for index, event in enumerate(request.events)]
        answer = await self._calls.call("inject", may_repeat=False, events=events)
        return pb.InjectReply(err_uuids=answer["errors"], fault_uuids=answer["faults"])

    @answers(is_admin=True)
    async def Repair(self, request: pb.RepairRequest) -> pb.RepairReply:
        """Replace a component."""
        if not request.comp_name:
            raise InvalidArgument("comp_name is empty; legal: a component, from GetStaticResource")
        answer = await self._calls.call("repair", may_repeat=False, component=full_path(request.comp_name))
        return pb.RepairReply(repaired=as_count(answer["repaired"]), cleared_fault_uuids=answer["cleared"])

    @streams(limit_s=None)
    async def WatchEvents(self, request: pb.WatchEventsRequest) -> AsyncGenerator[pb.WatchEventsReply, None]:
        """What happened, then what happens."""
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
        """The accounting, newest first."""
        answer = await self._calls.call("applications", limit=request.limit or None)
        return pb.ListApplicationsReply(applications=[application_reply(row) for row in answer["applications"]])


def injection(event: pb.Injection, index: int) -> Mapping[str, Any]:
    """An event as the daemon takes it.

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
        raise InvalidArgument(f"events[{index}].data has {len(text)} characters; legal: {MAX_DATA} at most")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument(f"events[{index}].data is not JSON ({cause}); legal: a JSON object") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"events[{index}].data is a {type(value).__name__}; legal: a JSON object")
    return value
