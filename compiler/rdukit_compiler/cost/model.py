"""Projection of a section's time and resources on the emulated chip. Its numbers are in ``constants.yaml``.

Source: compiler reference 9.2 (formulas), 9.3 (constants). All of it is an estimate for the emulated RDU and says
nothing about the machine that emulates it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil

from rdukit.hardware import ChipSpec
from rdukit.pef.model import Cost, SectionResources
from rdukit_compiler.cost.work import OpWork, WorkKind


@dataclass(frozen=True, slots=True)
class StageCost:
    """A stage of a section's pipeline: one operator, not a view, for a whole batch. Cycles at the chip's clock.

    ``pcus`` may be a part of one, and is 0 for an operator without arithmetic.
    """

    #: Position of the operator in the section's work.
    operator: int
    #: Arithmetic cycles on one PCU.
    load: float
    pcus: float
    #: Cycles to pass its bytes through its PMUs.
    memory_cycles: float

    @property
    def cycles(self) -> float:
        """Cycles of the stage with its own units: the larger of arithmetic and memory."""
        return max(self.load / self.pcus if self.pcus else 0.0, self.memory_cycles)

    @property
    def alone_cycles(self) -> float:
        """Cycles while the stage has all its units, including those that it shares later."""
        return max(self.load / max(self.pcus, 1.0), self.memory_cycles)


def project_stages(
    work: Sequence[OpWork], chip: ChipSpec, tiles: int, decisions: Mapping[str, object] | None = None
) -> list[StageCost]:
    """Project the stages of a section's pipeline, with balanced units; arguments as in ``project``."""
    constants, pcus = load_constants(), tiles * chip.pcus_per_tile
    stages = [(number, w) for number, w in enumerate(work) if w.kind is not WorkKind.VIEW]
    loads = [cycles_on_one_pcu(w) for _, w in stages]
    shares = balance_units(loads, min(pcus, _number(decisions or {}, "pcu_limit") or pcus))
    total_bytes = sum(w.bytes for _, w in stages) or 1
    port = constants.pmu_port_bytes * constants.u_pmu
    found = []
    for (number, stage), load, share in zip(stages, loads, shares, strict=True):
        stage_pmus = max(1.0, tiles * chip.pmus_per_tile * stage.bytes / total_bytes)
        found.append(StageCost(number, load, share, stage.bytes / (stage_pmus * port)))
    return found


def project(
    work: Sequence[OpWork],
    bytes_in: int,
    bytes_out: int,
    bytes_weights: int,
    chip: ChipSpec,
    tiles: int,
    decisions: Mapping[str, object] | None = None,
    *,
    peer_s: float = 0.0,
    bytes_host: int = 0,
) -> tuple[SectionResources, Cost]:
    """Project resources and cost of one run of a section on ``tiles`` tiles of ``chip``.

    The operators are stages of a pipeline through which the batch streams in tiles; the section takes as long as the
    slowest of pipeline, device memory, peer link and host link, plus the launch.

    Args:
        work: The section's operators. Views are free.
        bytes_in: Read from device memory once, without weights; ``bytes_out``: written; ``bytes_weights``: weights
            read.
        decisions: A heuristic's decisions (``SectionPlan.decisions``), of which ``stream_iterations``, ``pcu_limit``
            and ``weights`` are used.
        peer_s: Seconds of exchange with other RDUs, by ``rdukit.collectives``.
        bytes_host: Exchanged with the host.
    Returns:
        Resources in units of the chip, cycles at its clock. ``seconds`` and ``cycles`` include the launch.
    """
    constants, decided = load_constants(), decisions or {}
    pcus, pmus = tiles * chip.pcus_per_tile, tiles * chip.pmus_per_tile
    stages = [w for w in work if w.kind is not WorkKind.VIEW]
    iterations = _number(decided, "stream_iterations") or min(
        max((w.rows for w in stages), default=1), constants.max_stream_iterations
    )
    costs = project_stages(work, chip, tiles, decided)
    shares = [cost.pcus for cost in costs]
    slowest = max((cost.cycles for cost in costs), default=0.0)
    # Until the pipeline is full, a stage has all its units, including those that it shares later.
    alone = sum(cost.alone_cycles for cost in costs)
    pipeline = (slowest * (iterations - 1) + alone) / iterations / constants.balance
    clock = chip.clock_hz
    memory_s = (bytes_in + bytes_out + bytes_weights) / memory_bandwidth(chip, tiles)
    host_s = bytes_host / chip.pcie_bandwidth
    links = max(memory_s, peer_s, host_s) * clock
    if pipeline < links:
        # The links are the bottleneck, so stages get only the units that keep up with them. Source: ours; the time is
        # the same.
        spare = pipeline / slowest / links if slowest else 0.0
        shares = [min(cost.pcus, float(ceil(cost.load * spare))) for cost in costs]
    longest = max(pipeline, links)
    seconds = longest / clock + constants.launch_s[chip.name]
    sram = _sram_bytes(stages, bytes_weights, iterations, decided, pmus * chip.pmu_bytes)
    resources = SectionResources(
        tiles=tiles,
        pcus=min(pcus, ceil(sum(shares))),
        pmus=min(pmus, max(ceil(sram / chip.pmu_bytes), len(stages) * constants.pmus_per_buffer)),
        sram_bytes=sram,
    )
    cost = Cost(
        cycles=ceil(seconds * clock),
        flops=sum(w.flops for w in work),
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        bytes_weights=bytes_weights,
        seconds=seconds,
        compute_s=pipeline / clock,
        memory_s=memory_s,
        peer_s=peer_s,
        host_s=host_s,
        launch_s=constants.launch_s[chip.name],
    )
    return resources, cost


