"""Nodes in the console: tiles as a coloured picture, one colour per tenant and application; faults and queue (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rdukit.units import format_bytes, format_seconds
from rdukit_platform.nodes.view import is_free, is_usable

#: Colours that the style sheet has; holders beyond them share.
COLOURS: Final = 8

#: Healths of a tile other than ``Online``, in lower case: class of the style sheet, and meaning.
MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "degraded": ("worn", "works, with a fault"),
    "excluded": ("bad", "taken out of service after a fault"),
    "unavailable": ("gone", "its RDU is out of service"),
    "offline": ("dark", "absent or without power"),
}
#: Meaning of a tile's cordon.
CORDONS: Final[Mapping[str, str]] = {
    "cordoned": "not allocated: cordoned by an administrator",
    "draining": "not allocated: being drained",
    "drained": "not allocated: drained",
}
#: Colour of each operational state of an RDU: a class of the style sheet.
STATE_TONES: Final = {"FUNCTIONAL": "good", "PENDING": "wait", "DEGRADED": "warn", "UNAVAILABLE": "bad"}


@dataclass(frozen=True, slots=True)
class TileView:
    """Square of a tile. ``style`` is free or c0 … c7, or a class of ``MARKS``; worn is added to one of the former."""

    number: str
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class RduDrawing:
    """A chip and its tiles. ``state`` is empty without faults, or if the daemon does not report it."""

    name: str
    tiles: tuple[TileView, ...]
    state: str = ""
    tone: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HealthMark:
    """Line of the legend: the number of tiles with a health other than ``Online``."""

    style: str
    health: str
    meaning: str
    tiles: int


@dataclass(frozen=True, slots=True)
class TileJob:
    """Line of the legend: a holder of tiles."""

    style: str
    tenant: str
    application: str
    job: str | None
    tiles: int
    memory: str


@dataclass(frozen=True, slots=True)
class NodeDrawing:
    """The picture of one node. XRDUs are in order, each with its RDUs."""

    xrdus: tuple[tuple[str, tuple[RduDrawing, ...]], ...]
    holders: tuple[TileJob, ...]
    marks: tuple[HealthMark, ...]
    tiles_total: int
    tiles_used: int
    #: Tiles that cannot be leased.
    tiles_broken: int
    memory_total: int
    memory_used: int
    memory_text: str


def draw_node(
    tiles: Sequence[Mapping[str, Any]],
    leases: Sequence[Mapping[str, Any]],
    memory: Mapping[str, Any],
    rdus: Sequence[Mapping[str, Any]] = (),
) -> NodeDrawing:
    """Lay out the tiles by their paths; give each holder a colour, and each unhealthy tile a mark.

    Args:
        tiles, leases, memory, rdus: as in the node daemon's ``status`` (``docs/design/wire.md`` section 1,
            ``docs/design/node.md``).
    """
    states = {str(rdu.get("comp_name")): rdu for rdu in rdus}
    by_id = {str(lease.get("id")): lease for lease in leases}
    held: dict[str, int] = {}
    for tile in tiles:
        if tile.get("lease"):
            held[str(tile["lease"])] = held.get(str(tile["lease"]), 0) + 1
    styles = _styles([by_id.get(lease, {"id": lease}) for lease in held])
    grouped: dict[str, dict[str, list[TileView]]] = {}
    for tile in tiles:
        _, xrdu, rdu, number = _path_parts(str(tile["path"]))
        grouped.setdefault(xrdu, {}).setdefault(rdu, []).append(_draw_tile(tile, by_id, styles, number))
    used, total = int(memory.get("used") or 0), int(memory.get("total") or 0)
    return NodeDrawing(
        xrdus=tuple(
            (
                _spoken(xrdu),
                tuple(_draw_rdu(rdu, squares, states.get(f"/NODE/{xrdu}/{rdu}", {})) for rdu, squares in chips.items()),
            )
            for xrdu, chips in grouped.items()
        ),
        holders=tuple(_draw_holder(lease, by_id, styles, count) for lease, count in held.items()),
        marks=_count_marks(tiles),
        tiles_total=len(tiles),
        tiles_used=sum(held.values()),
        tiles_broken=sum(1 for tile in tiles if not is_usable(tile)),
        memory_total=total,
        memory_used=used,
        memory_text=f"{format_bytes(used)} of {format_bytes(total)}",
    )


def _draw_tile(
    tile: Mapping[str, Any], leases: Mapping[str, Mapping[str, Any]], styles: Mapping[str, str], number: str
) -> TileView:
    path, health = str(tile["path"]), _health(tile)
    lease = str(tile.get("lease") or "")
    holder = leases.get(lease, {})
    who = f"{tile.get('application') or lease} ({holder.get('tenant') or 'no tenant'})" if lease else "free"
    style = styles[lease] if lease else "free"
    if health == "Online" and tile.get("cordon"):
        word = str(tile["cordon"])
        return TileView(number, f"{style} held", f"{path}: {who}; {word}: {CORDONS.get(word, 'not allocated')}")
    if health == "Online":
        return TileView(number, style, f"{path}: {who}")
    mark, meaning = _mark(health)
    if is_usable(tile):
        return TileView(number, f"{style} {mark}", f"{path}: {who}; {health}: {meaning}")
    still = f"; still held by {who}" if lease else ""
    return TileView(number, mark, f"{path}: {health}, {meaning}{still}")


def _draw_rdu(name: str, squares: Sequence[TileView], row: Mapping[str, Any]) -> RduDrawing:
    state = str(row.get("state") or "")
    if state in {"", "FUNCTIONAL"}:
        return RduDrawing(_spoken(name), tuple(squares))
    return RduDrawing(
        _spoken(name), tuple(squares), state, STATE_TONES.get(state, "bad"), str(row.get("reason") or "no reason given")
    )


def _health(tile: Mapping[str, Any]) -> str:
    return str(tile.get("health") or "Online")


def _mark(health: str) -> tuple[str, str]:
    return MARKS.get(health.lower(), ("bad", "not in service"))


def _count_marks(tiles: Sequence[Mapping[str, Any]]) -> tuple[HealthMark, ...]:
    counts: dict[str, int] = {}
    for tile in tiles:
        if (health := _health(tile)) != "Online":
            counts[health] = counts.get(health, 0) + 1
    marks = [HealthMark(_mark(health)[0], health, _mark(health)[1], count) for health, count in counts.items()]
    for word, meaning in CORDONS.items():
        count = sum(tile.get("cordon") == word for tile in tiles)
        if count:
            marks.append(HealthMark("free held", word, meaning, count))
    return tuple(marks)


def _draw_holder(lease: str, leases: Mapping[str, Mapping[str, Any]], styles: Mapping[str, str], tiles: int) -> TileJob:
    value = leases.get(lease, {})
    return TileJob(
        style=styles[lease],
        tenant=str(value.get("tenant") or "–"),
        application=str(value.get("application") or lease),
        job=str(value["job"]) if value.get("job") else None,
        tiles=tiles,
        memory=format_bytes(int(value.get("memory_bytes") or 0)),
    )


def _styles(leases: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    colours: dict[tuple[str, str], int] = {}
    styles = {}
    for lease in leases:
        who = (str(lease.get("tenant") or ""), str(lease.get("application") or lease.get("id")))
        styles[str(lease.get("id"))] = f"c{colours.setdefault(who, len(colours)) % COLOURS}"
    return styles


def _path_parts(path: str) -> tuple[str, str, str, str]:
    parts = [part for part in path.split("/") if part and part != "NODE"]
    xrdu, rdu, tile = [*parts, "?", "?", "?"][:3]
    return path, xrdu, rdu, tile.rsplit("_", 1)[-1]


def _spoken(name: str) -> str:
    return name.replace("_", " ")


#: Colour of each severity: a class of the style sheet.
SEVERITY_TONES: Final = {"Minor": "wait", "Major": "warn", "Critical": "bad"}


@dataclass(frozen=True, slots=True)
class FaultLine:
    """An active fault, the node's action, and advice."""

    id: str
    type: str
    severity: str
    tone: str
    component: str
    what: str
    advice: str
    #: Seconds since the epoch.
    at: float
    #: Application and job that it hit, if there are any.
    application: str
    job: str


