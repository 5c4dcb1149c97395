"""AdamW."""

from collections.abc import Mapping
from typing import Any

import torch

from sambaflow.samba.optim.base import DeviceOptimizer, plain_parameters


class AdamW(torch.optim.AdamW, DeviceOptimizer):
    """AdamW as in torch, with the vendor's defaults: the second beta is 0.997, weight decay 0.

    ``max_grad_norm`` adds a gradnorm section that clips the norm of all gradients.
    """

    kind = "adamw"

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.997), eps: float = 1e-8,
        weight_decay: float = 0.0, amsgrad: bool = False, max_grad_norm: float | None = None,
        **_accepted: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            plain_parameters(params), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )
        self.max_grad_norm = max_grad_norm

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        return {
            "lr": float(group["lr"]), "beta1": float(beta1), "beta2": float(beta2), "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
        }  # fmt: skip
