"""Effect of a node's broken links on the emulated traffic of a training's gradients.

Results do not depend on it: ranks of this machine exchange gradients in the usual way. Source: ours.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any

from rdukit.collectives.faulty_links import MAX_FAULTS, find_faulty_links, rerouted_components
from rdukit.collectives.plan import plan_collective
from rdukit.collectives.projection import rank_tiles
from rdukit.collectives.steps import Op
from rdukit.collectives.topology import break_links, build_machine
from rdukit.errors import InvalidArgument, PermissionDenied, Unavailable
from rdukit.hardware import NodeSpec, find_node
from rdukit.snd import SndClient
from rdukit_node.settings import socket_path


def find_route(ranks: int, tiles: int, size: int) -> dict[str, Any] | None:
    """Return ``describe_route`` for the active faults of the node daemon.

    ``None`` also if it does not answer, or does not show faults at this socket, such as that of a job's lease.
    """
    try:
        with SndClient(socket_path()) as client:
            node = find_node(str(client.call("hello")["platform"]))
            faults = client.call("faults", limit=MAX_FAULTS)["faults"]
    except (PermissionDenied, Unavailable):
        return None
    return describe_route(node, ranks, tiles, size, rerouted_components(faults))


def describe_route(
    node: NodeSpec, ranks: int, tiles: int, size: int, components: Iterable[str]
) -> dict[str, Any] | None:  # fmt: skip
    """Return how an allreduce of ``size`` bytes avoids a node's faulty links, as plain values; None: it uses none.

    ``tiles``: of a rank. ``components``: paths of links of the first node that are out of service.
    """
    part = rank_tiles(node.chip, tiles)
    per_node = node.rdus * (node.chip.tiles // part)
    machine = build_machine(node.platform, node, max(1, ceil(ranks / per_node)), tiles=part)
    found = find_faulty_links(machine, components)
    if not found.broken:
        return None
    described: dict[str, Any] = {"topology": machine.name, "broken": list(found.broken)}
    try:
        plan = plan_collective(Op.ALLREDUCE, break_links(machine, found.broken), ranks, size)
    except InvalidArgument as error:  # no way is left
        return {**described, "algorithm": None, "notes": [error.message]}
    return {
        **described, "algorithm": None if plan.chosen is None else str(plan.chosen), "notes": list(plan.notes),
        "projected_s": plan.terms.seconds,
    }  # fmt: skip
