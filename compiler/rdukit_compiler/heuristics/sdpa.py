"""SDPA: the fused attention operator, with a softmax over blocks.

Source: compiler reference 7.2. Ours: one operator is never cut, so ``fwd_num_sections`` is only recorded.
"""

from collections.abc import Sequence

from rdukit_compiler.heuristics.capacity import pack
from rdukit_compiler.heuristics.decide import common_decisions
from rdukit_compiler.heuristics.default_o3 import default_limits
from rdukit_compiler.heuristics.mha import SHARD_PARAMETERS, find_illegal_parameter, head_sharding
from rdukit_compiler.heuristics.registry import Decisions, Request, heuristic
from rdukit_compiler.ir import Operator
from rdukit_compiler.patterns.vocabulary import words_of


@heuristic("SDPA")
class Sdpa:
    """Needs the attention operator."""

    parameters = frozenset({*SHARD_PARAMETERS, "sdp_block_size", "tp_dim"})

    def refuse(self, request: Request) -> str | None:
        if not any("scaled_dot_product_attention" in words_of(operator) for operator in request.operators):
            return "it has no scaled_dot_product_attention"
        return find_illegal_parameter(request)

    def split(self, request: Request) -> Sequence[tuple[Operator, ...]]:
        return pack(request.graph, request.operators, default_limits(request))

    def decide(self, request: Request) -> Decisions:
        return {**common_decisions(request, default_limits(request)), **head_sharding(request)}
