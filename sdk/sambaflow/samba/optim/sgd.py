"""Stochastic gradient descent."""

from collections.abc import Mapping
from typing import Any

import torch

from sambaflow.samba.optim.base import DeviceOptimizer, plain_parameters, torch_options


class SGD(DeviceOptimizer, torch.optim.SGD):
    """SGD as in torch: weight decay is added to the gradient, then momentum.

    The momentum state exists on the device also when momentum is 0.

    Raises:
        InvalidArgument: dampening, which the device has no update for, or an unknown keyword.
    """

    kind = "sgd"
    watched = ("lr", "momentum", "weight_decay", "nesterov", "maximize", "dampening")

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
        max_grad_norm: float | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            plain_parameters(params), lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov,
            **torch_options(self, options),
        )  # fmt: skip
        self.max_grad_norm = max_grad_norm

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        scalars = {key: float(group[key]) for key in ("lr", "momentum", "weight_decay")}
        return {**scalars, "nesterov": 1.0} if group["nesterov"] else scalars

    def host_key(self, state: str) -> str:
        return "momentum_buffer"
