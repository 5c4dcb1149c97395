"""Other forms of ATen operators: for a GPU those that only the host has, and bf16 products computed in f32.

A PEF is traced on the host, where torch chooses fused attention for processors; CUDA has no kernel of that name. Each
function here has the signature, results and memory layout of its operator.

Without bf16 instructions, torch's own bf16 products take ten to seventy times as long as f32. Here operands are
widened, which is exact, and the result is rounded once. That is as exact as torch's own sum in f32; only the order
differs, so single elements may differ in their last bit. Source: ours.

Axes: B batch, H heads, L queries, S keys, D size of a head.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from rdukit.errors import RuntimeFault
from rdukit.pef.kernel import KernelGraph, Special
from rdukit.system.cpu import has_bf16_instructions


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return ``aten._scaled_dot_product_flash_attention_for_cpu``: (output [B, H, L, D], log of the sum [B, H, L]).

    Raises:
        RuntimeFault: dropout, which the operator has not either.
    """
    _refuse_dropout(dropout_p)
    scores_BHLS = _scores(query, key, is_causal, attn_mask, scale)
    sums_BHL = torch.logsumexp(scores_BHLS, -1)
    mixed = _probabilities(scores_BHLS, sums_BHL) @ value.to(scores_BHLS.dtype)
    return _as_on_host(mixed.to(query.dtype)), _as_on_host(sums_BHL)


def attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, dropout_p: float, is_causal: bool, *, attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return its backward: the gradients of query, key and value.

    Raises:
        RuntimeFault: see ``attention``.
    """
    _refuse_dropout(dropout_p)
    wide = _wide(query)
    factor = _factor(query, scale)
    scores_BHLS = _scores(query, key, is_causal, attn_mask, scale)
    chances_BHLS = _probabilities(scores_BHLS, logsumexp.to(wide))
    incoming = gradient.to(wide)
    of_chances = incoming @ value.to(wide).transpose(-1, -2)
    own = (incoming * out.to(wide)).sum(-1, keepdim=True)
    of_scores = chances_BHLS * (of_chances - own) * factor
    made = (
        of_scores @ key.to(wide),
        of_scores.transpose(-1, -2) @ query.to(wide),
        chances_BHLS.transpose(-1, -2) @ incoming,
    )
    of_query, of_key, of_value = (_as_on_host(tensor.to(query.dtype)) for tensor in made)
    return of_query, of_key, of_value


def _scores(
    query: torch.Tensor, key: torch.Tensor, is_causal: bool, mask: torch.Tensor | None, scale: float | None
) -> torch.Tensor:
    wide = _wide(query)
    scores_BHLS = (query.to(wide) * _factor(query, scale)) @ key.to(wide).transpose(-1, -2)
    if is_causal:
        later = torch.ones(scores_BHLS.shape[-2:], dtype=torch.bool, device=query.device).triu(1)
        scores_BHLS = scores_BHLS.masked_fill(later, -math.inf)
    return scores_BHLS if mask is None else scores_BHLS + mask.to(wide)


def _probabilities(scores_BHLS: torch.Tensor, sums_BHL: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of keys for each query; zeros for a query whose keys are all masked."""
    chances = torch.exp(scores_BHLS - sums_BHL.unsqueeze(-1))
    return chances.masked_fill(scores_BHLS == -math.inf, 0.0)


def _as_on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values with heads after positions in memory, as the host's operator does: views rely on it."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _wide(query: torch.Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _factor(query: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _refuse_dropout(dropout_p: float) -> None:
    if dropout_p:
        raise RuntimeFault("fused attention with dropout has no form on a GPU; run on the host with RDUKIT_DEVICE=cpu")


#: Operator of the host → its equivalent for a GPU.
ELSEWHERE: Final[dict[str, Any]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_backward,
}


#: Operators that multiply matrices → number of results in the operands' dtype; None: all.
_PRODUCTS: Final[Mapping[str, int | None]] = {
    "aten.linear.default": None, "aten.matmul.default": None, "aten.mm.default": None, "aten.bmm.default": None,
    "aten.addmm.default": None, "aten.baddbmm.default": None, "aten.einsum.default": None,
    "aten.convolution.default": None, "aten.convolution_backward.default": None,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": 1,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": None,
}  # fmt: skip


def widens(graph: KernelGraph) -> bool:
    """Return whether this processor runs products of ``graph`` better in f32."""
    if has_bf16_instructions():
        return False
    specials = (a for node in graph.nodes for a in (*node.args, *node.kwargs.values()) if isinstance(a, Special))
    return any(spec.dtype == "bfloat16" for spec in graph.inputs) or any(a.text == "bfloat16" for a in specials)


def wide_form(op: str, called: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``called``, or a form of it that multiplies bf16 operands in f32."""
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
