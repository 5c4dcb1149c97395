"""What the page of nodes shows, from what the node daemons tell (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rdukit.units import format_bytes, format_seconds
from rdukit_platform.console.tiles import STATE_TONES, draw_node

#: Colour of each severity: a class of the style sheet.
SEVERITY_TONES: Final = {"Minor": "wait", "Major": "warn", "Critical": "bad"}


@dataclass(frozen=True, slots=True)
class FaultLine:
    """A fault that still counts, what was done and what a person is to do."""

    id: str
    type: str
    severity: str
    tone: str
    component: str
    what: str
    advice: str
    #: Seconds since the epoch.
    at: float
    #: Whom it hit: application and job, where there are any.
    application: str
    job: str


@dataclass(frozen=True, slots=True)
class WaitingLine:
    """A request in the daemon's queue. ``at``: seconds since the epoch."""

    application: str
    tiles: int
    memory: str
    at: float
    reason: str


def view_nodes(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Nodes as ``nodes.service.read_nodes`` gives them, with their pictures, faults and queues."""
    return [_view_node(node) for node in nodes]


def _view_node(node: Mapping[str, Any]) -> dict[str, Any]:
    leases, tiles = list(node.get("leases") or []), list(node.get("tiles") or [])
    uptime, health = node.get("uptime_s"), str(node.get("health") or "")
    database = node.get("database") or {}
    faults = [_view_fault(fault) for fault in node.get("faults") or []]
    picture = draw_node(tiles, leases, node.get("memory") or {}, list(node.get("rdus") or []))
    return {
        "name": node.get("name"),
        "state": node.get("state"),
        "error": node.get("error") or "",
        "health": health,
        "tone": STATE_TONES.get(health, "good"),
        "platform": node.get("platform") or "",
        "uptime": format_seconds(int(uptime)) if uptime else "",
        "applications": node.get("applications", len({lease.get("application") for lease in leases})),
        "max_applications": node.get("max_applications"),
        "picture": picture,
        "faults": faults,
        "waiting": [_view_waiting(request) for request in node.get("waiting") or []],
        "unwritten": "" if database.get("is_writable", True) else str(database.get("reason") or "it takes nothing"),
        "jobs": [str(lease["job"]) for lease in leases if lease.get("job")] + [f.job for f in faults if f.job],
        "used": picture.tiles_used,
        "total": picture.tiles_total,
        "broken": picture.tiles_broken,
    }


def _view_fault(fault: Mapping[str, Any]) -> FaultLine:
    severity = str(fault.get("severity") or "")
    return FaultLine(
        id=str(fault.get("fault_uuid") or ""),
        type=str(fault.get("fault_type") or ""),
        severity=severity,
        tone=SEVERITY_TONES.get(severity, "bad"),
        component=str(fault.get("comp_name") or ""),
        what=str(fault.get("fault_desc") or ""),
        advice=str(fault.get("recovery_act") or ""),
        at=int(fault.get("timestamp") or 0) / 1e9,
        application=str(fault.get("application") or ""),
        job=str(fault.get("job") or ""),
    )


def _view_waiting(request: Mapping[str, Any]) -> WaitingLine:
    return WaitingLine(
        application=str(request.get("application") or ""),
        tiles=int(request.get("tiles") or 0),
        memory=format_bytes(int(request.get("memory_bytes") or 0)),
        at=float(request.get("since") or 0.0),
        reason=str(request.get("reason") or ""),
    )
