"""Stochastic gradient descent."""

from collections.abc import Mapping
from typing import Any

import torch

from sambaflow.samba.optim.base import DeviceOptimizer, check_accepted, plain_parameters


class SGD(torch.optim.SGD, DeviceOptimizer):
    """SGD as in torch: weight decay is added to the gradient, then momentum.

    The momentum state exists on the device also when momentum is 0.

    Raises:
        InvalidArgument: dampening, or another keyword that would change the update and is not supported.
    """

    kind = "sgd"

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False,
        max_grad_norm: float | None = None, **accepted: Any,
    ) -> None:  # fmt: skip
        check_accepted(self, accepted)
        super().__init__(
            plain_parameters(params), lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov
        )
        self.max_grad_norm = max_grad_norm

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        scalars = {key: float(group[key]) for key in ("lr", "momentum", "weight_decay")}
        return {**scalars, "nesterov": 1.0} if group["nesterov"] else scalars

    def host_key(self, state: str) -> str:
        return "momentum_buffer"
