"""The default heuristic: any group, packed while it fits.

Source: compiler reference 7.2, "default O3": pack in topological order while PCU, PMU and SRAM fit, balance the
parallel factors, cut preferably at small tensors.
"""

from collections.abc import Sequence

from rdukit_compiler.heuristics.capacity import Limits, pack, section_limits
from rdukit_compiler.heuristics.decide import common_decisions
from rdukit_compiler.heuristics.registry import DEFAULT, Decisions, Request, heuristic
from rdukit_compiler.ir import Operator


@heuristic(DEFAULT)
class DefaultO3:
    """Takes everything."""

    parameters = frozenset({"tp_dim"})

    def refuse(self, request: Request) -> str | None:
        return None

    def split(self, request: Request) -> Sequence[tuple[Operator, ...]]:
        return pack(request.graph, request.operators, default_limits(request))

    def decide(self, request: Request) -> Decisions:
        return common_decisions(request, default_limits(request))


def default_limits(request: Request) -> Limits:
    """All units of the tiles."""
    return section_limits(request.chip, request.tiles, 1.0, inference=request.inference)
