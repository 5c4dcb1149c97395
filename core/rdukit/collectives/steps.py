"""Collective algorithms as steps: which rank sends which share of the bytes to whom. Pure.

Times (``formulas.py``), the event model and traces (``events.py``) are all derived from these steps. Shares are of the
bytes of the complete vector, also for reduce-scatter, allgather and broadcast.

Source: distributed reference 2.1. Textbooks assume a power of two of ranks; here two additional steps fold the other
ranks in and out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Final

from rdukit.collectives.topology import Tier, Wiring

#: Maps a rank to the ranks that it sends to in a step.
Partners = Callable[[int], Sequence[int]]


class Op(StrEnum):
    """Operations that are planned."""

    ALLREDUCE = "allreduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"


class CollectiveAlgorithm(StrEnum):
    """Algorithms that are compared."""

    RING = "ring"
    BIDIRECTIONAL_RINGS = "bidirectional-rings"
    ALL_TO_ALL = "all-to-all"
    RECURSIVE_DOUBLING = "recursive-doubling"
    HALVING_DOUBLING = "halving-doubling"
    HIERARCHICAL_SHARDED = "hierarchical-sharded"
    HIERARCHICAL_LEADER = "hierarchical-leader"
    TREE = "binomial-tree"


#: One-line description of each algorithm.
ABOUT: Final = {
    CollectiveAlgorithm.RING: "one ring, one direction",
    CollectiveAlgorithm.BIDIRECTIONAL_RINGS: "rings in both directions, each on its own links",
    CollectiveAlgorithm.ALL_TO_ALL: "every pair of ranks exchanges directly",
    CollectiveAlgorithm.RECURSIVE_DOUBLING: "pairs exchange all bytes; the distance doubles at each step",
    CollectiveAlgorithm.HALVING_DOUBLING: "pairs exchange halves, then quarters and so on, and gather them again",
    CollectiveAlgorithm.HIERARCHICAL_SHARDED: "a ring in each level; outer levels exchange shards",
    CollectiveAlgorithm.HIERARCHICAL_LEADER: "a ring in each level; outer levels connect leaders",
    CollectiveAlgorithm.TREE: "the number of ranks that have the bytes doubles at each step",
}


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """``count`` equal successive steps. A message carries ``share`` of the bytes; the receiver adds ``adds`` of them.

    ``is_even``: ranks of all outermost units do the same, so counting the messages of one unit suffices.
    """

    count: int
    share: float
    adds: float
    partners: Partners
    is_even: bool = True
    is_ring: bool = False
    #: Each rank sends to the rank at this distance after it; 0: partners follow another rule. Only if ``is_even``.
    shift: int = 0


class NotApplicable(Exception):
    """An algorithm does not fit operation, ranks or machine; the message has the reason."""


def steps_of(algorithm: CollectiveAlgorithm, op: Op, used: Sequence[Tier], ranks: int) -> list[CollectiveStep]:
    """Return the steps of an algorithm among ``ranks`` ranks (two or more) on the levels ``used``.

    Raises:
        NotApplicable: the algorithm does not exist for this operation, these ranks or this machine.
    """
    if op is Op.BROADCAST:
        return _broadcast(algorithm, used, ranks)
    halves = {Op.ALLREDUCE: (1, 1), Op.REDUCE_SCATTER: (1, 0), Op.ALLGATHER: (0, 1)}[op]
    is_even = ranks % used[-1].r == 0
    match algorithm:
        case CollectiveAlgorithm.RING:
            return _both(
                halves, [CollectiveStep(ranks - 1, 1 / ranks, 1 / ranks, _successor(used, ranks), is_even, True)]
            )
        case CollectiveAlgorithm.BIDIRECTIONAL_RINGS:
            return _both(halves, [_bidirectional(used, ranks, is_even)])
        case CollectiveAlgorithm.ALL_TO_ALL:
            return _both(halves, list(_all_to_all(used, ranks)))
        case CollectiveAlgorithm.RECURSIVE_DOUBLING:
            if op is not Op.ALLREDUCE:
                raise NotApplicable("this shape is for allreduce; use halving-doubling for operations on shares")
            return _folded(ranks, [(1.0, 1.0, distance) for distance in _distances(ranks)])
        case CollectiveAlgorithm.HALVING_DOUBLING:
            return _halving_doubling(op, ranks, halves)
        case CollectiveAlgorithm.HIERARCHICAL_SHARDED:
            _require_levels(used, ranks)
            return _both(halves, [_shards(used, place) for place in range(len(used))])
        case CollectiveAlgorithm.HIERARCHICAL_LEADER:
            if op is not Op.ALLREDUCE:
                raise NotApplicable("leaders end with all bytes, but the operation needs shares")
            _require_levels(used, ranks)
            return [*_leaders(used), *_broadcast_levels(used[:-1])]
        case CollectiveAlgorithm.TREE:
            raise NotApplicable("it is a broadcast")


def _both(halves: tuple[int, int], scatter: list[CollectiveStep]) -> list[CollectiveStep]:
    """Return the reduce-scatter, the mirrored allgather, or both in succession."""
    gather = [replace(s, adds=0.0) for s in reversed(scatter)]
    return [*scatter * halves[0], *gather * halves[1]]


def _successor(used: Sequence[Tier], ranks: int) -> Partners:
    """Return a function from a rank to its successor in the ring that visits the units of each level in order."""
    if all(tier.order == tuple(range(tier.n)) for tier in used):
        return lambda rank: ((rank + 1) % ranks,)
    following = ring_order(used, ranks)
    after = dict(zip(following, [*following[1:], following[0]], strict=True))
    return lambda rank: (after[rank],)


def ring_order(used: Sequence[Tier], ranks: int) -> list[int]:
    """Return the ranks in the order in which a ring visits them."""
    places = [{child: place for place, child in enumerate(tier.order)} for tier in used]
    levels = list(zip(used, places, strict=True))

    def key(rank: int) -> tuple[int, ...]:
        return tuple(place[rank // tier.r % tier.level.size] for tier, place in reversed(levels))

    return sorted(range(ranks), key=key)


def _bidirectional(used: Sequence[Tier], ranks: int, is_even: bool) -> CollectiveStep:
    if any(tier.broken and not tier.is_ring_whole for tier in used):
        raise NotApplicable("no ring works in both directions, because a link is broken")
    rings = min(tier.ports for tier in used)
    following = ring_order(used, ranks)
    place = {rank: index for index, rank in enumerate(following)}

    def partners(rank: int) -> tuple[int, ...]:
        after, before = following[(place[rank] + 1) % ranks], following[place[rank] - 1]
        return (after,) * rings + (before,) * rings

    return CollectiveStep(ranks - 1, 1 / (2 * rings * ranks), 1 / ranks, partners, is_even, True)


def rings_of(used: Sequence[Tier]) -> int:
    """Return the number of rings in each direction with separate links."""
    return min(tier.ports for tier in used)


def _all_to_all(used: Sequence[Tier], ranks: int) -> Iterator[CollectiveStep]:
    if ranks % used[-1].r:
        raise NotApplicable(f"{ranks} ranks leave a unit of the outermost level partly empty")
    if all(tier.level.wiring is Wiring.MESH for tier in used):
        yield CollectiveStep(1, 1 / ranks, (ranks - 1) / ranks, lambda rank: [r for r in range(ranks) if r != rank])
        return
    for distance in range(1, ranks):
        yield CollectiveStep(1, 1 / ranks, 1 / ranks, _after(distance, ranks), shift=distance)


def _after(distance: int, ranks: int) -> Partners:
    return lambda rank: ((rank + distance) % ranks,)


def _distances(ranks: int) -> list[int]:
    """Return 1, 2, 4, ... below the largest power of two that is at most ``ranks``."""
    return [1 << bit for bit in range(ranks.bit_length() - 1)]


def _halving_doubling(op: Op, ranks: int, halves: tuple[int, int]) -> list[CollectiveStep]:
    distances = _distances(ranks)
    if op is not Op.ALLREDUCE and ranks != 1 << len(distances):
        raise NotApplicable(f"{ranks} ranks are not a power of two, so shares would differ")
    # Near ranks exchange the large halves: the first step is between neighbours.
    down = [(0.5 ** (n + 1), 0.5 ** (n + 1), distance) for n, distance in enumerate(distances)]
    up = [(share, 0.0, distance) for share, _, distance in reversed(down)]
    return _folded(ranks, [*down * halves[0], *up * halves[1]])


def _folded(ranks: int, exchanges: Sequence[tuple[float, float, int]]) -> list[CollectiveStep]:
    """Return exchanges (share, adds, distance) among a power of two of the ranks, with the others folded in and out."""
    power = 1 << (ranks.bit_length() - 1)
    rest = ranks - power

    def rank_of(folded: int) -> int:
        return 2 * folded if folded < rest else folded + rest

    def folded_of(rank: int) -> int | None:
        if rank < 2 * rest:
            return None if rank % 2 else rank // 2
        return rank - rest

    def at(distance: int) -> Partners:
        def partners(rank: int) -> tuple[int, ...]:
            folded = folded_of(rank)
            return () if folded is None else (rank_of(folded ^ distance),)

        return partners

    steps = [CollectiveStep(1, share, adds, at(distance), not rest) for share, adds, distance in exchanges]
    if not rest:
        return steps
    into = CollectiveStep(1, 1.0, 1.0, lambda rank: (rank - 1,) if rank < 2 * rest and rank % 2 else (), False)
    out = CollectiveStep(1, 1.0, 0.0, lambda rank: (rank + 1,) if rank < 2 * rest and not rank % 2 else (), False)
    return [into, *steps, out]


def _require_levels(used: Sequence[Tier], ranks: int) -> None:
    if len(used) < 2:
        raise NotApplicable("all ranks are on one level of links")
    if ranks % used[-1].r:
        raise NotApplicable(f"{ranks} ranks leave a unit of the outermost level partly empty")


def _next_child(tier: Tier, leaders_only: bool) -> Partners:
    places = {child: place for place, child in enumerate(tier.order)}

    def partners(rank: int) -> tuple[int, ...]:
        if leaders_only and rank % tier.r:
            return ()
        child = rank // tier.r % tier.level.size
        return (rank + (tier.order[(places[child] + 1) % tier.n] - child) * tier.r,)

    return partners


def _shards(used: Sequence[Tier], place: int) -> CollectiveStep:
    tier = used[place]
    share = 1 / prod(each.n for each in used[: place + 1])
    return CollectiveStep(tier.n - 1, share, share, _next_child(tier, leaders_only=False), True, True)


def _leaders(used: Sequence[Tier]) -> Iterator[CollectiveStep]:
    for tier in used:
        partners = _next_child(tier, leaders_only=True)
        yield CollectiveStep(tier.n - 1, 1 / tier.n, 1 / tier.n, partners, True, True)
        yield CollectiveStep(tier.n - 1, 1 / tier.n, 0.0, partners, True, True)


def _broadcast_levels(used: Sequence[Tier]) -> Iterator[CollectiveStep]:
    """Broadcast from the first rank of each unit, the outermost level first."""
    for tier in reversed(used):
        for bit in range((tier.n - 1).bit_length()):
            yield CollectiveStep(1, 1.0, 0.0, _tree_children(tier.r, tier.n, tier.level.size, 1 << bit))


def _tree_children(r: int, n: int, size: int, distance: int) -> Partners:
    def partners(rank: int) -> tuple[int, ...]:
        child = rank // r % size
        is_sender = not rank % r and child < distance and child + distance < n
        return (rank + distance * r,) if is_sender else ()

    return partners


def _broadcast(algorithm: CollectiveAlgorithm, used: Sequence[Tier], ranks: int) -> list[CollectiveStep]:
    """Return the steps of a broadcast from rank 0; a scatter before it uses a binomial tree."""
    if algorithm is CollectiveAlgorithm.TREE:
        return [
            CollectiveStep(1, 1.0, 0.0, _tree_children(1, ranks, ranks, 1 << bit), False)
            for bit in range((ranks - 1).bit_length())
        ]
    if algorithm is CollectiveAlgorithm.HIERARCHICAL_LEADER:
        _require_levels(used, ranks)
        return list(_broadcast_levels(used))
    if algorithm is CollectiveAlgorithm.RING:
        if ranks & (ranks - 1):
            raise NotApplicable(f"{ranks} ranks are not a power of two, so the scatter before the ring would be uneven")
        scatter = [
            CollectiveStep(1, 0.5 ** (n + 1), 0.0, _halves(ranks >> n), False) for n in range(ranks.bit_length() - 1)
        ]
        return [*scatter, *steps_of(CollectiveAlgorithm.RING, Op.ALLGATHER, used, ranks)]
    raise NotApplicable("this algorithm has no broadcast")


def _halves(span: int) -> Partners:
    return lambda rank: () if rank % span else (rank + span // 2,)
