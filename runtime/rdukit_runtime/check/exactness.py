"""Kernels whose results are exact on small whole numbers: they agree to the last bit, in any order of additions."""

from math import prod
from typing import Final

from rdukit.pef.kernel import KernelGraph
from rdukit.pef.operators import GETITEM
from rdukit_runtime.check.roles import LAYOUTS, word_of

#: Operators that never change a digit.
_MOVING: Final = LAYOUTS | frozenset(
    f"aten.{name}"
    for name in (
        "cat stack where masked_fill gather index index_select scatter embedding relu threshold clamp clamp_min "
        "clamp_max hardtanh abs neg sign sgn maximum minimum amax amin max min argmax argmin sort topk eq ne lt le gt "
        "ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor floor ceil "
        "round trunc isnan isinf isfinite zeros ones full zeros_like ones_like full_like new_zeros new_full arange "
        "tril triu constant_pad_nd max_pool2d_with_indices max_pool2d_with_indices_backward slice_scatter "
        "select_scatter diagonal_scatter as_strided_scatter any all lift_fresh_copy scalar_tensor "
        "threshold_backward split split_with_sizes unbind chunk copy empty fill copysign"
    ).split()
)
#: Operators that add or multiply: exact while the numbers stay small.
_SUMMING: Final = frozenset(
    f"aten.{name}"
    for name in (
        "add sub rsub mul mm bmm addmm baddbmm matmul dot mv sum cumsum index_add scatter_add index_put "
        "_unsafe_index_put embedding_dense_backward slice_backward select_backward square convolution"
    ).split()
)
#: Further operators of single elements.
_ELEMENTWISE: Final = frozenset(
    f"aten.{name}"
    for name in (
        "add sub rsub mul div square sqrt rsqrt reciprocal pow exp exp2 expm1 log log2 log10 log1p sin cos tan sinh "
        "cosh tanh asin acos atan asinh acosh atanh atan2 erf erfc erfinv sigmoid silu gelu elu celu selu mish "
        "softplus hardswish hardsigmoid leaky_relu softshrink hardshrink remainder fmod floor_divide fmax fmin hypot "
        "frac logit lgamma digamma xlogy heaviside nextafter rad2deg deg2rad nan_to_num sinc i0 relu6 tanh_backward "
        "sigmoid_backward gelu_backward silu_backward logaddexp logaddexp2 lerp addcmul addcdiv"
    ).split()
)
#: Elements of an input up to which sums of products of the drawn numbers stay below 2^24.
_MOST_ELEMENTS: Final = 1 << 16


def is_exact_on_whole_numbers(kernel: KernelGraph) -> bool:
    """Return whether small whole numbers and halves come out exact of each of a kernel's operators, in f32."""
    if any(spec.dtype in {"bfloat16", "float16"} for spec in kernel.inputs):
        return False
    if any(prod(spec.shape) > _MOST_ELEMENTS for spec in kernel.inputs):
        return False
    words = _words(kernel)
    products = sum(word in {"aten.mul", "aten.square", "aten.mm", "aten.bmm", "aten.addmm", "aten.convolution"}
                   for word in words)  # fmt: skip
    return products <= 2 and all(word in _MOVING or word in _SUMMING for word in words)


def adds_nothing(kernel: KernelGraph) -> bool:
    """Return whether no operator adds several numbers: overflow of sums depends on their order."""
    return all(word in _MOVING or word in _ELEMENTWISE for word in _words(kernel))


def keeps_signs(kernel: KernelGraph) -> bool:
    """Return whether also the sign of a zero is certain: nothing is added up."""
    return all(word in _MOVING for word in _words(kernel))


def _words(kernel: KernelGraph) -> list[str]:
    return [word_of(node.op) for node in kernel.nodes if node.op != GETITEM]
