"""Work of one operator: floating-point operations, bytes read and written on chip, and the units that it needs.

Forward and backward ATen operators, and our own optimizer operators. An operator that is not listed counts as
element-wise (ours): most unlisted ones are, and a projection is better than a refusal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod, sqrt
from typing import Final

from rdukit.pef.kernel import parse_operator
from rdukit.pef.model import ITEM_BYTES

#: A tensor's shape in elements and its dtype by torch name.
Shape = tuple[tuple[int, ...], str]


class WorkKind(StrEnum):
    """Classes of operators, by what limits them."""

    GEMM = "gemm"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    MOVEMENT = "movement"  # copies: no arithmetic
    VIEW = "view"  # no work on the chip


@dataclass(frozen=True, slots=True)
class OpWork:
    """Work of one operator. ``bytes`` pass through PMU memory; ``rows``: number of parts in which its output can be
    streamed.
    """

    flops: int
    kind: WorkKind
    bytes: int = 0
    rows: int = 1


Count = Callable[[Sequence[Shape], Sequence[Shape]], int]


def operator_work(op: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> OpWork:
    """Return the work of the operator with ATen name ``op`` (``aten.addmm.default``, overload optional) on these
    shapes.

    ``inputs`` are its tensor inputs in argument order, ``outputs`` its tensor outputs; absent ones are left out.
    A multiply-add counts as two operations.
    """
    word = base_name(op)
    rows = max((prod(shape[:-1]) for shape, _ in outputs), default=1) or 1
    if word in VIEW_OPS:
        return OpWork(0, WorkKind.VIEW, 0, rows)
    moved = sum(_bytes(s) for s in (*inputs, *outputs))
    if word in MOVEMENT_OPS:
        return OpWork(0, WorkKind.MOVEMENT, moved, rows)
    if word in GEMM_COUNTS and len(inputs) >= GEMM_INPUTS.get(word, 2):
        return OpWork(GEMM_COUNTS[word](inputs, outputs), WorkKind.GEMM, moved, rows)
    largest = max((_elements(s) for s in (*inputs, *outputs)), default=0)
    if word in REDUCTION_FLOPS:
        return OpWork(REDUCTION_FLOPS[word] * largest, WorkKind.REDUCTION, moved, rows)
    if word in OPTIMIZER_FLOPS:
        # One call updates everything; its outputs are the parameters and states that it writes.
        written = sum(map(_elements, outputs)) or largest
        return OpWork(OPTIMIZER_FLOPS[word] * written, WorkKind.ELEMENTWISE, moved, max(1, written // 1024))
    return OpWork(ELEMENTWISE_FLOPS.get(word, 1) * largest, WorkKind.ELEMENTWISE, moved, rows)


def base_name(op: str) -> str:
    """Return a name's word: ``aten.add_.Tensor`` -> ``add``; ``rdukit.sgd`` -> ``sgd``; ``_foreach_`` stays."""
    word = parse_operator(op.replace("::", ".")).word
    return word.rstrip("_") or word


def _elements(shape: Shape) -> int:
    return prod(shape[0])


def _bytes(shape: Shape) -> int:
    return _elements(shape) * ITEM_BYTES.get(shape[1], 4)