@dataclass(frozen=True, slots=True)
class QueuedLease:
    """A request in the daemon's queue. ``at``: seconds since the epoch."""

    application: str
    tiles: int
    memory: str
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class UpkeepLine:
    """A cordon, drain or maintenance window. ``until`` and ``at``: seconds since the epoch."""

    component: str
    state: str
    reason: str
    at: float
    until: float | None
    #: Id of a window; empty: the entry is not a window.
    window: str = ""


def _view_upkeep(node: Mapping[str, Any]) -> list[UpkeepLine]:
    def seconds(value: Any) -> float | None:
        return None if value is None else int(value) / 1e9

    cordons = [
        UpkeepLine(str(row.get("component")), str(row.get("state")), str(row.get("reason") or ""),
                   seconds(row.get("since")) or 0.0, seconds(row.get("deadline")))
        for row in node.get("cordons") or []
    ]  # fmt: skip
    return cordons + [
        UpkeepLine(str(row.get("component")), f"maintenance {row.get('window')}", str(row.get("reason") or ""),
                   seconds(row.get("starts_at")) or 0.0, seconds(row.get("ends_at")), str(row.get("window") or ""))
        for row in node.get("windows") or []
    ]  # fmt: skip


def view_nodes(nodes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """View nodes as ``list_nodes`` gives them, with their pictures, faults and queues."""
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
        "labels": [f"{key}={value}" for key, value in sorted((node.get("labels") or {}).items())],
        "beat_at": node.get("beat_at"),
        "health": health,
        "tone": STATE_TONES.get(health, "good"),
        "platform": node.get("platform") or "",
        "uptime": format_seconds(int(uptime)) if uptime else "",
        "applications": node.get("applications", len({lease.get("application") for lease in leases})),
        "max_applications": node.get("max_applications"),
        "picture": picture,
        "faults": faults,
        "upkeep": _view_upkeep(node),
        "waiting": [_view_waiting(request) for request in node.get("waiting") or []],
        "unwritten": "" if database.get("is_writable", True) else str(database.get("reason") or "it takes nothing"),
        "jobs": [str(lease["job"]) for lease in leases if lease.get("job")] + [f.job for f in faults if f.job],
        "used": picture.tiles_used,
        "total": picture.tiles_total,
        "broken": picture.tiles_broken,
        "free": sum(is_free(tile) for tile in tiles),
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


def _view_waiting(request: Mapping[str, Any]) -> QueuedLease:
    return QueuedLease(
        application=str(request.get("application") or ""),
        tiles=int(request.get("tiles") or 0),
        memory=format_bytes(int(request.get("memory_bytes") or 0)),
        at=float(request.get("since") or 0.0),
        reason=str(request.get("reason") or ""),
    )
