"""Which tiles of a node the members of a job get, near each other: in one RDU, else on one XRDU, else on few (pure).

Tiles are bits: ``rdu_tiles * r + t`` for tile t of RDU r. The scheduler, which says on which node a job runs, and the
worker there, which leases the tiles, go by the same functions, so that the one foresees what the other does.

Source: ours; RDUs of one XRDU share a module (runtime reference 1.1).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from rdukit.hardware import fill_fewest


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Tiles of an RDU of a node, and RDUs of an XRDU; 0 RDUs: that is not known, and all are one."""

    rdu_tiles: int
    xrdu_rdus: int = 0


#: Any tiles are as good as others.
NO_LAYOUT: Final = NodeLayout(0)


@dataclass(frozen=True, slots=True)
class MemberTiles:
    """Tiles of each member of a job, and how many RDUs and XRDUs all are on."""

    masks: tuple[int, ...]
    rdus: int
    xrdus: int

    @property
    def distance(self) -> int:
        """Return how far apart they are: 0 in one RDU, else the number of XRDUs."""
        return 0 if self.rdus == 1 else self.xrdus


@lru_cache(maxsize=1 << 14)
def place_members(tiles: int, members: int, free: int, layout: NodeLayout) -> MemberTiles | None:
    """Choose tiles for members of ``tiles`` each, from those that are free; ``None``: not all have room.

    A member has a row inside an RDU, or of more tiles whole RDUs. A single row is the first one, as the daemon gives
    it. Otherwise one RDU is chosen if it suffices, else one XRDU, else as few as can be; of several the one that is
    filled best, and the lowest.
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
    """Return rows of so many tiles side by side in an RDU, as many as there are."""
    row, found, shift = (1 << tiles) - 1, [], 0
    while free >> shift:
        if free >> shift & row == row:
            found.append(row << shift)
            shift += tiles
        else:
            shift += 1
    return found


def _fill_near(counts: Sequence[int], needed: int, xrdu_rdus: int) -> list[tuple[int, int]] | None:
    """Choose RDUs for so many rows: each with how many it gets."""
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
    """Say how near each other tiles are by their paths: ``16 tiles, 2 RDUs of 1 XRDU``."""
    tiles = set(paths)
    rdus = {path.rpartition("/")[0] for path in tiles}
    xrdus = {rdu.rpartition("/")[0] for rdu in rdus}
    return f"{_count(tiles, 'tile')}, {_count(rdus, 'RDU')} of {_count(xrdus, 'XRDU')}"


def _count(parts: Collection[str], name: str) -> str:
    return f"{len(parts)} {name}{'' if len(parts) == 1 else 's'}"