def memory_bandwidth(chip: ChipSpec, tiles: int) -> float:
    """Return the bytes a second that ``tiles`` tiles can stream: their share of the chip's HBM if it has any, else of
    its DDR.
    """
    constants = load_constants()
    share = min(1.0, tiles / chip.tiles)
    if chip.hbm_bandwidth:
        return chip.hbm_bandwidth * constants.e_hbm * share
    return chip.ddr_bandwidth * constants.e_ddr * share


def cycles_on_one_pcu(work: OpWork) -> float:
    """Return an operator's arithmetic cycles on one PCU at its class's utilisation; none for views and copies."""
    constants = load_constants()
    if work.kind is WorkKind.GEMM:
        return work.flops / (constants.flops_per_pcu_cycle * constants.u_gemm)
    if work.kind is WorkKind.MOVEMENT:
        return 0.0
    return work.flops / (constants.lanes_per_pcu * constants.u_elementwise)


def _sram_bytes(
    stages: Sequence[OpWork], weights: int, iterations: int, decided: Mapping[str, object], available: int
) -> int:
    """Return the live bytes: a tile of each stage's inputs and outputs, and the weights if they stay.

    An edge is counted at both its ends, which is its double buffer.
    """
    buffers = max(0, sum(s.bytes for s in stages) - weights) // iterations
    if weights > available // 2 or decided.get("weights") == "streamed":
        weights = min(weights, 2 * load_constants().weight_block_bytes)
    return min(buffers + weights, available)


def _number(decided: Mapping[str, object], key: str) -> int:
    value = decided.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def balance_units(loads: Sequence[float], units: float) -> list[float]:
    """Return the units for each load, so that the slowest stage is as fast as possible; shares add up to at most
    ``units``.

    ``loads`` are cycles on one unit. A stage with work gets whole units if each stage can have one.
    Otherwise several stages share the pipeline of one unit. A stage without work gets none.

    Source:
        Compiler reference 9.2, "give PCUs to the slowest stage until none is left".
    """
    working = sum(load > 0 for load in loads)
    if not working:
        return [0.0] * len(loads)
    if working > units:
        total = sum(loads)
        return [units * load / total for load in loads]
    low, high = sum(loads) / units, max(loads)
    for _ in range(48):
        middle = (low + high) / 2
        if sum(ceil(load / middle) for load in loads if load > 0) <= units:
            high = middle
        else:
            low = middle
    return [float(ceil(load / high)) if load > 0 else 0.0 for load in loads]


@dataclass(frozen=True, slots=True)
class Constants:
    """Values of ``constants.yaml``, where each is explained. ``e_…`` and ``u_…`` are fractions of a peak."""

    flops_per_pcu_cycle: int
    lanes_per_pcu: int
    pmu_port_bytes: int
    u_gemm: float
    u_elementwise: float
    u_pmu: float
    balance: float
    e_ddr: float
    e_hbm: float
    usable_units: float
    switch_bandwidth: float
    launch_s: Mapping[str, float]
    looped_launch_s: float
    looped_e_hbm: float
    columns_per_pcu: int
    pmus_per_buffer: int
    weight_block_bytes: int
    max_stream_iterations: int


@cache
def load_constants() -> Constants:
    """Load the constants that come with the compiler."""
    import yaml  # without a projection, the file is not read

    text = files("rdukit_compiler.cost").joinpath("constants.yaml").read_text(encoding="utf-8")
    return Constants(**yaml.safe_load(text))
