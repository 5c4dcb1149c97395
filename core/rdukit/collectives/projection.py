"""Projection of data-parallel training on more machines: reduce, step, memory, failures, cost. Pure.

Sections take the times that the cost model recorded in the PEF; the reduce is planned for the given ranks and links. It
runs after the last backward section, without overlap. All figures are projected from assumptions.

Source: ours; lost time is that of Daly, "A higher order estimate of the optimum checkpoint interval", for failures
without memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, expm1
from typing import Final

from rdukit.collectives.plan import CollectivePlan, plan_collective
from rdukit.collectives.steps import Op
from rdukit.collectives.topology import Machine, build_machine
from rdukit.errors import InvalidArgument
from rdukit.hardware import NODES, ChipSpec, find_chip
from rdukit.pef.memory import lease_bytes
from rdukit.pef.model import Pef, Section, SectionType

#: Runs longer than this multiple of the undisturbed one are refused: they do not finish.
MAX_SLOWDOWN: Final = 1000.0


@dataclass(frozen=True, slots=True)
class ReduceProjection:
    """A step's reduce among the plan's ranks. ``seconds`` includes the launch, and is at least the time of device
    memory.
    """

    plan: CollectivePlan
    memory_s: float
    launch_s: float

    @property
    def seconds(self) -> float:
        """Projected seconds; 0 for one rank, which has nothing to reduce."""
        return max(self.plan.terms.seconds, self.memory_s) + self.launch_s if self.plan.chosen else 0.0

    @property
    def algorithm(self) -> str:
        """The chosen algorithm's name; ``-`` for one rank."""
        return str(self.plan.chosen or "-")


@dataclass(frozen=True, slots=True)
class TrainingScenario:
    """Assumptions about a training. ``mtbf_s``: mean time between failures of one rank; 0: no failures.

    ``straggler``: compute time of the slowest rank relative to the others, which wait for it in each reduce.
    ``price``: of one RDU and hour; 0: unknown.
    """

    steps: int = 1000
    straggler: float = 1.0
    mtbf_s: float = 0.0
    checkpoint_every_s: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    price: float = 0.0


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """A training on ``ranks`` ranks; ``slowdown``: run time relative to that without checkpoints and failures."""

    ranks: int
    rdus: float
    sections_s: float
    reduce: ReduceProjection | None
    step_s: float
    efficiency: float
    slowdown: float
    run_s: float
    rank_bytes: int
    cost: float | None

    @property
    def speedup(self) -> float:
        """Samples a second over those of one undisturbed rank, before checkpoints and failures."""
        return self.ranks * self.efficiency


def rank_tiles(chip: ChipSpec, tiles: int) -> int:
    """Return the tiles of an RDU that a rank occupies: the smallest equal part of an RDU that suffices.

    Raises:
        InvalidArgument: a rank needs more than an RDU.
    """
    if tiles > chip.tiles:
        raise InvalidArgument(
            f"a rank of {tiles} tiles needs more than one {chip.name} RDU; expected 1 to {chip.tiles} tiles"
        )
    return next(part for part in range(tiles, chip.tiles + 1) if chip.tiles % part == 0)


def default_machine(chip: ChipSpec, tiles: int, ranks: int) -> Machine:
    """Return the smallest machine of nodes with ``chip``, with default links, that holds ``ranks`` ranks of ``tiles``
    tiles.
    """
    node = next(node for node in NODES.values() if node.chip.name == chip.name)
    part = rank_tiles(chip, tiles)
    nodes = ceil(ranks / (node.tiles // part))
    return build_machine(f"{nodes}x{node.platform}", node, nodes, tiles=part)


def reduce_sections(pef: Pef) -> list[Section]:
    """Return the reduce sections of all but evaluation graphs."""
    return [s for s in pef.sections if s.type is SectionType.REDUCE]


def project_reduce(sections: Sequence[Section], machine: Machine, ranks: int) -> ReduceProjection:
    """Project a step's reduce sections, their gradients as one vector, among ``ranks`` ranks.

    Raises:
        InvalidArgument: there is no reduce section, or the machine has too few ranks.
    """
    size = sum(section.cost.bytes_in for section in sections)
    if not size:
        raise InvalidArgument("the PEF has no reduce section; expected one compiled with --data-parallel")
    plan = plan_collective(Op.ALLREDUCE, machine, ranks, size)
    return ReduceProjection(plan, sum(s.cost.memory_s for s in sections), sum(s.cost.launch_s for s in sections))


def project_training(
    pef: Pef, machine: Machine, ranks: Sequence[int], scenario: TrainingScenario
) -> tuple[ScalePoint, ...]:
    """Project a step of ``pef``, each rank with its own batch, for several numbers of ranks.

    Efficiency is relative to one undisturbed rank's step; the batch of a rank stays the same (weak scaling).

    Raises:
        InvalidArgument: the PEF is not for training, the machine has too few ranks, or failures outpace progress.
    """
    scheduled = [pef.sections[number] for graph in pef.main_graphs() for number in graph.schedule]
    if not any(section.type is SectionType.OPT for section in scheduled):
        raise InvalidArgument(f"{pef.name} has no opt section; expected a training PEF")
    reduces = [section for section in scheduled if section.type is SectionType.REDUCE]
    alone_s = sum(section.cost.seconds for section in scheduled if section.type is not SectionType.REDUCE)
    chip, memory = find_chip(pef.arch), lease_bytes(pef)
    found = list[ScalePoint]()
    for count in ranks:
        machine.require(count)
        reduce = project_reduce(reduces, machine, count) if count > 1 else None
        step_s = alone_s * scenario.straggler + (reduce.seconds if reduce else 0.0)
        slowdown = lost_time(scenario, count)
        run_s, rdus = scenario.steps * step_s * slowdown, count * pef.num_tiles / chip.tiles
        found.append(
            ScalePoint(
                count, rdus, alone_s * scenario.straggler, reduce, step_s, alone_s / step_s if step_s else 0.0,
                slowdown, run_s, memory, scenario.price * rdus * run_s / 3600 if scenario.price else None,
            )
        )  # fmt: skip
    return tuple(found)


def lost_time(scenario: TrainingScenario, ranks: int) -> float:
    """Return the factor by which checkpoints and failures of any of ``ranks`` ranks lengthen a training.

    Raises:
        InvalidArgument: failures without checkpoints, or too many failures to finish.
    """
    every, write = scenario.checkpoint_every_s, scenario.checkpoint_s
    if not scenario.mtbf_s:
        return 1 + write / every if every else 1.0
    if not every:
        raise InvalidArgument(
            "--mtbf needs --checkpoint-every: without checkpoints a failure loses all progress; give both"
        )
    mean = scenario.mtbf_s / ranks
    exponent = (scenario.restart_s + every + write) / mean
    slowdown = mean / every * exp(scenario.restart_s / mean) * expm1((every + write) / mean) if exponent < 50 else 1e99
    if slowdown > MAX_SLOWDOWN:
        raise InvalidArgument(
            f"{ranks} ranks fail every {mean:.3g} s and never finish {every:.3g} s between checkpoints; expected a "
            "shorter --checkpoint-every or a longer --mtbf"
        )
    return slowdown


def link_traffic(point: ScalePoint) -> Mapping[str, float]:
    """Return the bytes of a step over the busiest links of each level, one direction."""
    return point.reduce.plan.traffic if point.reduce else {}
