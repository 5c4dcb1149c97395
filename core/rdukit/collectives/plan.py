"""Choice of a collective's algorithm by operation, bytes, ranks and machine, with reasons. Pure.

Source: ours; methods as in distributed reference 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Final

from rdukit.collectives.formulas import Formula, Terms, find_formula
from rdukit.collectives.steps import ABOUT, CollectiveAlgorithm, NotApplicable, Op, rings_of
from rdukit.collectives.topology import Machine, Tier, tiers
from rdukit.errors import InvalidArgument
from rdukit.units import format_seconds

#: Sizes between which crossovers are searched, in bytes.
SMALLEST: Final = 64
LARGEST: Final = 1 << 40
#: Times that differ by less are equal; the algorithm that is listed first wins.
_EQUAL: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm with its terms, or the reason why it does not fit."""

    algorithm: CollectiveAlgorithm
    terms: Terms | None
    why_not: str = ""

    @property
    def seconds(self) -> float:
        """Projected seconds; infinite if it does not fit."""
        return inf if self.terms is None else self.terms.seconds


@dataclass(frozen=True, slots=True)
class Crossover:
    """From ``size`` bytes on ``algorithm`` is the fastest."""

    size: int
    algorithm: CollectiveAlgorithm


@dataclass(frozen=True, slots=True)
class CollectivePlan:
    """Chosen algorithm and why. ``traffic``: bytes over the busiest link bundle of each level, one direction."""

    op: Op
    machine: Machine
    ranks: int
    size: int
    candidates: tuple[Candidate, ...]
    chosen: CollectiveAlgorithm | None
    why: str
    crossovers: tuple[Crossover, ...]
    traffic: dict[str, float]
    notes: tuple[str, ...]

    @property
    def terms(self) -> Terms:
        """Terms of the chosen algorithm; zeros for one rank."""
        found = next((c.terms for c in self.candidates if c.algorithm is self.chosen), None)
        return found or Terms(0.0, 0.0, 0.0)


def plan_collective(
    op: Op, machine: Machine, ranks: int, size: int, algorithm: CollectiveAlgorithm | None = None
) -> CollectivePlan:
    """Choose the fastest algorithm for ``size`` bytes among ``ranks`` ranks, or project the given one.

    Raises:
        InvalidArgument: the ranks do not fit, broken links cut some off, or the given algorithm does not fit.
    """
    if size < 1:
        raise InvalidArgument(f"a collective of {size} bytes cannot be planned; expected 1 byte or more")
    used = tiers(machine, ranks)
    if not used:
        return CollectivePlan(op, machine, ranks, size, (), None, "a single rank exchanges nothing", (), {}, ())
    formulas, refused = find_formulas(op, machine, ranks)
    if algorithm is not None and algorithm not in formulas:
        raise InvalidArgument(f"{algorithm} does not fit: {refused[algorithm]}; expected one of {', '.join(formulas)}")
    candidates = tuple(
        Candidate(a, formulas[a].terms(size)) if a in formulas else Candidate(a, None, refused[a])
        for a in CollectiveAlgorithm
    )
    best = _fastest(formulas, size)
    chosen = algorithm or best
    return CollectivePlan(
        op, machine, ranks, size, candidates, chosen, _reason(candidates, chosen, given=algorithm is not None),
        find_crossovers(formulas), formulas[chosen].traffic(size), tuple(_notes(machine, used, ranks, chosen)),
    )  # fmt: skip


def find_formulas(
    op: Op, machine: Machine, ranks: int
) -> tuple[dict[CollectiveAlgorithm, Formula], dict[CollectiveAlgorithm, str]]:
    """Return the closed forms of algorithms that fit, and the reasons why the others do not."""
    found, refused = dict[CollectiveAlgorithm, Formula](), dict[CollectiveAlgorithm, str]()
    for algorithm in CollectiveAlgorithm:
        try:
            found[algorithm] = find_formula(algorithm, op, machine, ranks)
        except NotApplicable as cause:
            refused[algorithm] = str(cause)
    return found, refused


def _fastest(formulas: dict[CollectiveAlgorithm, Formula], size: float) -> CollectiveAlgorithm:
    times = {algorithm: formula.terms(size).seconds for algorithm, formula in formulas.items()}
    least = min(times.values())
    return next(algorithm for algorithm, seconds in times.items() if seconds <= least * (1 + _EQUAL))


