"""Adam, AdamW, AdamW for embeddings, and Adagrad."""

from collections.abc import Mapping
from typing import Any

import torch

from sambaflow.samba.optim.base import DeviceOptimizer, check_accepted, plain_parameters


class _AdamFamily(DeviceOptimizer):
    """Scalars that the Adams share."""

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        return {
            "lr": float(group["lr"]), "beta1": float(beta1), "beta2": float(beta2), "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
        }  # fmt: skip


class AdamW(torch.optim.AdamW, _AdamFamily):
    """AdamW as in torch, with the vendor's defaults: the second beta is 0.997, weight decay 0.

    ``max_grad_norm`` adds a gradnorm section that clips the norm of all gradients, together with those of other
    optimizers that have the same ``max_grad_norm``. ``fp32_params`` and ``argin_region_name`` are accepted: trained
    parameters are f32 on the device anyhow.

    Raises:
        InvalidArgument: a keyword that would change the update, and is not supported.
    """

    kind = "adamw"

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.997), eps: float = 1e-8,
        weight_decay: float = 0.0, amsgrad: bool = False, max_grad_norm: float | None = None,
        fp32_params: bool = False, argin_region_name: str = "", **accepted: Any,
    ) -> None:  # fmt: skip
        check_accepted(self, accepted)
        super().__init__(
            plain_parameters(params), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )
        self.max_grad_norm = max_grad_norm
        if amsgrad:
            self.kind = "adamwamsgrad"


class Adam(torch.optim.Adam, _AdamFamily):
    """Adam as in torch: weight decay is added to the gradient. The documentation steers users to AdamW.

    Raises:
        InvalidArgument: a keyword that would change the update, and is not supported.
    """

    kind = "adam"

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, amsgrad: bool = False, max_grad_norm: float | None = None, **accepted: Any,
    ) -> None:  # fmt: skip
        check_accepted(self, accepted)
        super().__init__(
            plain_parameters(params), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )
        self.max_grad_norm = max_grad_norm
        if amsgrad:
            self.kind = "adamamsgrad"


class SparseAdamW(AdamW):
    """AdamW for embeddings: rows without a gradient in a step are not touched, nor are their states.

    On the host all rows are updated, as AdamW does: torch has no such update for dense gradients. Source: ours; only
    the name and the purpose are public.
    """

    kind = "sparseadamw"

    def __init__(self, params: Any, *args: Any, **keywords: Any) -> None:
        super().__init__(params, *args, **{**keywords, "amsgrad": False})


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
