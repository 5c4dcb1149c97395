"""Which GEMM limit a kernel has: the dtype that its matrix products compute in. Pure.

A kernel's graph has the dtypes of its inputs; those of the other values follow from conversions and from the operands.

Source: ours.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rdukit.pef.kernel import Argument, KernelGraph, KernelNode, Special, references

#: Limits by torch's dtype; what is not here has the limit of f32.
_LIMIT_OF: Final[Mapping[str, str]] = {"bfloat16": "bf16", "float16": "bf16", "int8": "int8", "uint8": "int8"}
#: Wider wins when operands differ.
_RANK: Final = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_PRODUCTS: Final = frozenset(
    {"linear", "mm", "addmm", "bmm", "baddbmm", "matmul", "convolution", "convolution_backward", "lstm", "gru"}
)
_PRODUCT_PREFIXES: Final = ("conv", "_scaled_dot_product", "scaled_dot_product", "_int_mm", "linear", "mkldnn_linear")


def limit_dtype(kernel: KernelGraph) -> str:
    """``f32``, ``bf16`` or ``int8``: the dtype of most of the kernel's matrix products, else of its widest input."""
    dtypes = _value_dtypes(kernel)
    found = [_first_dtype(node, dtypes) for node in kernel.nodes if is_product(node.op)]
    names = [name for name in found if name is not None]
    if not names:
        inputs = [spec.dtype for spec in kernel.inputs if spec.dtype in _RANK and "float" in spec.dtype]
        names = [max(inputs, key=_RANK.index, default="float32")]
    return _LIMIT_OF.get(max(names, key=names.count), "f32")


def is_product(op: str) -> bool:
    """Whether an operator multiplies matrices."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return name in _PRODUCTS or name.startswith(_PRODUCT_PREFIXES)


def _value_dtypes(kernel: KernelGraph) -> dict[str, str]:
    """The dtype of every value, as far as inputs and conversions tell."""
    dtypes = {spec.name: spec.dtype for spec in kernel.inputs}
    for node in kernel.nodes:
        arguments = [*node.args, *node.kwargs.values()]
        converted = _conversion(arguments)
        operands = [dtypes[name] for name in references(arguments) if dtypes.get(name) in _RANK]
        dtypes[node.name] = converted or max(operands, key=_RANK.index, default="float32")
    return dtypes


def _conversion(arguments: Sequence[Argument]) -> str | None:
    return next((a.text for a in arguments if isinstance(a, Special) and a.kind == "dtype"), None)


def _first_dtype(node: KernelNode, dtypes: Mapping[str, str]) -> str | None:
    names = references([*node.args, *node.kwargs.values()])
    return dtypes.get(names[0]) if names else None