def _matrix_product(left: int, right: int) -> Count:
    """Count the product of inputs number ``left`` and ``right``: each output element sums over the left one's last
    axis.
    """

    def count(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
        a, b = inputs[left][0], inputs[right][0]
        reduced = a[-1] if a else 1
        if not outputs:
            return 2 * prod(a) * (b[-1] if b else 1)
        return 2 * _elements(outputs[0]) * reduced

    return count


def _linear(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count the product of input ``[…, K]`` by weight ``[N, K]``, whose rows may be packed into fewer places."""
    x, weight = inputs[0][0], inputs[1][0]
    return 2 * prod(x) * (weight[0] if len(weight) > 1 else 1)


def _linear_backward(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count two products of the forward's size: for the input's and the weight's gradient. Inputs: x, grad, weight."""
    x, weight = inputs[0][0], inputs[-1][0]
    return 4 * prod(x) * (weight[0] if len(weight) > 1 else 1)


def _convolution(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count a convolution by weight ``[out, in/groups, …]``: each output element sums over one filter."""
    return 2 * _elements(outputs[0]) * prod(inputs[1][0][1:]) if outputs else 0


def _convolution_backward(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count one product for each requested gradient of x and weight. Inputs: grad_output, x, weight."""
    gradient, weight = inputs[0], inputs[2]
    asked = sum(out[0] in (inputs[1][0], weight[0]) for out in outputs) or 2
    return 2 * _elements(gradient) * prod(weight[0][1:]) * min(asked, 2)


def _attention(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count two products and a softmax of about 5 per score: query ``[…, L, E]``, key ``[…, S, E]``, value ``[…, S,
    V]``.
    """
    query, key, value = (s[0] for s in inputs[:3])
    scores = prod(query[:-1]) * key[-2]
    return scores * (2 * query[-1] + 2 * value[-1] + 5)


def _attention_backward(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count the scores again, then four products. Inputs start with grad_out, query, key, value."""
    return 5 * _attention(inputs[1:4], ()) // 2


def _lstm_layer(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count gates ``[T, B, 4H]``: the recurrent weight's product with each step's state, and some 20 per state."""
    (*_, wide), gates = inputs[0][0], prod(inputs[0][0])
    return 2 * gates * (wide // 4) + 5 * gates


def _lstm_layer_backward(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count the layer's product the other way; inputs start with the gradient of y ``[T, B, H]``."""
    (*_, width), states = inputs[0][0], prod(inputs[0][0])
    return 8 * states * width + 30 * states


def _grouped_outer_product(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Count ``[S, K]`` times ``[S, N]``: every row is in one group."""
    return 2 * prod(inputs[0][0]) * inputs[1][0][-1]


def _einsum(inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """Bound the count without the equation: axes that are in neither the output nor the other input are summed."""
    total, made = prod(_elements(s) for s in inputs[:2]), sum(map(_elements, outputs)) or 1
    return 2 * max(made, round(sqrt(total * made)))


GEMM_COUNTS: Final[Mapping[str, Count]] = {
    "mm": _matrix_product(0, 1), "bmm": _matrix_product(0, 1), "matmul": _matrix_product(0, 1),
    "mv": _matrix_product(0, 1), "dot": _matrix_product(0, 1), "vdot": _matrix_product(0, 1),
    "_scaled_mm": _matrix_product(0, 1), "_int_mm": _matrix_product(0, 1),
    "addmm": _matrix_product(1, 2), "baddbmm": _matrix_product(1, 2), "addmv": _matrix_product(1, 2),
    "_addmm_activation": _matrix_product(1, 2),
    "linear": _linear, "linear_backward": _linear_backward, "mkldnn_linear": _linear, "_mkl_linear": _linear,
    "int8_linear": _linear, "int4_linear": _linear,
    "convolution": _convolution, "_convolution": _convolution, "conv1d": _convolution, "conv2d": _convolution,
    "conv3d": _convolution, "conv_transpose2d": _convolution, "convolution_backward": _convolution_backward,
    "scaled_dot_product_attention": _attention, "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention, "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "einsum": _einsum, "lstm_layer": _lstm_layer, "lstm_layer_backward": _lstm_layer_backward,
    "grouped_product": _matrix_product(0, 1), "grouped_outer_product": _grouped_outer_product,
}  # fmt: skip

#: Tensor inputs without which a count is not possible; 2 when not listed.
GEMM_INPUTS: Final[Mapping[str, int]] = {
    "addmm": 3, "baddbmm": 3, "addmv": 3, "_addmm_activation": 3, "convolution_backward": 3,
    "scaled_dot_product_attention": 3, "_scaled_dot_product_flash_attention": 3,
    "_scaled_dot_product_flash_attention_for_cpu": 3, "_scaled_dot_product_efficient_attention": 3,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 4, "_scaled_dot_product_flash_attention_backward": 4,
    "_scaled_dot_product_efficient_attention_backward": 4,
}  # fmt: skip

#: Operations per element of the largest tensor, for operators that need a whole row or more before their first result.
REDUCTION_FLOPS: Final[Mapping[str, int]] = {
    "sum": 1, "mean": 1, "amax": 1, "amin": 1, "max": 1, "min": 1, "argmax": 1, "argmin": 1, "prod": 1, "any": 1,
    "all": 1, "cumsum": 1, "topk": 4, "sort": 8, "norm": 2, "linalg_vector_norm": 2, "var": 3, "std": 3, "var_mean": 3,
    "logsumexp": 4,
    "softmax": 5, "_softmax": 5, "_softmax_backward_data": 4, "log_softmax": 5, "_log_softmax": 5,
    "_log_softmax_backward_data": 4, "_safe_softmax": 5,
    "layer_norm": 8, "native_layer_norm": 8, "native_layer_norm_backward": 14, "rms_norm": 5, "_fused_rms_norm": 5,
    "_fused_rms_norm_backward": 10, "group_norm": 8, "native_group_norm": 8, "native_group_norm_backward": 14,
    "batch_norm": 8, "native_batch_norm": 8, "_native_batch_norm_legit": 8, "native_batch_norm_backward": 14,
    "nll_loss": 1, "nll_loss_forward": 1, "nll_loss_backward": 1, "nll_loss_nd": 1, "cross_entropy_loss": 6,
    "cross_entropy": 6,
    "mse_loss": 3, "mse_loss_backward": 3, "l1_loss": 2, "smooth_l1_loss": 4, "huber_loss": 4, "kl_div": 4,
    "binary_cross_entropy": 8, "binary_cross_entropy_with_logits": 10,
    "max_pool2d": 4, "max_pool2d_with_indices": 4, "max_pool2d_with_indices_backward": 1, "avg_pool2d": 4,
    "avg_pool2d_backward": 4, "adaptive_avg_pool2d": 1, "_adaptive_avg_pool2d": 1, "_adaptive_avg_pool2d_backward": 1,
    "embedding_dense_backward": 1, "scatter_add": 1, "index_add": 1, "index_put": 1,
}  # fmt: skip

#: Operations per element; unlisted operators count as one.
ELEMENTWISE_FLOPS: Final[Mapping[str, int]] = {
    "gelu": 10, "gelu_backward": 16, "silu": 5, "silu_backward": 8, "tanh": 6, "tanh_backward": 3, "sigmoid": 4,
    "sigmoid_backward": 3, "exp": 4, "log": 4, "pow": 4, "rsqrt": 2, "sqrt": 2, "erf": 6, "sin": 4, "cos": 4,
    "softplus": 6,
    "addcmul": 3, "addcdiv": 3, "native_dropout": 2, "dropout": 2, "div": 1, "lerp": 3,
}  # fmt: skip

#: Operations per written element of parameters and states.
OPTIMIZER_FLOPS: Final[Mapping[str, int]] = {
    "sgd": 2, "adamw": 5, "adam": 5, "adamamsgrad": 6, "adamwamsgrad": 6, "sparseadamw": 5, "adagrad": 4,
    "_fused_sgd": 2, "_fused_adam": 5, "_fused_adamw": 5, "clip_grad_norm": 3,
}  # fmt: skip

VIEW_OPS: Final = frozenset({
    "view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t",
    "numpy_T", "expand", "expand_as", "view_as", "split", "split_with_sizes", "chunk", "unbind", "getitem", "slice",
    "select", "narrow", "detach", "alias", "as_strided", "diagonal", "lift_fresh", "unsafe_split", "_reshape_alias",
    "sym_size",
})  # fmt: skip

MOVEMENT_OPS: Final = frozenset({
    "clone", "copy", "_to_copy", "to", "contiguous", "cat", "stack", "embedding", "int8_embedding", "index", "gather",
    "index_select", "scatter", "masked_fill", "repeat", "constant_pad_nd", "pad", "roll", "flip", "full", "full_like",
    "zeros", "zeros_like", "ones", "ones_like", "empty", "empty_like", "new_zeros", "new_full", "arange",
    "scalar_tensor", "lift_fresh_copy", "slice_backward", "select_backward", "slice_scatter", "select_scatter", "fill",
    "zero", "triu", "tril", "upsample_nearest2d", "constant", "new_empty", "new_ones", "rand", "randn", "bernoulli",
})  # fmt: skip