def find_crossovers(formulas: dict[CollectiveAlgorithm, Formula]) -> tuple[Crossover, ...]:
    """Return the sizes from which each fastest algorithm holds, the first from ``SMALLEST``; exact to 0.1 %.

    Sizes are tried in powers of two: an algorithm that is the fastest only between two of them may be missed.
    """
    size, now = float(SMALLEST), _fastest(formulas, SMALLEST)
    found = [Crossover(SMALLEST, now)]
    while size < LARGEST:
        low, high = size, size * 2
        after = _fastest(formulas, high)
        if after is not now:
            while high / low > 1.001:
                middle = sqrt(low * high)
                low, high = (middle, high) if _fastest(formulas, middle) is now else (low, middle)
            now = _fastest(formulas, high)
            found.append(Crossover(round(high), now))
            size = high
        else:
            size *= 2
    return tuple(found)


def _reason(candidates: Sequence[Candidate], chosen: CollectiveAlgorithm, *, given: bool) -> str:
    mine = next(c for c in candidates if c.algorithm is chosen)
    others = sorted((c for c in candidates if c.terms and c.algorithm is not chosen), key=lambda c: c.seconds)
    assert mine.terms is not None, "only an algorithm that fits is chosen"
    if given:
        better = [c for c in others if c.seconds < mine.seconds * (1 - _EQUAL)]
        fastest = f"{better[0].algorithm} takes {format_seconds(better[0].seconds)}" if better else "no other is faster"
        return f"asked for; {fastest}"
    if not others:
        return f"no other algorithm fits ({ABOUT[chosen]})"
    second = others[0]
    assert second.terms is not None, "others have terms"
    saved = {
        "latency": second.terms.latency_s - mine.terms.latency_s,
        "bandwidth": second.terms.bandwidth_s - mine.terms.bandwidth_s,
        "adding": second.terms.add_s - mine.terms.add_s,
    }
    if second.seconds <= mine.seconds * (1 + _EQUAL):
        return f"as fast as {second.algorithm} and listed first"
    most = max(saved, key=lambda name: saved[name])
    return (
        f"{ABOUT[chosen]}: {format_seconds(saved[most])} less {most} than the next, {second.algorithm}, "
        f"which takes {100 * (second.seconds / mine.seconds - 1):.3g} % longer"
    )


def _notes(machine: Machine, used: Sequence[Tier], ranks: int, chosen: CollectiveAlgorithm) -> list[str]:
    """Return notes on the chosen algorithm: its rings, and the effect of each broken link."""
    notes = list[str]()
    if chosen is CollectiveAlgorithm.BIDIRECTIONAL_RINGS:
        rings = rings_of(used)
        notes.append(f"{rings} ring{'s' * (rings > 1)} in each direction")
    at_level = {tier.index: tier for tier in used}
    is_ring = chosen in {
        CollectiveAlgorithm.RING, CollectiveAlgorithm.BIDIRECTIONAL_RINGS,
        CollectiveAlgorithm.HIERARCHICAL_SHARDED, CollectiveAlgorithm.HIERARCHICAL_LEADER,
    }  # fmt: skip
    for link in machine.broken:
        tier = at_level.get(link.level)
        if tier is None:
            notes.append(f"{link.name} is broken; {ranks} ranks do not use it")
        elif link.b < 0:
            left = f"{tier.ports} of {tier.level.ports} ports are left" if tier.ports < tier.level.ports else "unused"
            notes.append(f"{link.name} is broken: {left}, and the other ranks wait for that {tier.level.name}")
        elif link not in tier.broken:
            notes.append(f"{link.name} is broken; {ranks} ranks do not use it")
        elif is_ring and tier.is_ring_whole:
            names = " ".join(f"{tier.level.name}{child}" for child in tier.order)
            notes.append(f"{link.name} is broken: the ring goes around it, in the order {names}")
        else:
            way = "over the level outside" if tier.n == 2 else f"over another {tier.level.name}"
            notes.append(f"{link.name} is broken: its messages go {way}; times are an upper bound")
    return notes
