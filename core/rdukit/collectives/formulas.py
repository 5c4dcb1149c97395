"""Time of a collective in closed form: latency, bandwidth and additions of each kind of step. Pure.

A message of b bytes over a link takes ``latency + b / bandwidth``, and the receiver then adds. If several messages of a
step share the links between two units, they share the bandwidth; a single message uses one link. A step takes as long
as its slowest level. On a machine of one level these are the textbook's formulas.

Source: distributed reference 2.1.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rdukit.collectives.steps import CollectiveAlgorithm, CollectiveStep, Op, steps_of
from rdukit.collectives.topology import Machine, Tier, Wiring, tiers


@dataclass(frozen=True, slots=True)
class Hop:
    """The slowest message of a step over one level. ``messages`` share ``ports`` links; ``share``: its part of the
    bytes.
    """

    level: str
    latency_s: float
    seconds_per_byte: float
    messages: int
    ports: int


@dataclass(frozen=True, slots=True)
class CollectiveStage:
    """``count`` equal steps; the time of one is that of its slowest hop and its addition."""

    count: int
    share: float
    adds: float
    hops: tuple[Hop, ...]

    def slowest(self, size: float) -> Hop:
        """Return the slowest hop for a vector of ``size`` bytes."""
        return max(self.hops, key=lambda hop: hop.latency_s + hop.seconds_per_byte * self.share * size)


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds of a collective by cause."""

    latency_s: float
    bandwidth_s: float
    add_s: float

    @property
    def seconds(self) -> float:
        """Sum of the terms, which do not overlap."""
        return self.latency_s + self.bandwidth_s + self.add_s


@dataclass(frozen=True, slots=True)
class Formula:
    """Closed form of an algorithm for some ranks of a machine, as a function of the bytes."""

    algorithm: CollectiveAlgorithm
    stages: tuple[CollectiveStage, ...]
    add_s_per_byte: float

    def terms(self, size: float) -> Terms:
        """Return the terms for a vector of ``size`` bytes."""
        latency = bandwidth = add = 0.0
        for stage in self.stages:
            hop = stage.slowest(size)
            latency += stage.count * hop.latency_s
            bandwidth += stage.count * hop.seconds_per_byte * stage.share * size
            add += stage.count * stage.adds * size * self.add_s_per_byte
        return Terms(latency, bandwidth, add)

    def traffic(self, size: float) -> dict[str, float]:
        """Return the bytes over the busiest link bundle (pair or unit) of each level, one direction."""
        found: Counter[str] = Counter()
        for stage in self.stages:
            for hop in stage.hops:
                found[hop.level] += stage.count * stage.share * size * hop.messages  # type: ignore[assignment]
        return dict(found)


def find_formula(algorithm: CollectiveAlgorithm, op: Op, machine: Machine, ranks: int) -> Formula:
    """Return an algorithm's closed form among ``ranks`` ranks (two or more) of ``machine``.

    With broken links it is an upper bound: each step of their level takes the detour, unless the ring avoids them.

    Raises:
        InvalidArgument: the ranks do not fit the machine, or are cut off.
        NotApplicable: the algorithm does not fit.
    """
    used = tiers(machine, ranks)
    stages: dict[tuple[float, float, tuple[Hop, ...]], int] = {}  # equal steps are one stage
    shifts: dict[int, tuple[Hop, ...]] = {}  # a distance forwards and the same distance backwards cross the same links
    for step in steps_of(algorithm, op, used, ranks):
        near = min(step.shift, ranks - step.shift)
        hops = shifts.get(near) or tuple(_hops(step, used, ranks))
        if near:
            shifts[near] = hops
        key = (step.share, step.adds, hops)
        stages[key] = stages.get(key, 0) + step.count
    made = tuple(CollectiveStage(count, *key) for key, count in stages.items())
    return Formula(algorithm, made, 1 / machine.add_bandwidth)


def _hops(step: CollectiveStep, used: Sequence[Tier], ranks: int) -> Iterator[Hop]:
    """Return the slowest message of each level that a step crosses."""
    messages = count_messages(step, used, ranks)
    detoured = Counter[int]()
    for place, tier in enumerate(used):
        if messages[place] and is_detoured(tier, step) and tier.n == 2:
            detoured[place + 1] += 2 * messages[place]  # a detour over the next outer level
    for place, tier in enumerate(used):
        count, level = messages[place] + detoured[place], tier.level
        if not count:
            continue
        hops = 2 if detoured[place] else 1
        if is_detoured(tier, step):
            if tier.n == 2:
                continue
            count, hops = 2 * count, 2 * hops
        per_byte = max(1.0, count / tier.ports) / level.bandwidth
        yield Hop(level.name, hops * level.latency_s, per_byte, count, tier.ports)


def is_detoured(tier: Tier, step: CollectiveStep) -> bool:
    """Return whether messages of a step may meet a broken link of a level and need a detour."""
    return bool(tier.broken) and not (step.is_ring and tier.is_ring_whole)


def count_messages(step: CollectiveStep, used: Sequence[Tier], ranks: int) -> list[int]:
    """Count the messages of one step that share links, by level: the most at one unit (switch) or pair (mesh)."""
    if step.shift:
        return [max(shifted(t, step.shift, ranks), shifted(t, ranks - step.shift, ranks)) for t in used]
    counts = [Counter[tuple[int, ...]]() for _ in used]
    for rank in range(used[-1].r if step.is_even else ranks):
        for target in step.partners(rank):
            place = crossed(used, rank, target)
            tier = used[place]
            a, b = rank // tier.r, target // tier.r
            if tier.level.wiring is Wiring.MESH:
                counts[place][a, b] += 1
            else:
                counts[place][0, a] += 1
                if not step.is_even:  # otherwise as many arrive as leave
                    counts[place][1, b] += 1
    return [max(each.values(), default=0) for each in counts]


def shifted(tier: Tier, distance: int, ranks: int) -> int:
    """Count the messages that share links of a level when each rank sends to the one ``distance`` after it.

    In a unit of r ranks, r - d % r send to the unit d // r after it, and the others to the one after that.
    """
    whole, part = divmod(distance, tier.r)
    is_closed = tier.r * tier.n >= ranks
    counts = [
        count
        for further, count in ((whole, tier.r - part), (whole + 1, part))
        if (further % tier.n if is_closed else 0 < further < tier.n)
    ]
    return (max if tier.level.wiring is Wiring.MESH else sum)([0, *counts])


def crossed(used: Sequence[Tier], rank: int, target: int) -> int:
    """Return the position in ``used`` of the level that a message crosses: the outermost at which the ranks differ."""
    for place in range(len(used) - 1, -1, -1):
        if rank // used[place].r != target // used[place].r:
            return place
    raise ValueError(f"rank {rank} sends to itself")
