"""Placement of a request for tiles and memory, or the largest one that would fit. Pure search; nothing is changed.

A request that fits inside one RDU gets contiguous tiles there, first fit from RDU 0 upward. A larger request gets
complete RDUs on as few XRDUs as possible, and its memory is spread evenly.

Source: runtime reference 3.2 (contiguous inside an RDU, first fit, the affinity mask's layout on SN10); complete RDUs
for larger requests, their choice, and the mask on other chips (one bit a tile in flat order) are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rdukit.hardware import NodeSpec, fill_fewest


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """Free tiles by flat tile number, and free bytes by flat RDU number."""

    tile_is_free: Sequence[bool]
    memory_free: Sequence[int]


@dataclass(frozen=True, slots=True)
class Placement:
    """Flat tile numbers, ascending, and ``(flat RDU number, bytes)`` of memory; only RDUs that the tiles are on."""

    tiles: tuple[int, ...]
    memory: tuple[tuple[int, int], ...]


def whole_capacity(node: NodeSpec) -> FreeCapacity:
    """Return the capacity of an idle node."""
    return FreeCapacity([True] * node.tiles, [node.chip.ddr_bytes] * node.rdus)


def find_placement(
    node: NodeSpec, tiles: int, memory_bytes: int, room: FreeCapacity, affinity: int | None = None
) -> Placement | None:
    """Return the first fit; ``None``: there is none. With ``affinity``, only tiles whose bit is set in the mask."""
    allowed = [
        free and (affinity is None or affinity >> index & 1 == 1) for index, free in enumerate(room.tile_is_free)
    ]
    if tiles <= node.chip.tiles:
        return _find_inside_one_rdu(node, tiles, memory_bytes, allowed, room.memory_free)
    return _find_whole_rdus(node, -(-tiles // node.chip.tiles), memory_bytes, allowed, room.memory_free)


def max_tiles(node: NodeSpec, below: int, memory_bytes: int, room: FreeCapacity, affinity: int | None = None) -> int:
    """Return the largest number of tiles under ``below`` that fits with this memory; 0 if not even one does."""
    for tiles in range(min(below - 1, node.tiles), 0, -1):
        if find_placement(node, tiles, memory_bytes, room, affinity) is not None:
            return tiles
    return 0


def max_memory(node: NodeSpec, tiles: int, room: FreeCapacity, affinity: int | None = None) -> int | None:
    """Return the maximum bytes that fit with this number of tiles; ``None``: the tiles themselves do not fit."""
    if find_placement(node, tiles, 0, room, affinity) is None:
        return None
    low, high = 0, sum(room.memory_free)
    while low < high:
        middle = (low + high + 1) // 2
        if find_placement(node, tiles, middle, room, affinity) is not None:
            low = middle
        else:
            high = middle - 1
    return low


def longest_run(node: NodeSpec, room: FreeCapacity) -> int:
    """Return the maximum number of contiguous free tiles in one RDU."""
    best = 0
    for rdu in range(node.rdus):
        run = 0
        for index in _tiles_of(node, rdu):
            run = run + 1 if room.tile_is_free[index] else 0
            best = max(best, run)
    return best


def _tiles_of(node: NodeSpec, rdu: int) -> range:
    return range(rdu * node.chip.tiles, (rdu + 1) * node.chip.tiles)


def _find_inside_one_rdu(
    node: NodeSpec, tiles: int, memory_bytes: int, allowed: Sequence[bool], memory_free: Sequence[int]
) -> Placement | None:
    for rdu in range(node.rdus):
        if memory_free[rdu] < memory_bytes:
            continue
        run = 0
        for index in _tiles_of(node, rdu):
            run = run + 1 if allowed[index] else 0
            if run == tiles:
                return Placement(tuple(range(index - tiles + 1, index + 1)), ((rdu, memory_bytes),))
    return None


def _find_whole_rdus(
    node: NodeSpec, count: int, memory_bytes: int, allowed: Sequence[bool], memory_free: Sequence[int]
) -> Placement | None:
    share, rest = divmod(memory_bytes, count)
    needed = share + (1 if rest else 0)
    free: list[list[int]] = [[] for _ in range(node.xrdus)]
    for rdu in range(node.rdus):
        if memory_free[rdu] >= needed and all(allowed[index] for index in _tiles_of(node, rdu)):
            free[rdu // node.rdus_per_xrdu].append(rdu)
    taken = fill_fewest([len(rdus) for rdus in free], count)
    if taken is None:
        return None
    chosen = sorted(rdu for xrdu, number in taken for rdu in free[xrdu][:number])
    tiles = tuple(index for rdu in chosen for index in _tiles_of(node, rdu))
    return Placement(tiles, tuple((rdu, share + (1 if i < rest else 0)) for i, rdu in enumerate(chosen)))
