"""bf16 products in f32, where the processor has no bf16 instructions: torch's own take ten to seventy times as long.

Operands are widened, which is exact, and the result is rounded once: as exact as torch's own, which adds up in f32
too, but in another order, so that single elements may differ in their last bit. Source: ours.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from rdukit.pef.kernel import KernelGraph, Special
from rdukit.system.cpu import has_bf16_instructions

#: Operators that multiply matrices → how many of their results are in the operands' dtype; None: all.
_PRODUCTS: Final[Mapping[str, int | None]] = {
    "aten.linear.default": None, "aten.matmul.default": None, "aten.mm.default": None, "aten.bmm.default": None,
    "aten.addmm.default": None, "aten.baddbmm.default": None, "aten.einsum.default": None,
    "aten.convolution.default": None, "aten.convolution_backward.default": None,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": 1,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": None,
}  # fmt: skip


def widens(graph: KernelGraph) -> bool:
    """Whether this processor runs products of ``graph`` better in f32."""
    if has_bf16_instructions():
        return False
    specials = (a for node in graph.nodes for a in (*node.args, *node.kwargs.values()) if isinstance(a, Special))
    return any(spec.dtype == "bfloat16" for spec in graph.inputs) or any(a.text == "bfloat16" for a in specials)


def wide_form(op: str, called: Callable[..., Any]) -> Callable[..., Any]:
    """``called``, or a form of it that multiplies bf16 operands in f32."""
    if op not in _PRODUCTS:
        return called
    narrowed = _PRODUCTS[op]

    def run(*args: Any, **kwargs: Any) -> Any:
        if not any(_is_narrow(argument) for argument in args):
            return called(*args, **kwargs)
        made = called(*(_widen(argument) for argument in args), **{k: _widen(v) for k, v in kwargs.items()})
        if isinstance(made, torch.Tensor):
            return made.bfloat16()
        last = len(made) if narrowed is None else narrowed
        return [item.bfloat16() if i < last and item is not None else item for i, item in enumerate(made)]

    return run


def _is_narrow(value: Any) -> bool:
    if isinstance(value, list):
        return any(_is_narrow(item) for item in value)
    return isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16


def _widen(value: Any) -> Any:
    if isinstance(value, list):
        return [_widen(item) for item in value]
    return value.float() if _is_narrow(value) else value
