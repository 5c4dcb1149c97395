"""Adagrad."""

from collections.abc import Mapping
from typing import Any

import torch

from sambaflow.samba.optim.base import DeviceOptimizer, check_accepted, plain_parameters


class Adagrad(torch.optim.Adagrad, DeviceOptimizer):
    """Adagrad as in torch. The documentation steers users to AdamW.

    Raises:
        InvalidArgument: a keyword that would change the update, and is not supported.
    """

    kind = "adagrad"

    def __init__(
        self, params: Any, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, max_grad_norm: float | None = None,
        **accepted: Any,
    ) -> None:  # fmt: skip
        check_accepted(self, accepted)
        super().__init__(
            plain_parameters(params), lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, eps=eps,
        )  # fmt: skip
        self.max_grad_norm = max_grad_norm

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        names = ("lr", "lr_decay", "weight_decay", "eps", "initial_accumulator_value")
        return {name: float(group[name]) for name in names}
