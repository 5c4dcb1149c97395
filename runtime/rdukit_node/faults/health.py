"""How a component is, in a word, and which components a fault's path leads over. Pure."""

from collections.abc import Mapping

from rdukit.hardware import NodeSpec
from rdukit_node.faults.capacity import channel_of
from rdukit_node.faults.enums import RduState
from rdukit_node.faults.rdus import RduStates
from rdukit_node.faults.register import FaultClass, Suspect
from rdukit_node.inventory import Component, ComponentKind, Health, rdu_path


def health_word(node: NodeSpec, component: Component, rdus: RduStates, active_below: Mapping[str, int]) -> str:
    """The health of a component that is there.

    Args:
        active_below: by path, active faults at it or below it.
    """
    path, rdu = component.path, component.rdu
    if rdu is None:
        below = [number for number in range(node.rdus) if rdu_path(node, number).startswith(path + "/")]
        states = [rdus.state(number) for number in below]
        if all(state is RduState.UNAVAILABLE for state in states):
            return Health.UNAVAILABLE
        is_pending = any(state is RduState.PENDING for state in states)
        return Health.DEGRADED if is_pending or path in active_below else Health.ONLINE
    losses, state = rdus.losses(rdu), rdus.state(rdu)
    if component.tile is not None and rdu * node.chip.tiles + component.tile in losses.tiles:
        return Health.EXCLUDED
    if component.kind in (ComponentKind.DIMM, ComponentKind.DDR_CHANNEL) and channel_of(node, path) in losses.channels:
        return Health.EXCLUDED
    if state in (RduState.PENDING, RduState.UNAVAILABLE):
        return Health.UNAVAILABLE
    if path in losses.links:
        return Health.UNAVAILABLE
    return Health.DEGRADED if path in active_below else Health.ONLINE


def suspects_of(node: NodeSpec, component: Component, entry: FaultClass) -> tuple[str, ...]:
    """Paths of what may be the culprit, the likeliest first."""
    rdu = None if component.rdu is None else rdu_path(node, component.rdu)
    xrdu = component.path if component.kind is ComponentKind.XRDU else None if rdu is None else rdu.rpartition("/")[0]
    places = {
        Suspect.SELF: component.path,
        Suspect.CHANNEL: channel_of(node, component.path) if component.kind is ComponentKind.DIMM else None,
        Suspect.RDU: rdu,
        Suspect.XRDU: xrdu,
        Suspect.NODE: "/NODE",
    }
    return tuple(dict.fromkeys(path for suspect in entry.suspects if (path := places[suspect]) is not None))
