"""What a tenant sees of the nodes (pure): its own jobs' tiles, and of all others only how much is taken.

It is enough to understand why a job waits: totals, free tiles, health. Whose the rest is, which programs and jobs hold
it, and where the platform's processes run is for administrators and whoever has the scope ``metrics``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

#: Stands for the leases of others.
OTHERS: Final = "others"

#: Of a node's status: what is said of the node itself. All else has a rule below or is left out.
_SHOWN: Final = (
    "name", "state", "version", "platform", "chip", "node", "memory", "applications", "max_applications", "uptime_s",
    "rdus", "health",
)  # fmt: skip
#: Of a tile and a fault: what is said of the hardware.
_TILE: Final = ("path", "rdu", "tile", "health")
_FAULT: Final = (
    "fault_uuid", "fault_type", "fault_state", "severity", "comp_name", "fault_desc", "recovery_act", "timestamp",
)  # fmt: skip


def nodes_for(nodes: Sequence[Mapping[str, Any]], tenant_id: str) -> list[dict[str, Any]]:
    """Nodes as ``read_nodes`` gives them, as a tenant may see them."""
    return [_node_for(node, tenant_id) for node in nodes]


def services_for(services: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The platform's processes without their hosts and process ids."""
    counts: dict[str, int] = {}
    shown = []
    for service in sorted(services, key=lambda each: (each["started_at"], each["id"])):
        kind = str(service["kind"])
        counts[kind] = counts.get(kind, 0) + 1
        shown.append({**service, "id": f"{kind}-{counts[kind]}"})
    return shown


def _node_for(node: Mapping[str, Any], tenant_id: str) -> dict[str, Any]:
    def is_own(what: Mapping[str, Any]) -> bool:
        return what.get("tenant") == tenant_id

    leases = {str(lease["id"]): lease for lease in node.get("leases") or [] if is_own(lease)}
    shown = {name: node[name] for name in _SHOWN if name in node}
    if "error" in node:
        shown["error"] = "the node daemon does not answer"
    if "database" in node:
        shown["database"] = {"is_writable": bool((node["database"] or {}).get("is_writable", True))}
    return shown | {
        "tiles": [_tile_for(tile, leases) for tile in node.get("tiles") or []],
        "leases": list(leases.values()),
        "waiting": [request for request in node.get("waiting") or [] if is_own(request)],
        "faults": [
            fault if is_own(fault) else {name: fault[name] for name in _FAULT if name in fault}
            for fault in node.get("faults") or []
        ],
    }


def _tile_for(tile: Mapping[str, Any], leases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    shown = {name: tile[name] for name in _TILE if name in tile}
    lease = tile.get("lease")
    if lease and str(lease) in leases:
        return {**shown, "lease": lease, "application": tile.get("application")}
    return {**shown, "lease": OTHERS if lease else None, "application": None}
