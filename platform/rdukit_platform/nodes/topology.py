"""Choice of a node's tiles for a job's members, close together: in one RDU, else on one XRDU, else on few (pure).

Tiles are bits: ``rdu_tiles * r + t`` for tile t of RDU r. The scheduler, which chooses the node, and the worker there,
which leases the tiles, use the same functions, so their choices agree.

Source: ours; RDUs of one XRDU share a module (runtime reference 1.1).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rdukit.hardware import fill_fewest


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Tiles per RDU and RDUs per XRDU of a node; 0 RDUs: unknown, all count as one XRDU."""

    rdu_tiles: int
    xrdu_rdus: int = 0


#: Layout in which all tiles are equivalent.
NO_LAYOUT: Final = NodeLayout(0)


@dataclass(frozen=True, slots=True)
class MemberTiles:
    """Tiles of each member of a job, and the numbers of RDUs and XRDUs of all."""

    masks: tuple[int, ...]
    rdus: int
    xrdus: int

    @property
    def distance(self) -> int:
        """Return the distance of the tiles: 0 in one RDU, else the number of XRDUs."""
        return 0 if self.rdus == 1 else self.xrdus


@lru_cache(maxsize=1 << 14)
def place_members(tiles: int, members: int, free: int, layout: NodeLayout) -> MemberTiles | None:
    """Choose free tiles for members of ``tiles`` each; ``None``: not all of them fit.

    A member gets a row inside an RDU, or whole RDUs if it needs more. A single row is the first that fits, as in the
    daemon. Otherwise one RDU is chosen if it suffices, else one XRDU, else as few as possible; among several the
    fullest, then the lowest.
    """
    width, rdus = layout.rdu_tiles, -(-free.bit_length() // layout.rdu_tiles)
    unit, each = min(tiles, width), -(-tiles // width)
    rows = [_rows_of(free >> rdu * width & (1 << width) - 1, unit) for rdu in range(rdus)]
    needed = each * members
    if needed == 1:
        chosen = [(next((rdu for rdu, found in enumerate(rows) if found), -1), 1)] if any(rows) else None
    else:
        chosen = _fill_near([len(found) for found in rows], needed, layout.xrdu_rdus or max(rdus, 1))
    if chosen is None:
        return None
    units = [row << rdu * width for rdu, number in chosen for row in rows[rdu][:number]]
    masks = tuple(sum(units[first : first + each]) for first in range(0, needed, each))
    xrdus = {rdu // layout.xrdu_rdus for rdu, _ in chosen} if layout.xrdu_rdus else {0}
    return MemberTiles(masks, len(chosen), len(xrdus))


def _rows_of(free: int, tiles: int) -> list[int]:
    """Return all disjoint rows of ``tiles`` neighbouring free tiles in an RDU, or of whole RDUs."""
    row, found, shift = (1 << tiles) - 1, [], 0
    while free >> shift:
        if free >> shift & row == row:
            found.append(row << shift)
            shift += tiles
        else:
            shift += 1
    return found


def _fill_near(counts: Sequence[int], needed: int, xrdu_rdus: int) -> list[tuple[int, int]] | None:
    """Choose RDUs for the needed rows, each with the number of rows that it gets."""
    if max(counts, default=0) >= needed:
        return fill_fewest(counts, needed)
    groups = [counts[first : first + xrdu_rdus] for first in range(0, len(counts), xrdu_rdus)]
    chosen = fill_fewest([sum(group) for group in groups], needed)
    if chosen is None:
        return None
    return [
        (xrdu * xrdu_rdus + rdu, number)
        for xrdu, share in chosen
        for rdu, number in fill_fewest(groups[xrdu], share) or ()
    ]


def name_counts(paths: Iterable[str]) -> str:
    """Describe tiles by their paths: ``16 tiles, 2 RDUs of 1 XRDU``."""
    tiles = set(paths)
    rdus = {path.rpartition("/")[0] for path in tiles}
    xrdus = {rdu.rpartition("/")[0] for rdu in rdus}
    return f"{_count(tiles, 'tile')}, {_count(rdus, 'RDU')} of {_count(xrdus, 'XRDU')}"


def _count(parts: Collection[str], name: str) -> str:
    return f"{len(parts)} {name}{'' if len(parts) == 1 else 's'}"
