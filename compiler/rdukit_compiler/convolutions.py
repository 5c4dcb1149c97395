"""Convolutions whose weight gradient adds up in f32.

A weight's gradient is a sum over batch and positions; torch's bf16 form adds in bf16 where the processor has no bf16
convolutions, about 2 % off at a batch of 64. The device accumulates wide and rounds once (SDK reference 16).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rdukit_compiler.backend.operators import callable_of

aten = torch.ops.aten


def convolution_form(op: str) -> Callable[..., torch.Tensor]:
    """What to call for ``aten.conv2d.default`` and its like: x [N, C, …], weight, bias → [N, K, …]."""
    plain = callable_of(op)
    is_transposed = "transpose" in op
    names = ("stride", "padding", "output_padding", "groups", "dilation") if is_transposed else (
        "stride", "padding", "dilation", "groups",
    )  # fmt: skip

    def form(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        dims = weight.dim() - 2
        given = dict(zip(names, args, strict=False)) | kwargs
        if not _adds_narrowly(x, weight, bias) or x.dim() != dims + 2:
            return plain(x, weight, bias, *args, **kwargs)
        settings = (
            _each(given.get("stride", 1), dims), _each(given.get("padding", 0), dims),
            _each(given.get("dilation", 1), dims), is_transposed, _each(given.get("output_padding", 0), dims),
            given.get("groups", 1),
        )  # fmt: skip
        return _Convolution.apply(x, weight, bias, *settings)  # type: ignore[no-untyped-call]

    return form


def _adds_narrowly(*tensors: torch.Tensor | None) -> bool:
    there = [tensor for tensor in tensors if tensor is not None]
    return (
        torch.is_grad_enabled()
        and any(tensor.requires_grad for tensor in there)
        and all(tensor.dtype == torch.bfloat16 for tensor in there)
    )


def _each(value: int | Sequence[int], dims: int) -> list[int]:
    sizes = [value] if isinstance(value, int) else list(value)
    return sizes * dims if len(sizes) == 1 else sizes


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.settings, ctx.bias_sizes = settings, None if bias is None else list(bias.shape)
        return aten.convolution.default(x, weight, bias, *settings)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        found = aten.convolution_backward.default(
            gradients[0].float(), x.float(), weight.float(), ctx.bias_sizes, *ctx.settings,
            list(ctx.needs_input_grad[:3]),
        )  # fmt: skip
        narrow = [None if made is None else made.to(x.dtype) for made in found]
        return (*narrow, *(None for _ in ctx.settings))
