"""Capacity: the units that operators occupy on the chip, and packing them into sections that fit.

A section's batch streams through it in tiles, cut along all axes except those that an operator needs whole. Every
tensor between operators has two buffers of one tile. Weights stay on chip, unless together they need more than half
of the section's SRAM: then blocks of them stream through, so weights alone never force a cut.

Source: compiler reference 7.2, 9.2 (limits). An operator's minimum of PCUs is ours: see ``constants.yaml``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

from rdukit.errors import DoesNotFit
from rdukit.hardware import ChipSpec
from rdukit.pef.model import ITEM_BYTES
from rdukit_compiler.cost.model import load_constants
from rdukit_compiler.ir import ModelGraph, Operator, Value, ValueKind
from rdukit_compiler.operators.vocabulary import is_gemm, is_trivial, is_view

#: Minimum tiles of a stream; it has more if the buffers would not fit. Source: ours.
FIRST_ITERATIONS = 64
#: Minimum tiles for each operator of a section: filling and draining the pipeline costs time. Source: ours.
ITERATIONS_PER_STAGE = 8
#: Last part of the operators that fit, in which the cut with the least memory traffic is chosen. Source: ours.
CUT_WINDOW = 0.25
#: Maximum part of a section's PCUs that one GEMM asks for; a wider one takes more passes. Source: ours.
LARGEST_GEMM = 0.75


@dataclass(frozen=True, slots=True)
class SectionLimits:
    """Units that one section may use. ``training``: each GEMM must leave room for the two of its backward."""

    pcus: int
    pmus: int
    sram_bytes: int
    memory_bytes: int
    training: bool
    max_gemms: int | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """Units that a section occupies at the coarsest tiling that fits, or at the finest if none fits."""

    pcus: int
    pmus: int
    sram_bytes: int
    weight_bytes: int
    weights_streamed: bool
    stream_iterations: int


def section_limits(
    chip: ChipSpec, tiles: int, fraction: float, *, inference: bool, max_gemms: int | None = None
) -> SectionLimits:
    """Return the limits of a section that may use ``fraction`` of the tiles' units."""
    pmus = int(tiles * chip.pmus_per_tile * fraction)
    return SectionLimits(
        pcus=max(1, int(tiles * chip.pcus_per_tile * fraction)),
        pmus=max(1, pmus),
        sram_bytes=int(pmus * chip.pmu_bytes * load_constants().usable_units),
        memory_bytes=chip.ddr_bytes * tiles // chip.tiles,
        training=not inference,
        max_gemms=max_gemms,
    )


def footprint(
    graph: ModelGraph, operators: Sequence[Operator], limits: SectionLimits, *, streamed: bool = False
) -> Footprint:
    """Return the footprint of ``operators`` as one section; ``streamed``: stream the weights even if they could stay on
    chip.
    """
    load = _Load(graph, limits)
    for operator in operators:
        load.add(operator)
    return load.footprint(streamed)


def pack(graph: ModelGraph, operators: Sequence[Operator], limits: SectionLimits) -> list[tuple[Operator, ...]]:
    """Cut ``operators``, which are in graph order, into as few runs as fit the limits, one after the other.

    Within the last quarter of the operators that fit, the cut is where the fewest bytes cross. Views and constants at a
    cut belong to the section after it.

    Raises:
        DoesNotFit: one operator alone exceeds the limits; carries the numbers.
    """
    parts: list[tuple[Operator, ...]] = []
    start = 0
    while start < len(operators):
        load, end = _Load(graph, limits), start
        while end < len(operators):
            load.add(operators[end])
            if not load.fits():
                break
            end += 1
        if end == start:
            raise _does_not_fit(graph, operators[start], limits)
        if end < len(operators):
            end = _best_cut(graph, operators, start, end)
        parts.append(tuple(operators[start:end]))
        start = end
    return parts


