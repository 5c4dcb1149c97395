"""GPT2_QKV: a norm and one to three products of its output, as one product with their columns side by side.

Source: compiler reference 7.2.
"""

from collections.abc import Sequence

from rdukit_compiler.heuristics.capacity import pack
from rdukit_compiler.heuristics.decide import common_decisions
from rdukit_compiler.heuristics.registry import Decisions, Request, heuristic
from rdukit_compiler.heuristics.safe_gemm import safe_limits
from rdukit_compiler.heuristics.sharding import find_illegal_setting
from rdukit_compiler.ir import Operator
from rdukit_compiler.patterns.vocabulary import is_gemm, words_of


@heuristic("GPT2_QKV")
class Gpt2Qkv:
    """Needs a norm first and one to three GEMMs."""

    parameters = frozenset({"tp_dim"})

    def refuse(self, request: Request) -> str | None:
        gemms = [operator for operator in request.operators if is_gemm(operator)]
        if not 1 <= len(gemms) <= 3:
            return f"it needs 1 to 3 GEMMs behind a norm and has {len(gemms)}"
        first = request.operators[0]
        if not words_of(first) & {"layer_norm", "rms_norm", "pow", "to"}:
            return f"it needs a norm first and starts with {first.op_type}"
        return find_illegal_setting(request.settings, safe_limits(request).pcus)

    def split(self, request: Request) -> Sequence[tuple[Operator, ...]]:
        return pack(request.graph, request.operators, safe_limits(request))

    def decide(self, request: Request) -> Decisions:
        gemms = [operator.name for operator in request.operators if is_gemm(operator)]
        return {**common_decisions(request, safe_limits(request)), "concatenated_n": gemms, "replicated": "norm"}
