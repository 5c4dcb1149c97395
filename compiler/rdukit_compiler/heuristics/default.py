"""Default heuristic, which accepts any group, and the decisions that all heuristics share.

Source: compiler reference 7.2, "default O3": pack in topological order while PCU, PMU and SRAM fit, balance the
parallel factors, cut preferably at small tensors.
"""

from collections.abc import Mapping, Sequence

from rdukit_compiler.cost.model import balance_units, cycles_on_one_pcu
from rdukit_compiler.cost.work import operator_work
from rdukit_compiler.heuristics.capacity import SectionLimits, footprint, pack, section_limits
from rdukit_compiler.heuristics.registry import DEFAULT, Decisions, HeuristicRequest, heuristic
from rdukit_compiler.heuristics.sharding import choose_sharding, gemm_of, shapes_of
from rdukit_compiler.ir import Operator, ValueKind
from rdukit_compiler.operators.vocabulary import is_gemm
from rdukit_compiler.patterns.syntax import Scalar

#: Part of the tiles' device memory beyond which one section's activations are recomputed instead of saved. Ours.
RECOMPUTE_ABOVE = 0.25


def common_decisions(request: HeuristicRequest, limits: SectionLimits) -> dict[str, object]:
    """Balance parallel factors, shard the GEMMs, choose the tiling.

    Returns:
        ``stream_iterations`` (tiles of the stream), ``pcu_limit``, ``pmus``, ``sram_bytes``, ``weights`` (``resident``
        or ``streamed``), ``recompute`` (forward again in backward instead of saving), ``par_factors`` (operator ->
        PCUs), ``gemms`` (operator -> what ``choose_sharding`` returns), and the rule's parameters under ``parameters``.
    """
    graph = request.graph
    loads = []
    for operator in request.operators:
        inputs, outputs = shapes_of(graph, operator)
        loads.append(cycles_on_one_pcu(operator_work(operator.op, inputs, outputs)))
    shares = balance_units(loads, limits.pcus)
    gemms: dict[str, Mapping[str, int | float]] = {}
    factors: dict[str, int] = {}
    for operator, share in zip(request.operators, shares, strict=True):
        settings: Mapping[str, Scalar] = request.settings.get(operator.name, {})
        if is_gemm(operator):
            gemms[operator.name] = choose_sharding(gemm_of(graph, operator), max(1, int(share)), settings)
        elif share:
            given = settings.get("par_factor", max(1, int(share)))
            factors[operator.name] = int(given)
    found = footprint(graph, request.operators, limits)
    return {
        "stream_iterations": found.stream_iterations,
        "pcu_limit": limits.pcus,
        "pmus": found.pmus,
        "sram_bytes": found.sram_bytes,
        "weights": "streamed" if found.weights_streamed else "resident",
        "recompute": not request.inference and saved_bytes(request) > RECOMPUTE_ABOVE * limits.memory_bytes,
        "par_factors": factors,
        "gemms": gemms,
        "parameters": dict(request.parameters),
    }


def saved_bytes(request: HeuristicRequest) -> int:
    """Return the bytes of the group's inner activations, written and read by its operators, which backward would
    read.
    """
    made = {name for operator in request.operators for name in operator.outputs}
    read = {name for operator in request.operators for name in operator.inputs}
    values = request.graph.values
    return sum(values[name].bytes for name in made & read if values[name].kind is ValueKind.OPERATOR)


@heuristic(DEFAULT)
class DefaultO3:
    """Accepts every group."""

    parameters = frozenset({"tp_dim"})

    def refuse(self, request: HeuristicRequest) -> str | None:
        return None

    def split(self, request: HeuristicRequest) -> Sequence[tuple[Operator, ...]]:
        return pack(request.graph, request.operators, default_limits(request))

    def decide(self, request: HeuristicRequest) -> Decisions:
        return common_decisions(request, default_limits(request))


def default_limits(request: HeuristicRequest) -> SectionLimits:
    """Return limits of all units of the tiles."""
    return section_limits(request.chip, request.tiles, 1.0, inference=request.inference)