class _Load:
    """Sums over a growing section, for each tiling at once."""

    def __init__(self, graph: ModelGraph, limits: SectionLimits) -> None:
        self.graph = graph
        self.limits = limits
        self.pcus = self.gemms = self.stages = self.memory_bytes = 0
        self.weights: dict[str, int] = {}
        self.tables = 0
        self.activations: set[str] = set()
        most = load_constants().max_stream_iterations
        self.iterations = [1 << k for k in range(most.bit_length()) if 1 << k >= FIRST_ITERATIONS] or [1]
        self.buffers = [0] * len(self.iterations)
        self.buffer_pmus = [0] * len(self.iterations)
        self.rows = 1

    def add(self, operator: Operator) -> None:
        self.pcus += pcu_demand(self.graph, operator, self.limits)
        self.gemms += is_gemm(operator)
        self.stages += not is_view(operator)
        for name in operator.inputs:
            value = self.graph.values[name]
            if value.kind in {ValueKind.PARAMETER, ValueKind.BUFFER}:
                self._add_weight(value, looked_up="embedding" in operator.op_type)
            else:
                self._add_activation(value, operator)
        if not is_view(operator):
            for name in operator.outputs:
                self._add_activation(self.graph.values[name], operator)

    def fits(self) -> bool:
        limits = self.limits
        if self.pcus > limits.pcus or self.memory_bytes > limits.memory_bytes:
            return False
        if limits.max_gemms is not None and self.gemms > limits.max_gemms:
            return False
        found = self.footprint()
        return found.pmus <= limits.pmus and found.sram_bytes <= limits.sram_bytes

    def footprint(self, streamed: bool = False) -> Footprint:
        limits, pmu_bytes = self.limits, _pmu_bytes(self.limits)
        weight_bytes = sum(self.weights.values())
        streamed = streamed or weight_bytes > limits.sram_bytes // 2
        block = load_constants().weight_block_bytes
        held = [min(w, 2 * block) if streamed else w for w in self.weights.values()]
        held_pmus = sum(ceil(w / pmu_bytes) for w in held)
        found = Footprint(0, 0, 0, 0, False, 1)
        enough = min(ITERATIONS_PER_STAGE * self.stages, self.iterations[-1])
        for index, iterations in enumerate(self.iterations):
            if iterations < enough:
                continue
            found = Footprint(
                pcus=self.pcus,
                pmus=self.buffer_pmus[index] + held_pmus,
                sram_bytes=self.buffers[index] + sum(held) + self.tables,
                weight_bytes=weight_bytes,
                weights_streamed=streamed,
                stream_iterations=max(1, min(iterations, self.rows)),
            )
            if found.pmus <= limits.pmus and found.sram_bytes <= limits.sram_bytes:
                break
        return found

    def _add_weight(self, value: Value, looked_up: bool) -> None:
        if value.name in self.weights or value.name in self.activations:
            return
        self.memory_bytes += value.bytes
        if looked_up:  # rows of a table are read from memory one by one
            self.activations.add(value.name)
            self.tables += 2 * _block_bytes(value, 1)
        else:
            self.weights[value.name] = value.bytes

    def _add_activation(self, value: Value, operator: Operator) -> None:
        if value.name in self.activations:
            return
        self.activations.add(value.name)
        self.memory_bytes += value.bytes
        least = _block_bytes(value, _whole_axes(operator, len(value.shape)))
        self.rows = max(self.rows, value.bytes // least if least else 1)
        pmu_bytes = _pmu_bytes(self.limits)
        for index, iterations in enumerate(self.iterations):
            buffer = 2 * max(least, ceil(value.bytes / iterations))
            self.buffers[index] += buffer
            self.buffer_pmus[index] += max(load_constants().pmus_per_buffer, ceil(buffer / pmu_bytes))


def pcu_demand(graph: ModelGraph, operator: Operator, limits: SectionLimits) -> int:
    """Return an operator's minimum of PCUs: by output columns for a GEMM, none for a view, otherwise one."""
    if is_view(operator) or not operator.inputs:
        return 0
    if not is_gemm(operator):
        return 1
    shape = graph.values[operator.outputs[0]].shape
    axis = 1 if "conv" in operator.op_type and len(shape) > 1 else -1
    columns = shape[axis] if shape else 1
    needed = ceil(columns / load_constants().columns_per_pcu) * (2 if limits.training else 1)
    return max(1, min(needed, int(limits.pcus * LARGEST_GEMM)))


def _whole_axes(operator: Operator, rank: int) -> int:
    """Return the trailing axes that an operator needs in one piece."""
    if "conv" in operator.op_type or "pool" in operator.op_type:
        return max(1, rank - 1)
    if operator.op_type in {"matmul", "bmm", "baddbmm"} or "attention" in operator.op_type:
        return 2
    return 1


def _block_bytes(value: Value, axes: int) -> int:
    return prod(value.shape[-axes:]) * ITEM_BYTES[value.dtype] if value.shape else ITEM_BYTES[value.dtype]


def _pmu_bytes(limits: SectionLimits) -> int:
    return max(1, limits.sram_bytes // limits.pmus)


def _best_cut(graph: ModelGraph, operators: Sequence[Operator], start: int, end: int) -> int:
    """Return the cut of ``operators[start:end]`` where the fewest bytes cross; the later of equals."""
    last_use: dict[str, int] = {}
    for index in range(start, len(operators)):
        for name in operators[index].inputs:
            last_use[name] = index
    first = max(start + 1, end - int((end - start) * CUT_WINDOW))

    def crossing(cut: int) -> int:
        made = {name for operator in operators[start:cut] for name in operator.outputs}
        return sum(graph.values[name].bytes for name in made if last_use.get(name, -1) >= cut)

    best = min(range(end, first - 1, -1), key=crossing)
    while best > start + 1 and is_trivial(operators[best - 1]):
        best -= 1
    return best


def _does_not_fit(graph: ModelGraph, operator: Operator, limits: SectionLimits) -> DoesNotFit:
    load = _Load(graph, limits)
    load.add(operator)
    found = load.footprint()
    numbers: Mapping[str, tuple[int, int]] = {
        "PCUs": (found.pcus, limits.pcus),
        "PMUs": (found.pmus, limits.pmus),
        "SRAM bytes": (found.sram_bytes, limits.sram_bytes),
        "device memory bytes": (load.memory_bytes, limits.memory_bytes),
    }
    over = ", ".join(f"{need} {what} of {have}" for what, (need, have) in numbers.items() if need > have)
    return DoesNotFit(
        f"operator {operator.name!r} ({operator.op_type}) needs {over} on its own; use more tiles, a smaller batch, "
        "or split the operator",
        operator=operator.name,
        needed={what: need for what, (need, _) in numbers.items()},
        available={what: have for what, (_, have) in numbers.items()},
    )
