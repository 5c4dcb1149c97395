"""The tiles of a node as a coloured picture: one colour per tenant and application (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rdukit.units import format_bytes
from rdukit_platform.nodes.condition import is_usable

#: Colours that the style sheet has; holders beyond them share.
COLOURS: Final = 8

#: Healths that a tile may have besides ``Online``, in lower case: class of the style sheet, and what it means.
MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "degraded": ("worn", "works, with a fault"),
    "excluded": ("bad", "taken out of service after a fault"),
    "unavailable": ("gone", "its RDU does not work"),
    "offline": ("dark", "not there, or without power"),
}
#: Colour of each operational state of an RDU: a class of the style sheet.
STATE_TONES: Final = {"FUNCTIONAL": "good", "PENDING": "wait", "DEGRADED": "warn", "UNAVAILABLE": "bad"}


@dataclass(frozen=True, slots=True)
class TileView:
    """One square. ``style`` is free or c0 … c7, or a class of ``MARKS``; worn goes with one of the former."""

    number: str
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class RduView:
    """A chip and its tiles. ``state`` is empty while all is well, or if the daemon does not tell."""

    name: str
    tiles: tuple[TileView, ...]
    state: str = ""
    tone: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """How many tiles have a health other than ``Online``: a line of the legend."""

    style: str
    health: str
    meaning: str
    tiles: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds tiles: a line of the legend."""

    style: str
    tenant: str
    application: str
    job: str | None
    tiles: int
    memory: str


@dataclass(frozen=True, slots=True)
class NodeView:
    """The picture of one node. XRDUs are in order, each with its RDUs."""

    xrdus: tuple[tuple[str, tuple[RduView, ...]], ...]
    holders: tuple[Holder, ...]
    marks: tuple[Mark, ...]
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
) -> NodeView:
    """Lay out the tiles by their paths, give each holder a colour and each tile that is not well a mark.

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
    return NodeView(
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
    if health == "Online":
        return TileView(number, style, f"{path}: {who}")
    mark, meaning = _mark(health)
    if is_usable(tile):
        return TileView(number, f"{style} {mark}", f"{path}: {who}; {health}: {meaning}")
    still = f"; still held by {who}" if lease else ""
    return TileView(number, mark, f"{path}: {health}, {meaning}{still}")


def _draw_rdu(name: str, squares: Sequence[TileView], row: Mapping[str, Any]) -> RduView:
    state = str(row.get("state") or "")
    if state in {"", "FUNCTIONAL"}:
        return RduView(_spoken(name), tuple(squares))
    return RduView(
        _spoken(name), tuple(squares), state, STATE_TONES.get(state, "bad"), str(row.get("reason") or "no reason given")
    )


def _health(tile: Mapping[str, Any]) -> str:
    return str(tile.get("health") or "Online")


def _mark(health: str) -> tuple[str, str]:
    return MARKS.get(health.lower(), ("bad", "not in service"))


def _count_marks(tiles: Sequence[Mapping[str, Any]]) -> tuple[Mark, ...]:
    counts: dict[str, int] = {}
    for tile in tiles:
        if (health := _health(tile)) != "Online":
            counts[health] = counts.get(health, 0) + 1
    return tuple(Mark(_mark(health)[0], health, _mark(health)[1], count) for health, count in counts.items())


def _draw_holder(lease: str, leases: Mapping[str, Mapping[str, Any]], styles: Mapping[str, str], tiles: int) -> Holder:
    value = leases.get(lease, {})
    return Holder(
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
