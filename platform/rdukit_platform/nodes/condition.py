"""What works on a node and what does not, from what its daemon tells (pure).

``status`` and ``faults`` are the daemon's answers of those names (``docs/design/node.md``).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rdukit_platform.scheduler.decide import NodeView

#: Healths of a tile that may be leased; one that works worse than new still works.
USABLE: Final = frozenset({"online", "degraded", ""})

#: Operational states of an RDU, the worst last.
RDU_STATES: Final = ("FUNCTIONAL", "PENDING", "DEGRADED", "UNAVAILABLE")


def is_usable(tile: Mapping[str, object]) -> bool:
    """Whether a tile of ``status`` can be leased at all."""
    return str(tile.get("health") or "").lower() in USABLE


def node_health(status: Mapping[str, Any]) -> str:
    """The node in one of ``RDU_STATES``: as its RDUs if they agree, ``DEGRADED`` if only some of them work fully."""
    states = {str(rdu.get("state")) for rdu in status.get("rdus") or []}
    if len(states) == 1:
        (state,) = states
        return state
    all_tiles_work = all(is_usable(tile) for tile in status.get("tiles") or [])
    return "FUNCTIONAL" if not states and all_tiles_work else "DEGRADED"


def active_faults(faults: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those that still count, the worst first, then the newest."""
    ranks = {"Critical": 0, "Major": 1, "Minor": 2}
    found = [dict(fault) for fault in faults if fault.get("fault_state") == "ACTIVE"]
    return sorted(
        found, key=lambda fault: (ranks.get(str(fault.get("severity")), 3), -int(fault.get("timestamp") or 0))
    )


def healthy_rows(tiles: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Lengths of the rows of neighbouring usable tiles, a row ending where its RDU does."""
    rows: list[int] = []
    before: tuple[object, object] = (None, None)
    for tile in tiles:
        rdu, number = tile.get("rdu"), tile.get("tile")
        if is_usable(tile):
            follows = isinstance(number, int) and before == (rdu, number - 1)
            if follows:
                rows[-1] += 1
            else:
                rows.append(1)
            before = (rdu, number)
    return tuple(rows)


def view_for_scheduler(status: Mapping[str, Any]) -> NodeView:
    """What the scheduler needs to know of a node: tiles out of service are neither free nor to be waited for."""
    tiles: list[Mapping[str, Any]] = list(status.get("tiles") or [])
    usable = [tile for tile in tiles if is_usable(tile)]
    applications = {lease["application"] for lease in status.get("leases") or []}
    limit = int(status.get("max_applications") or len(usable))
    by_rdu: dict[object, int] = {}
    for tile in tiles:
        by_rdu[tile.get("rdu")] = by_rdu.get(tile.get("rdu"), 0) + 1
    return NodeView(
        tiles=len(usable),
        free_tiles=sum(1 for tile in usable if not tile.get("lease")),
        free_applications=max(limit - len(applications), 0),
        broken_tiles=len(tiles) - len(usable),
        rdu_tiles=max(by_rdu.values(), default=0),
        rows=healthy_rows(tiles),
    )
