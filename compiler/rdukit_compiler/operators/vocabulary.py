"""Words of fusion rules: an operator's names, and classes of operators such as views, casts, GEMMs and losses."""

from typing import Final

from rdukit.pef.kernel import Argument, Ref
from rdukit_compiler.ir import Operator

#: Traced name -> another rule word for it. Source: compiler reference 5.2 (aliases to fold).
ALIASES: Final = {
    "_to_copy": "to", "float": "to", "half": "to", "bfloat16": "to", "type": "to", "type_as": "to",
    "slice": "getitem", "select": "getitem", "narrow": "getitem",
    "_unsafe_view": "view", "t": "transpose", "swapaxes": "transpose",
    "_softmax": "softmax", "_log_softmax": "log_softmax",
    "native_dropout": "dropout", "native_layer_norm": "layer_norm",
    "divide": "div", "true_divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg",
    "concat": "cat", "concatenate": "cat",
    "cross_entropy_loss": "cross_entropy",
    "_scaled_dot_product_flash_attention_for_cpu": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
}  # fmt: skip

#: Operators that move no numbers: they change the shape of the same elements, or select some.
VIEWS: Final = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "transpose",
    "permute", "t", "swapaxes", "movedim", "expand", "expand_as", "view_as", "reshape_as", "split",
    "split_with_sizes", "chunk", "unbind", "getitem", "slice", "select", "narrow", "detach", "alias",
    "unsafe_split", "unsafe_chunk", "lift_fresh", "contiguous", "as_strided", "diagonal",
})  # fmt: skip

#: Changes of dtype.
CASTS: Final = frozenset(
    {"to", "_to_copy", "type", "type_", "type_as", "float", "half", "bfloat16", "double", "int", "long", "bool"}
)

#: GEMM-like operators by rule word.
GEMMS: Final = frozenset({
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum", "conv1d", "conv2d", "conv3d",
    "convolution",
})  # fmt: skip

#: Losses by rule word: where backward starts and what the program reads.
LOSSES: Final = frozenset({
    "cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd", "mse_loss", "l1_loss", "smooth_l1_loss",
    "huber_loss", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits", "ctc_loss",
    "poisson_nll_loss", "soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss", "margin_ranking_loss",
    "hinge_embedding_loss", "cosine_embedding_loss", "triplet_margin_loss",
})  # fmt: skip

#: Sums over all elements so far, by rule word.
RUNNING_SUMS: Final = frozenset({"cumsum", "cumprod", "logcumsumexp"})


#: Words of the vendor's rule files that match no operator of torch. Source: compiler reference 5.2, 6.2.
VENDORS: Final = frozenset({
    "triufill", "triu_fill", "upper_triangular_fill", "zipmapreduce", "getitem", "rsub", "type_", "sn_gather",
    "sn_scatter", "sn_reduce", "sn_zipmapreduce", "triufill_air", "scatter_air", "gather_air",
})  # fmt: skip


def words_of(operator: Operator) -> frozenset[str]:
    """Return the rule words that name ``operator``: its own, without the in-place underscore, and its aliases.

    ``permute`` is a ``transpose`` only when it swaps exactly two dimensions; ``1 - x`` is also ``rsub``.
    """
    word = operator.op_type.lower()
    words = {word}
    plain = word.rstrip("_") or word
    if plain != "type":  # ``type_`` is a rule word of its own
        words.add(plain)
    if plain in ALIASES and word != "type_":
        words.add(ALIASES[plain])
    if plain == "permute" and _swaps_two(operator.args):
        words.add("transpose")
    if plain == "sub" and operator.args and not isinstance(operator.args[0], Ref):
        words.add("rsub")
    return frozenset(words)


def is_gemm(operator: Operator) -> bool:
    """Return whether the operator spends its time on multiply-adds."""
    return operator.op_type.lower() in GEMMS


def is_view(operator: Operator) -> bool:
    """Return whether the operator only shows elements of its input in another shape."""
    return operator.op_type.lower().rstrip("_") in VIEWS or operator.op_type.lower() in VIEWS


def is_trivial(operator: Operator) -> bool:
    """Return whether the operator needs no section of its own: a view, a cast, or one without tensor inputs."""
    return is_view(operator) or operator.op_type.lower() in CASTS or not operator.inputs


def is_loss(operator: Operator) -> bool:
    """Return whether the operator is a loss."""
    return operator.op_type.lower() in LOSSES


def _swaps_two(args: tuple[Argument, ...]) -> bool:
    if len(args) < 2 or not isinstance(args[1], list):
        return False
    order = [a for a in args[1] if isinstance(a, int)]
    dims = [a % len(order) for a in order]
    return sum(position != dim for position, dim in enumerate(dims)) == 2
