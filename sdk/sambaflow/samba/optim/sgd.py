"""Stochastic gradient descent."""

from collections.abc import Mapping
from typing import Any

import torch

from sambaflow.samba.optim.base import DeviceOptimizer, plain_parameters


class SGD(torch.optim.SGD, DeviceOptimizer):
    """SGD as in torch: weight decay is added to the gradient, then momentum.

    The momentum state exists on the device also when momentum is 0.
    """

    kind = "sgd"

    def __init__(
        self, params: Any, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0, **_accepted: Any
    ) -> None:
        super().__init__(plain_parameters(params), lr=lr, momentum=momentum, weight_decay=weight_decay)

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        return {key: float(group[key]) for key in ("lr", "momentum", "weight_decay")}

    def host_key(self, state: str) -> str:
        return "momentum_buffer"
