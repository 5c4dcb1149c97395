"""Heuristics for groups dominated by matrix products.

- SAFE_GEMM: fuses element-wise operators too. One section has 1 to 3 GEMMs. Degrees come from ``set`` keys, or are the
  largest with 70 % utilisation. "Safe" means that 20 % of the units stay unused.
- SAFE_INFERENCE_GEMM: the same for inference, with few rows and many weights: weights always stream.
- GPT2_QKV: a norm and one to three products of its output, as one product with their columns side by side.

Source: compiler reference 7.2.
"""

from collections.abc import Sequence

from rdukit_compiler.heuristics.capacity import SectionLimits, pack, section_limits
from rdukit_compiler.heuristics.default import common_decisions
from rdukit_compiler.heuristics.registry import Decisions, HeuristicRequest, heuristic
from rdukit_compiler.heuristics.sharding import find_illegal_setting
from rdukit_compiler.ir import Operator
from rdukit_compiler.operators.vocabulary import is_gemm, words_of

SAFE_FRACTION = 0.8
MAX_GEMMS = 3


@heuristic("SAFE_GEMM")
class SafeGemm:
    """Needs a GEMM."""

    parameters = frozenset({"tp_dim"})

    def refuse(self, request: HeuristicRequest) -> str | None:
        if not any(is_gemm(operator) for operator in request.operators):
            return "it has no linear, matmul, addmm, bmm or convolution"
        return find_illegal_setting(request.settings, safe_limits(request).pcus)

    def split(self, request: HeuristicRequest) -> Sequence[tuple[Operator, ...]]:
        return pack(request.graph, request.operators, safe_limits(request))

    def decide(self, request: HeuristicRequest) -> Decisions:
        return common_decisions(request, safe_limits(request))


def safe_limits(request: HeuristicRequest, max_gemms: int | None = MAX_GEMMS) -> SectionLimits:
    """Return 80 % of the tiles' units."""
    return section_limits(request.chip, request.tiles, SAFE_FRACTION, inference=request.inference, max_gemms=max_gemms)


@heuristic("SAFE_INFERENCE_GEMM")
class SafeInferenceGemm(SafeGemm):
    """Needs a GEMM and an inference compile."""

    def refuse(self, request: HeuristicRequest) -> str | None:
        if not request.inference:
            return "it is for inference, and this compile is for training"
        return super().refuse(request)

    def decide(self, request: HeuristicRequest) -> Decisions:
        return {**super().decide(request), "weights": "streamed", "recompute": False}


@heuristic("GPT2_QKV")
class Gpt2Qkv:
    """Needs a norm first and one to three GEMMs."""

    parameters = frozenset({"tp_dim"})

    def refuse(self, request: HeuristicRequest) -> str | None:
        gemms = [operator for operator in request.operators if is_gemm(operator)]
        if not 1 <= len(gemms) <= 3:
            return f"it needs 1 to 3 GEMMs after a norm, but has {len(gemms)}"
        first = request.operators[0]
        if not words_of(first) & {"layer_norm", "rms_norm", "pow", "to"}:
            return f"it needs a norm first, but starts with {first.op_type}"
        return find_illegal_setting(request.settings, safe_limits(request).pcus)

    def split(self, request: HeuristicRequest) -> Sequence[tuple[Operator, ...]]:
        return pack(request.graph, request.operators, safe_limits(request))

    def decide(self, request: HeuristicRequest) -> Decisions:
        gemms = [operator.name for operator in request.operators if is_gemm(operator)]
        return {**common_decisions(request, safe_limits(request)), "concatenated_n": gemms, "replicated": "norm"}
