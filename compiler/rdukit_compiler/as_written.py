"""Differentiate a custom function as its program wrote it (``custom_gradients``)."""

from collections.abc import Sequence
from typing import Any

import torch

from rdukit.errors import UnsupportedOperator
from rdukit.pef.kernel import KernelGraph, kernel_from_json
from rdukit_compiler.custom_gradients import operators_of


def custom_function(
    outputs: Sequence[torch.Tensor], entries: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], backward: str,
    refusal: str,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """``outputs`` as they are, with the gradient that ``backward`` gives for ``entries``.

    Raises:
        UnsupportedOperator: when a gradient is asked for and there is none, with ``refusal`` as the reason.
    """
    plan = (len(outputs), len(entries), backward, refusal)
    made: tuple[torch.Tensor, ...] = _AsWritten.apply(plan, *outputs, *entries, *saved)  # type: ignore[no-untyped-call]
    return made


class _AsWritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: tuple[int, int, str, str], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made, entries, _, _ = ctx.plan = plan
        ctx.save_for_backward(*tensors[made + entries :])
        return tuple(tensor.detach() for tensor in tensors[:made])

    @staticmethod
    def backward(ctx: Any, *incoming: torch.Tensor) -> Any:
        made, entries, text, refusal = ctx.plan
        if refusal:
            raise UnsupportedOperator(f"{refusal}; compile for inference, or train what does not depend on it")
        gradients = _run(kernel_from_json(text.encode()), [*ctx.saved_tensors, *incoming])
        assert len(gradients) == entries
        return None, *[None] * made, *gradients, *[None] * len(ctx.saved_tensors)


def _run(graph: KernelGraph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    from rdukit_compiler.run_operator import run_operator

    tensors: dict[str, Any] = dict(zip((spec.name for spec in graph.inputs), inputs, strict=True))
    for operator in operators_of(graph, ""):
        run_operator(operator, tensors)
    return [None if name is None else tensors[name] for name in graph.outputs]
