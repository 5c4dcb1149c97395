"""Adam, AdamW, AdamW for embeddings, and Adagrad."""

import logging
from collections.abc import Mapping
from typing import Any, Final

import torch

from rdukit.errors import InvalidArgument
from sambaflow.samba.optim.base import DeviceOptimizer, plain_parameters, torch_options

logger = logging.getLogger(__name__)

#: AdamW's default ``betas``. Source: SDK reference 9.
VENDOR_BETAS: Final = (0.9, 0.997)
#: Messages that were logged; each is logged once in a process.
_told: Final[set[str]] = set()


class _AdamFamily(DeviceOptimizer):
    """Base of the Adam optimizers: their scalars, and the group options that change the update."""

    watched = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")

    def kind_of(self, group: Mapping[str, Any]) -> str:
        super().kind_of(group)
        kind = "adamw" if group["decoupled_weight_decay"] else "adam"
        return f"{kind}amsgrad" if group["amsgrad"] else kind

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        beta1, beta2 = group["betas"]
        return {
            "lr": float(group["lr"]), "beta1": float(beta1), "beta2": float(beta2), "eps": float(group["eps"]),
            "weight_decay": float(group["weight_decay"]),
        }  # fmt: skip


class AdamW(_AdamFamily, torch.optim.AdamW):
    """AdamW as in torch, with the vendor's defaults: the second beta is 0.997, weight decay 0.

    ``max_grad_norm`` adds a gradnorm section that clips the norm of all gradients, together with those of other
    optimizers that have the same ``max_grad_norm``. ``fp32_params`` and ``argin_region_name`` are accepted: trained
    parameters are always f32 on the device.

    Raises:
        InvalidArgument: an option that the device has no update for, or an unknown keyword.
    """

    kind = "adamw"

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] | None = None, eps: float = 1e-8,
        weight_decay: float | None = None, amsgrad: bool = False, max_grad_norm: float | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        if betas is None:
            _tell_once(
                f"AdamW(betas=…) was left out: the device's default is {VENDOR_BETAS}, torch's is (0.9, 0.999); pass "
                "betas to choose"
            )
        if weight_decay is None:
            _tell_once(
                "AdamW(weight_decay=…) was left out: the device's default is 0, torch's is 0.01; pass weight_decay to "
                "choose"
            )
        super().__init__(
            plain_parameters(params), lr=lr, betas=betas or VENDOR_BETAS, eps=eps, weight_decay=weight_decay or 0.0,
            amsgrad=amsgrad, **torch_options(self, options),
        )  # fmt: skip
        self.max_grad_norm = max_grad_norm


class Adam(_AdamFamily, torch.optim.Adam):
    """Adam as in torch: weight decay is added to the gradient. The documentation steers users to AdamW.

    Raises:
        InvalidArgument: an option that the device has no update for, or an unknown keyword.
    """

    kind = "adam"

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, amsgrad: bool = False, max_grad_norm: float | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            plain_parameters(params), lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
            **torch_options(self, options),
        )  # fmt: skip
        self.max_grad_norm = max_grad_norm


class SparseAdamW(AdamW):
    """AdamW for embeddings: rows without a gradient in a step, and their states, do not change.

    On the host all rows are updated, as AdamW does: torch has no such update for dense gradients. Source: ours; only
    the name and the purpose are public.
    """

    def kind_of(self, group: Mapping[str, Any]) -> str:
        if super().kind_of(group) != "adamw":
            raise InvalidArgument("SparseAdamW has neither amsgrad nor coupled weight decay; leave them out")
        return "sparseadamw"


class Adagrad(DeviceOptimizer, torch.optim.Adagrad):
    """Adagrad as in torch. The documentation steers users to AdamW.

    Raises:
        InvalidArgument: an option that the device has no update for, or an unknown keyword.
    """

    kind = "adagrad"
    watched = ("lr", "lr_decay", "weight_decay", "eps", "maximize")

    def __init__(
        self, params: Any, lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, max_grad_norm: float | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            plain_parameters(params), lr=lr, lr_decay=lr_decay, weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value, eps=eps, **torch_options(self, options),
        )  # fmt: skip
        self.max_grad_norm = max_grad_norm

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        names = ("lr", "lr_decay", "weight_decay", "eps", "initial_accumulator_value")
        return {name: float(group[name]) for name in names}


def _tell_once(message: str) -> None:
    if message not in _told:
        _told.add(message)
        logger.warning("%s", message)
