"""SAFE_GEMM: groups dominated by matrix products; element-wise operators ride along.

Source: compiler reference 7.2: one section per 1-3 GEMMs, degrees from ``set`` keys or the largest with 70 %
utilisation, and "safe": 20 % of the units stay unused.
"""

from collections.abc import Sequence

from rdukit_compiler.heuristics.capacity import Limits, pack, section_limits
from rdukit_compiler.heuristics.decide import common_decisions
from rdukit_compiler.heuristics.registry import Decisions, Request, heuristic
from rdukit_compiler.heuristics.sharding import find_illegal_setting
from rdukit_compiler.ir import Operator
from rdukit_compiler.patterns.vocabulary import is_gemm

SAFE_FRACTION = 0.8
MAX_GEMMS = 3


@heuristic("SAFE_GEMM")
class SafeGemm:
    """Needs a GEMM."""

    parameters = frozenset({"tp_dim"})

    def refuse(self, request: Request) -> str | None:
        if not any(is_gemm(operator) for operator in request.operators):
            return "it has no linear, matmul, addmm, bmm or convolution"
        return find_illegal_setting(request.settings, safe_limits(request).pcus)

    def split(self, request: Request) -> Sequence[tuple[Operator, ...]]:
        return pack(request.graph, request.operators, safe_limits(request))

    def decide(self, request: Request) -> Decisions:
        return common_decisions(request, safe_limits(request))


def safe_limits(request: Request, max_gemms: int | None = MAX_GEMMS) -> Limits:
    """80 % of the tiles' units."""
    return section_limits(request.chip, request.tiles, SAFE_FRACTION, inference=request.inference, max_gemms=max_gemms)
