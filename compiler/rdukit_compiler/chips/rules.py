"""Rules of operators: along which dimension each can be split, and what each chip then computes.

A rule adds an operator's copies to the written graph and returns True. It returns False if it cannot split the
operator; then every chip computes it whole. Rules are exact: a chip computes its slice of the result from slices of the
operands. A sum over a split dimension adds the chips' partial sums in chip order.
"""

from collections.abc import Callable
from typing import Final

from rdukit_compiler.chips.elements import is_by_element, split_elements
from rdukit_compiler.chips.operands import Operands
from rdukit_compiler.chips.products import (
    BY_SAMPLE,
    split_attention,
    split_by_sample,
    split_linear_layer,
    split_lookup,
    split_product,
)
from rdukit_compiler.chips.sums import (
    PAIR_LOSSES,
    split_cross_entropy,
    split_norm,
    split_pair_loss,
    split_reduction,
    split_running,
)
from rdukit_compiler.chips.views import (
    split_cat,
    split_chunks,
    split_expand,
    split_permute,
    split_reshape,
    split_select,
    split_slice,
    split_transpose,
    split_unsqueeze,
)
from rdukit_compiler.ir import Operator

Rule = Callable[[Operands, Operator], bool]

#: Rules by the operator's word.
RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(("layer_norm", "rms_norm"), split_norm),
    **dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum"), split_running),
    **dict.fromkeys(("matmul", "bmm", "mm"), split_product),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "_unsafe_view"), split_reshape),
    **dict.fromkeys(("chunk", "split", "split_with_sizes"), split_chunks),
    **dict.fromkeys(("sum", "mean", "amax", "amin"), split_reduction),
    **dict.fromkeys(PAIR_LOSSES, split_pair_loss),
    **dict.fromkeys(BY_SAMPLE, split_by_sample),
    "linear": split_linear_layer, "embedding": split_lookup, "scaled_dot_product_attention": split_attention,
    "transpose": split_transpose, "t": split_transpose, "permute": split_permute, "unsqueeze": split_unsqueeze,
    "expand": split_expand, "slice": split_slice, "select": split_select, "cat": split_cat,
    "cross_entropy_loss": split_cross_entropy,
}  # fmt: skip


def split_operator(given: Operands, operator: Operator) -> bool:
    """Split an operator over the chips; return False, and add nothing, if it cannot be split."""
    rule = RULES.get(operator.op_type.rstrip("_"))
    if rule is not None:
        return rule(given, operator)
    return is_by_element(operator) and split_elements(given, operator)
