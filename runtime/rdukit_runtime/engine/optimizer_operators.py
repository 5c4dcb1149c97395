"""Our own operators: optimizer updates in place, by torch's fused kernels.

Each takes lists of tensors of equal length and run-time scalars.
"""

from typing import Any, Final

import torch

Tensors = list[torch.Tensor]


def sgd(
    parameters: Tensors, gradients: Tensors, momenta: Tensors, *, lr: float, momentum: float, weight_decay: float
) -> None:
    """``torch.optim.SGD``'s update without dampening or Nesterov (SDK reference 9), in place."""
    if not parameters:
        return
    torch._fused_sgd_(
        parameters, gradients, momenta if momentum else [], weight_decay=weight_decay, momentum=momentum, lr=lr,
        dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


def adamw(
    parameters: Tensors, gradients: Tensors, averages: Tensors, squares: Tensors, steps: Tensors, *,
    lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
) -> None:  # fmt: skip
    """``torch.optim.AdamW``'s update, in place; ``steps`` are scalars that count updates."""
    if not parameters:
        return
    for step in steps:
        step.add_(1)
    torch._fused_adamw_(
        parameters, gradients, averages, squares, [], steps, lr=lr, beta1=beta1, beta2=beta2,
        weight_decay=weight_decay, eps=eps, amsgrad=False, maximize=False,
    )  # fmt: skip


def clip_grad_norm(gradients: Tensors, max_norm: float) -> list[torch.Tensor]:
    """Gradients scaled so that the norm of all together is at most ``max_norm``, as ``clip_grad_norm_`` does."""
    if not gradients:
        return []
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return [gradient * scale for gradient in gradients]


OPERATORS: Final[dict[str, Any]] = {
    "rdukit.sgd": sgd,
    "rdukit.adamw": adamw,
    "rdukit.clip_grad_norm": clip_grad_norm,
}
