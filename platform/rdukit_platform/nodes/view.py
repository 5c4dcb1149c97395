"""Emulated nodes as the platform sees them: their state, their capacity, and the part that a tenant may see.

``status`` and ``faults`` are the daemon's answers of those names (``docs/design/node.md``). Everything is pure except
``look_at_node``, ``answers`` and ``change_node``, which ask the daemon.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypedDict

from rdukit.errors import RdukitError, Unavailable
from rdukit.snd import SndClient

#: Health states of tiles that may be leased; degraded tiles still work.
USABLE: Final = frozenset({"online", "degraded", ""})

#: Operational states of an RDU, the worst last.
RDU_STATES: Final = ("FUNCTIONAL", "PENDING", "DEGRADED", "UNAVAILABLE")


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Capacity of a node by its daemon's report: healthy tiles, free ones, and free application places."""

    tiles: int
    free_tiles: int
    free_applications: int
    #: Tiles out of service.
    broken_tiles: int = 0
    #: Tiles per RDU with all in service; 0 if the daemon does not report the tiles' RDUs.
    rdu_tiles: int = 0
    #: Lengths of the rows of neighbouring healthy tiles, each inside one RDU.
    rows: tuple[int, ...] = ()
    #: Healthy tiles that an administrator has cordoned; they are not free.
    cordoned_tiles: int = 0
    #: Lengths of the rows of neighbouring free tiles, each inside one RDU, in the daemon's order of allocation.
    free_rows: tuple[int, ...] = ()
    #: A part of it is degraded or broken.
    is_degraded: bool = False
    #: RDUs per XRDU; 0: unknown.
    xrdu_rdus: int = 0
    #: Mask of free tiles: bit ``rdu_tiles * r + t`` for tile t of RDU r; 0: unknown.
    free_mask: int = 0
    #: Jobs, each with the mask of its tiles.
    held: tuple[tuple[str, int], ...] = ()
    #: Planned or current maintenance: begin, end (``None``: open) and mask of tiles (0: all).
    windows: tuple[tuple[float, float | None, int], ...] = ()

    def repaired(self) -> "NodeCapacity":
        """Return the node as if all its tiles were in service."""
        total = self.tiles + self.broken_tiles
        rows = (self.rdu_tiles,) * (total // self.rdu_tiles) if self.rdu_tiles else ()
        return replace(self, tiles=total, broken_tiles=0, rows=rows)


def why_never(tiles: int, node: NodeCapacity, members: int = 1) -> str | None:
    """Explain why this many tiles never fit, even on an empty node; ``None``: they fit. Tiles must be neighbours in an
    RDU, or whole RDUs.

    Several ``members`` have equal parts of the tiles; each part is placed separately.
    """
    total = node.tiles + node.broken_tiles
    broken = f"; {node.broken_tiles} of {total} are out of service" if node.broken_tiles else ""
    if tiles > node.tiles:
        return f"it needs {tiles} tiles, but the node has {node.tiles} healthy ones{broken}"
    if not node.rdu_tiles:
        return None
    if members > 1:
        fit = members_that_fit(tiles // members, node.rdu_tiles, node.rows)
        why = f"it has {members} members of {tiles // members} tiles, but the node has room for {fit} of them{broken}"
        return why if members > fit else None
    if tiles <= node.rdu_tiles:
        longest = max(node.rows, default=0)
        why = f"it needs {tiles} adjacent tiles in an RDU, but the longest healthy row has {longest}{broken}"
        return why if tiles > longest else None
    needed, whole = -(-tiles // node.rdu_tiles), node.rows.count(node.rdu_tiles)
    return f"it needs {needed} whole RDUs, but only {whole} have all their tiles{broken}" if needed > whole else None


def members_that_fit(tiles: int, rdu_tiles: int, rows: Iterable[int]) -> int:
    """Return how many members of ``tiles`` tiles fit into rows, each of which lies inside an RDU."""
    if tiles <= rdu_tiles:
        return sum(row // tiles for row in rows)
    return sum(row == rdu_tiles for row in rows) // -(-tiles // rdu_tiles)


def members_with_room(tiles: int, node: NodeCapacity) -> int:
    """Return how many members of ``tiles`` tiles fit on a node whose healthy tiles are all free."""
    if not node.rdu_tiles:
        return node.tiles // tiles
    return members_that_fit(tiles, node.rdu_tiles, node.rows)


def has_free(tiles: int, node: NodeCapacity) -> bool:
    """Return whether a node has this many free neighbouring tiles, and a place for their application."""
    if node.free_applications < 1 or tiles > node.free_tiles:
        return False
    return not node.rdu_tiles or members_that_fit(tiles, node.rdu_tiles, node.free_rows) > 0


def is_best_here(own: str, tiles: int, nodes: Mapping[str, NodeCapacity]) -> bool:
    """Return whether to wait for tiles on this node: its free tiles suffice, or no other node's do."""
    if own in nodes and has_free(tiles, nodes[own]):
        return True
    return not any(has_free(tiles, node) for name, node in nodes.items() if name != own)


def find_drain(cordons: object, tiles: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the reported cordon that drains any of ``tiles`` until a deadline; ``None``: no cordon does."""
    for row in cordons if isinstance(cordons, list) else ():
        part = str(row.get("component"))
        is_ending = row.get("state") == "draining" and row.get("deadline")
        if is_ending and any(f"{tile}/".startswith(f"{part}/") for tile in tiles):
            return dict(row)
    return None


def is_usable(tile: Mapping[str, object]) -> bool:
    """Return whether a tile of ``status`` can be leased at all."""
    return str(tile.get("health") or "").lower() in USABLE


def node_health(status: Mapping[str, Any]) -> str:
    """Return the node's state of ``RDU_STATES``: that of its RDUs if they agree, ``DEGRADED`` if some work fully."""
    states = {str(rdu.get("state")) for rdu in status.get("rdus") or []}
    if len(states) == 1:
        (state,) = states
        return state
    all_tiles_work = all(is_usable(tile) for tile in status.get("tiles") or [])
    return "FUNCTIONAL" if not states and all_tiles_work else "DEGRADED"


def active_faults(faults: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the active faults, the worst first, then the newest."""
    ranks = {"Critical": 0, "Major": 1, "Minor": 2}
    found = [dict(fault) for fault in faults if fault.get("fault_state") == "ACTIVE"]
    return sorted(
        found, key=lambda fault: (ranks.get(str(fault.get("severity")), 3), -int(fault.get("timestamp") or 0))
    )


def is_free(tile: Mapping[str, object]) -> bool:
    """Return whether a tile of ``status`` can be leased now."""
    return is_usable(tile) and not tile.get("lease") and not tile.get("cordon")


def healthy_rows(
    tiles: Sequence[Mapping[str, Any]], belongs: Callable[[Mapping[str, Any]], bool] = is_usable
) -> tuple[int, ...]:
    """Return the lengths of the rows of neighbouring usable tiles, cut at the borders of RDUs."""
    rows: list[int] = []
    before: tuple[object, object] = (None, None)
    for tile in tiles:
        rdu, number = tile.get("rdu"), tile.get("tile")
        if belongs(tile):
            follows = isinstance(number, int) and before == (rdu, number - 1)
            if follows:
                rows[-1] += 1
            else:
                rows.append(1)
            before = (rdu, number)
    return tuple(rows)


def view_for_scheduler(status: Mapping[str, Any]) -> NodeCapacity:
    """Derive a node's capacity: tiles out of service are neither free nor healthy."""
    tiles: list[Mapping[str, Any]] = list(status.get("tiles") or [])
    usable = [tile for tile in tiles if is_usable(tile)]
    applications = {lease["application"] for lease in status.get("leases") or []}
    limit = int(status.get("max_applications") or len(usable))
    by_rdu: dict[object, int] = {}
    for tile in tiles:
        by_rdu[tile.get("rdu")] = by_rdu.get(tile.get("rdu"), 0) + 1
    return NodeCapacity(
        tiles=len(usable),
        free_tiles=sum(1 for tile in usable if is_free(tile)),
        free_applications=max(limit - len(applications), 0),
        broken_tiles=len(tiles) - len(usable),
        rdu_tiles=max(by_rdu.values(), default=0),
        rows=healthy_rows(tiles),
        cordoned_tiles=sum(1 for tile in usable if tile.get("cordon")),
        free_rows=healthy_rows(tiles, is_free),
        xrdu_rdus=_count_rdus_of_xrdu(tiles),
        **_read_masks(status, tiles, max(by_rdu.values(), default=0)),
        is_degraded=node_health(status) != "FUNCTIONAL" or any(_is_worn(tile) for tile in tiles),
    )


def _count_rdus_of_xrdu(tiles: Sequence[Mapping[str, Any]]) -> int:
    rdus = {str(tile.get("path") or "").rpartition("/")[0] for tile in tiles}
    return max(Counter(rdu.rpartition("/")[0] for rdu in rdus if rdu).values(), default=0)


class _Masks(TypedDict):
    free_mask: int
    held: tuple[tuple[str, int], ...]
    windows: tuple[tuple[float, float | None, int], ...]


def _read_masks(status: Mapping[str, Any], tiles: Sequence[Mapping[str, Any]], rdu_tiles: int) -> _Masks:
    jobs = {lease.get("id"): str(lease["job"]) for lease in status.get("leases") or [] if lease.get("job")}
    places: dict[object, int] = {}
    free, held, bits = 0, dict[str, int](), dict[str, int]()
    following: dict[object, int] = {}
    for tile in tiles:
        rdu = tile.get("rdu")
        first = places.setdefault(rdu, len(places) * rdu_tiles)
        bit = 1 << (first + following.get(rdu, 0))
        following[rdu] = following.get(rdu, 0) + 1
        bits[f"{tile.get('path')}/"] = bit
        if is_free(tile):
            free |= bit
        elif is_usable(tile) and not tile.get("cordon") and (job := jobs.get(tile.get("lease"))) is not None:
            held[job] = held.get(job, 0) | bit
    windows = []
    for window in status.get("windows") or []:
        part = sum(bit for path, bit in bits.items() if path.startswith(f"{window['component']}/"))
        ends_at = window.get("ends_at")
        if part:
            windows.append((float(window["starts_at"]) / 1e9, None if ends_at is None else float(ends_at) / 1e9, part))
    return {"free_mask": free, "held": tuple(held.items()), "windows": tuple(windows)}


def _is_worn(tile: Mapping[str, object]) -> bool:
    return str(tile.get("health") or "online").lower() != "online"


def leased_jobs(status: Mapping[str, Any]) -> frozenset[str]:
    """Return the jobs that hold tiles of a node, by their ids."""
    return frozenset(str(lease["job"]) for lease in status.get("leases") or [] if lease.get("job"))


ANSWER_TIMEOUT_S: Final = 2.0
#: Timeout of a change, which waits for the node's disk.
CHANGE_TIMEOUT_S: Final = 10.0
#: Largest number of active faults shown; the node's own tools show all.
MAX_FAULTS: Final = 200


@dataclass(frozen=True, slots=True)
class NodeLook:
    """Read from a node's daemon: its report for people, its capacity, and the jobs and replicas that held tiles."""

    report: dict[str, Any]
    #: ``None``: the daemon does not answer.
    capacity: NodeCapacity | None = None
    leased: frozenset[str] = frozenset()


def look_at_node(snd_socket: Path, name: str) -> NodeLook:
    """Read a node's tiles, their holders and its faults from its daemon.

    In the report, ``state`` is ``up`` or ``unreachable``, and ``health`` is the node's. An old daemon without faults
    reports none.
    """
    try:
        with SndClient(snd_socket, timeout_s=ANSWER_TIMEOUT_S) as snd:
            hello, status = snd.call("hello"), dict(snd.status())
            knows_faults = "faults" in (hello.get("features") or [])
            faults = snd.call("faults", limit=MAX_FAULTS)["faults"] if knows_faults else []
    except RdukitError as error:
        return NodeLook({"name": name, "state": "unreachable", "error": error.message, "tiles": []})
    status.pop("ok", None)
    report = {
        "name": name,
        "state": "up",
        "version": hello.get("version"),
        **status,
        "health": node_health(status),
        "faults": active_faults(faults),
    }
    return NodeLook(report, view_for_scheduler(status), leased_jobs(status))


def date_start(report: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Replace the uptime in a daemon's report by the time of its start, which does not change."""
    dated = dict(report)
    if (uptime_s := dated.pop("uptime_s", None)) is not None:
        dated["started_at"] = now - float(uptime_s)
    return dated


def count_uptime(dated: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Replace the start time that ``date_start`` wrote by the uptime until now."""
    report = dict(dated)
    if (started_at := report.pop("started_at", None)) is not None:
        report["uptime_s"] = max(round(now - float(started_at), 2), 0.0)
    return report


def answers(snd_socket: Path) -> bool:
    """Return whether a node's daemon answers."""
    try:
        with SndClient(snd_socket, timeout_s=ANSWER_TIMEOUT_S) as snd:
            snd.call("hello")
    except RdukitError:
        return False
    return True


def change_node(snd_socket: Path, operation: str, by: str, arguments: Mapping[str, object]) -> dict[str, Any]:
    """Ask a node's daemon to change its allocation. Returns the daemon's answer.

    Args:
        operation, arguments: of the daemon (``docs/design/node.md``).
        by: the requesting user, for the node's log.
    Raises:
        Unavailable: it does not answer, or its version lacks the operation.
    """
    with SndClient(snd_socket, timeout_s=CHANGE_TIMEOUT_S) as snd:
        hello = snd.call("hello")
        if "maintenance" not in (hello.get("features") or ()):
            raise Unavailable(f"the daemon of node {hello.get('node')} has an earlier version; update and restart it")
        answer = snd.call(operation, **arguments, on_behalf_of=by)
    answer.pop("ok", None)
    return dict(answer)


#: Stands for the leases of others.
OTHERS: Final = "others"

#: Fields of a node's status that tenants see. Other fields have a rule below or are left out.
_SHOWN: Final = (
    "name", "state", "version", "platform", "chip", "node", "memory", "applications", "max_applications", "uptime_s",
    "rdus", "health", "labels", "beat_at", "joined_at",
)  # fmt: skip
#: Message to tenants about an absent node, by its state.
_WHY_AWAY: Final = {"lost": "its heartbeats are missing", "left": "it has left"}
#: Fields of tiles and of faults that tenants see.
_TILE: Final = ("path", "rdu", "tile", "health", "cordon")
_CORDON: Final = ("component", "state", "reason", "since", "deadline")
_WINDOW: Final = ("window", "component", "starts_at", "ends_at", "reason")
_FAULT: Final = (
    "fault_uuid", "fault_type", "fault_state", "severity", "comp_name", "fault_desc", "recovery_act", "timestamp",
)  # fmt: skip


def nodes_for(nodes: Sequence[Mapping[str, Any]], tenant_id: str) -> list[dict[str, Any]]:
    """Reduce the nodes of ``list_nodes`` to the fields that a tenant may see."""
    return [_node_for(node, tenant_id) for node in nodes]


def services_for(services: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the platform's processes without their hosts and process ids."""
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
        shown["error"] = _WHY_AWAY.get(str(node.get("state")), "the node daemon does not answer")
    if "database" in node:
        shown["database"] = {"is_writable": bool((node["database"] or {}).get("is_writable", True))}
    return shown | {
        "tiles": [_tile_for(tile, leases) for tile in node.get("tiles") or []],
        "leases": list(leases.values()),
        "cordons": [{name: row.get(name) for name in _CORDON} for row in node.get("cordons") or []],
        "windows": [{name: row.get(name) for name in _WINDOW} for row in node.get("windows") or []],
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
