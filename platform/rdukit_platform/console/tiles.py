"""The tiles of a node as a coloured picture: one colour per tenant and application (pure)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rdukit.units import format_bytes

#: Colours that the style sheet has; holders beyond them share.
COLOURS: Final = 8


@dataclass(frozen=True, slots=True)
class TileView:
    """One square. ``style`` is a class of the style sheet: free, bad or c0 … c7."""

    number: str
    style: str
    title: str


@dataclass(frozen=True, slots=True)
class RduView:
    """A chip and its tiles."""

    name: str
    tiles: tuple[TileView, ...]


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
    tiles_total: int
    tiles_used: int
    memory_total: int
    memory_used: int
    memory_text: str


def draw_node(
    tiles: Sequence[Mapping[str, Any]], leases: Sequence[Mapping[str, Any]], memory: Mapping[str, Any]
) -> NodeView:
    """Lay out the tiles by their paths and give each holder a colour.

    Args:
        tiles, leases, memory: as in the node daemon's ``status`` (``docs/design/wire.md`` section 1).
    """
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
            (_spoken(xrdu), tuple(RduView(_spoken(rdu), tuple(squares)) for rdu, squares in rdus.items()))
            for xrdu, rdus in grouped.items()
        ),
        holders=tuple(_draw_holder(lease, by_id, styles, count) for lease, count in held.items()),
        tiles_total=len(tiles),
        tiles_used=sum(held.values()),
        memory_total=total,
        memory_used=used,
        memory_text=f"{format_bytes(used)} of {format_bytes(total)}",
    )


def _draw_tile(
    tile: Mapping[str, Any], leases: Mapping[str, Mapping[str, Any]], styles: Mapping[str, str], number: str
) -> TileView:
    path, health = str(tile["path"]), str(tile.get("health") or "Online")
    if health.lower() not in {"online", "ok"}:
        return TileView(number, "bad", f"{path}: {health}")
    lease = str(tile.get("lease") or "")
    if not lease:
        return TileView(number, "free", f"{path}: free")
    holder = leases.get(lease, {})
    who = holder.get("tenant") or "no tenant"
    return TileView(number, styles[lease], f"{path}: {tile.get('application') or lease} ({who})")


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
