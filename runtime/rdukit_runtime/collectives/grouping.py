"""Groups of gradients that travel together, and when they leave: pure.

A group leaves when backward has made its last gradient and no longer reads any of them. Grouping never changes bits
(see ``sums``). Source: runtime reference 9 (gradient grouping, overlap); the rules are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from rdukit.pef.model import Graph, Pef, SectionType, SymbolKind

#: Largest part of a group's time that its latency should take.
_LATENCY_SHARE: Final = 0.1
_FEWEST_BYTES, _MOST_BYTES = 64 << 10, 64 << 20
#: Names of a group that errors show.
_SHOWN: Final = 2


@dataclass(frozen=True, slots=True)
class ReadyGradient:
    """A gradient's symbol, and the section after which it is final."""

    name: str
    bytes: int
    section: int


@dataclass(frozen=True, slots=True)
class GradientGroup:
    """Gradients that travel together after a section."""

    gradients: tuple[ReadyGradient, ...]
    section: int

    @property
    def label(self) -> str:
        """Return the group's content, for people."""
        names = [gradient.name for gradient in self.gradients]
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"{', '.join(names[:_SHOWN])}{more}, after section {self.section}"


def find_reduce(pef: Pef, graph: Graph) -> int | None:
    """Return the section that averages gradients; None: the graph has none."""
    return next((number for number in graph.schedule if pef.sections[number].type is SectionType.REDUCE), None)


def find_ready(pef: Pef, graph: Graph) -> tuple[ReadyGradient, ...]:
    """Return the gradients that ``reduce`` of a graph averages, in the order in which they become final.

    Returns:
        Empty if a gradient cannot be averaged in place: a sum over several backwards, which outlives the step, or a
        gradient whose memory a section shares with another value.
    """
    reduce = find_reduce(pef, graph)
    if reduce is None:
        return ()
    names = pef.sections[reduce].inputs
    wanted, last = set(names), dict[str, int]()
    order = {number: at for at, number in enumerate(graph.schedule)}
    for number in graph.schedule[: order[reduce]]:
        section = pef.sections[number]
        last.update((name, number) for name in (*section.inputs, *section.outputs) if name in wanted)
        if any(source in wanted and source not in section.outputs for source in section.shares.values()):
            return ()
    if any(pef.symbols[name].kind is not SymbolKind.GRADIENT or name not in last for name in names):
        return ()
    ready = [ReadyGradient(name, pef.symbols[name].bytes, last[name]) for name in names]
    return tuple(sorted(ready, key=lambda gradient: order[gradient.section]))


def choose_group_bytes(latency_s: float, bytes_s: float) -> int:
    """Return the size at which a group's latency takes at most a tenth of its time.

    Args:
        latency_s: time of a tiny allreduce. bytes_s: bytes per second of a long one.
    """
    wanted = latency_s * bytes_s * (1 / _LATENCY_SHARE - 1)
    return round(min(max(wanted, _FEWEST_BYTES), _MOST_BYTES))


def group_gradients(ready: Sequence[ReadyGradient], group_bytes: int) -> tuple[GradientGroup, ...]:
    """Group gradients in the order given, those of a section together, up to at least ``group_bytes``.

    The last group takes the rest, even a little: backward cannot hide it.
    """
    groups: list[GradientGroup] = []
    held: list[ReadyGradient] = []
    for _, made in groupby(ready, key=lambda gradient: gradient.section):
        held += made
        if sum(gradient.bytes for gradient in held) >= group_bytes:
            groups.append(GradientGroup(tuple(held), held[-1].section))
            held = []
    if held:
        groups.append(GradientGroup(tuple(held), held[-1].section))
    return tuple(groups)
