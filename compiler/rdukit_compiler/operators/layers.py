"""Convolutions, dropout and LSTMs in operators that can be differentiated, cut and split.

The gradient of a convolution's weight is a sum over batch and positions. On processors without bf16 convolutions,
torch's bf16 form adds in bf16, which is about 2 % off at a batch of 64. The device accumulates in a wider dtype and
rounds once (SDK reference 16). torch's dropout fills a mask in place. An LSTM is a layer of our own operator
(``rdukit.lstm_layer``) between products of torch's; in bf16 the recurrence is in f32 and each layer's result is rounded
once.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from rdukit_compiler.operators.naming import callable_of
from rdukit_compiler.operators.own_operators import lstm_layer

aten = torch.ops.aten

_DTYPES: Final = frozenset({torch.float32, torch.bfloat16})


def convolution_form(op: str) -> Callable[..., torch.Tensor]:
    """Return the function to call for ``aten.conv2d.default`` and similar operators: x [N, C, …], weight, bias → [N, K,
    …].
    """
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


def dropout(x: torch.Tensor, p: "float | torch.Tensor", train: bool) -> torch.Tensor:
    """Apply dropout in operators that can be split; torch's own form fills a mask in place. The rate may be a tensor
    [].
    """
    if isinstance(p, torch.Tensor) or (train and 0 < p < 1):
        return _scaled(x, torch.rand(x.shape, dtype=torch.float32, device=x.device), p)
    made: torch.Tensor = torch.ops.aten.dropout.default(x, p, train)
    return made


def feature_dropout(x: torch.Tensor, p: "float | torch.Tensor", train: bool) -> torch.Tensor:
    """Drop out whole channels: x [N, C, …]."""
    if isinstance(p, torch.Tensor) or (train and 0 < p < 1):
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        return _scaled(x, torch.rand(shape, dtype=torch.float32, device=x.device), p)
    made: torch.Tensor = torch.ops.aten.feature_dropout.default(x, p, train)
    return made


def _scaled(x: torch.Tensor, numbers: torch.Tensor, p: "float | torch.Tensor") -> torch.Tensor:
    """Keep ``x`` where a uniform number is at least ``p``, and scale it to keep its mean; return zeros for a rate of
    1.
    """
    kept = x * (numbers >= p)
    return kept * (1 - p).clamp_min(1e-6).reciprocal() if isinstance(p, torch.Tensor) else kept * (1 / (1 - p))


def lstm(
    x: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor], has_biases: bool, layers: int,
    rate: "float | torch.Tensor", train: bool, is_bidirectional: bool, is_batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Compute ``aten.lstm.input`` in our operators; projected states and other dtypes stay torch's.

    Args:
        x: [T, B, C], or [B, T, C]. states: h and c, each [layers * directions, B, H].
        params: by layer and direction: weights [4H, C] and [4H, H], and, with biases, two of shape [4H].
        rate: of dropout between layers.
    Returns:
        y [T, B, directions * H], or [B, T, …]; h and c after the last steps, shaped as ``states``.
    """
    directions, each = 1 + is_bidirectional, 4 if has_biases else 2
    if len(params) != layers * directions * each or {t.dtype for t in (x, *states, *params)} - _DTYPES:
        return aten.lstm.input(  # type: ignore[no-any-return]
            x, states, params, has_biases, layers, rate, train, is_bidirectional, is_batch_first
        )
    y = x.transpose(0, 1) if is_batch_first else x
    last: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(layers):
        made = []
        for is_reversed in (False, True)[:directions]:
            place = len(last)
            own = params[place * each : (place + 1) * each]
            way, h, c = _direction(y, states[0][place], states[1][place], own, is_reversed)
            made.append(way)
            last.append((h, c))
        y = torch.cat(made, -1) if is_bidirectional else made[0]
        if layer + 1 < layers:
            y = dropout(y, rate, train)
    h_last, c_last = (torch.stack([pair[i] for pair in last]).to(states[i].dtype) for i in (0, 1))
    return y.transpose(0, 1) if is_batch_first else y, h_last, c_last


def _direction(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, params: Sequence[torch.Tensor], is_reversed: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return y in the dtype of x, and the last h and c in f32."""
    w_input, w, *biases = params
    dtype = torch.promote_types(x.dtype, w_input.dtype)
    rows, turned = x.reshape(-1, x.shape[2]).to(dtype), w_input.t().to(dtype)
    gates = torch.addmm((biases[0] + biases[1]).to(dtype), rows, turned) if biases else rows @ turned
    by_step = gates.float().view(*x.shape[:2], -1)
    y, h_last, c_last = lstm_layer(by_step, w.float(), h.float(), c.float(), is_reversed)
    return y.to(x.dtype), h_last, c_last
