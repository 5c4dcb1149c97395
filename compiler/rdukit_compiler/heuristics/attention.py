"""Heuristics for attention.

- MHA: attention written as separate operators. Shards over heads, scores stay on chip; ``fwd_num_sections`` above 1
  cuts at the softmax.
- SDPA: the fused operator, with a softmax over blocks. Ours: one operator is never cut, so ``fwd_num_sections`` is only
  recorded.

Source: compiler reference 7.2.
"""

from collections.abc import Sequence
from math import gcd

from rdukit_compiler.heuristics.capacity import pack
from rdukit_compiler.heuristics.default import common_decisions, default_limits
from rdukit_compiler.heuristics.registry import Decisions, HeuristicRequest, heuristic
from rdukit_compiler.ir import Operator
from rdukit_compiler.operators.vocabulary import is_gemm, words_of

SHARD_PARAMETERS = ("head_dim_sharding_degree", "spatial_split_degree", "fwd_num_sections")


@heuristic("MHA")
class Mha:
    """Needs a matmul, a softmax and a matmul, in this order."""

    parameters = frozenset({*SHARD_PARAMETERS, "tp_dim"})

    def refuse(self, request: HeuristicRequest) -> str | None:
        at = _softmax_at(request.operators)
        if at is None or not _has_gemm(request.operators[:at]) or not _has_gemm(request.operators[at:]):
            return "it needs a matmul, a softmax and a matmul in a chain"
        return find_illegal_parameter(request)

    def split(self, request: HeuristicRequest) -> Sequence[tuple[Operator, ...]]:
        limits = default_limits(request)
        at = _softmax_at(request.operators)
        if at is None or int(request.parameters.get("fwd_num_sections", 1)) < 2:
            return pack(request.graph, request.operators, limits)
        before, after = request.operators[:at], request.operators[at:]
        return [*pack(request.graph, before, limits), *pack(request.graph, after, limits)]

    def decide(self, request: HeuristicRequest) -> Decisions:
        return {**common_decisions(request, default_limits(request)), **head_sharding(request)}


def head_sharding(request: HeuristicRequest) -> dict[str, object]:
    """Return ``head_shard_degree``: the largest power of two that divides the heads (axis 1 of the scores)."""
    product = next((o for o in request.operators if is_gemm(o) or "attention" in o.op_type), None)
    shape = request.graph.values[product.outputs[0]].shape if product else ()
    heads = shape[1] if len(shape) > 3 else 1
    return {
        "head_shard_degree": gcd(heads, 1 << 16),
        **{key: request.parameters[key] for key in SHARD_PARAMETERS if key in request.parameters},
    }


def find_illegal_parameter(request: HeuristicRequest) -> str | None:
    """Describe an invalid shard parameter; None if there is none."""
    for key in SHARD_PARAMETERS:
        value = request.parameters.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return f"{key} {value!r} is not valid; expected an integer from 1 up"
    return None


def _softmax_at(operators: Sequence[Operator]) -> int | None:
    return next((index for index, operator in enumerate(operators) if "softmax" in words_of(operator)), None)


def _has_gemm(operators: Sequence[Operator]) -> bool:
    return any(is_gemm(operator) for operator in operators)


@heuristic("SDPA")
class Sdpa:
    """Needs the attention operator."""

    parameters = frozenset({*SHARD_PARAMETERS, "sdp_block_size", "tp_dim"})

    def refuse(self, request: HeuristicRequest) -> str | None:
        if not any("scaled_dot_product_attention" in words_of(operator) for operator in request.operators):
            return "it has no scaled_dot_product_attention"
        return find_illegal_parameter(request)

    def split(self, request: HeuristicRequest) -> Sequence[tuple[Operator, ...]]:
        return pack(request.graph, request.operators, default_limits(request))

    def decide(self, request: HeuristicRequest) -> Decisions:
        return {**common_decisions(request, default_limits(request)), **head_sharding(request)}
