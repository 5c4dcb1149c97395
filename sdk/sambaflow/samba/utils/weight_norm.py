"""Weight normalisation in place. Source: SDK reference 7.2."""

from typing import Any

import torch
from torch import nn

from rdukit.errors import InvalidArgument


def weight_norm_(layer: nn.Module, name: str = "weight", dim: int = 0) -> nn.Module:
    """Replace ``weight`` by ``weight_magnitude`` and ``weight_direction``.

    The weight is magnitude * direction / |direction|; norms are over all dims but ``dim``. Returns the layer. Call it
    before conversion.

    Raises:
        InvalidArgument: the layer has no such parameter.
    """
    weight = layer._parameters.get(name)
    if weight is None:
        raise InvalidArgument(f"{type(layer).__name__} has no parameter {name!r}; it has {list(layer._parameters)}")
    del layer._parameters[name]
    layer.register_parameter(f"{name}_magnitude", nn.Parameter(_norm(weight.data, dim)))
    layer.register_parameter(f"{name}_direction", nn.Parameter(weight.data.clone()))
    hook = _WeightNorm(name, dim)
    layer.register_forward_pre_hook(hook.compute)
    layer.register_forward_hook(hook.forget)
    return layer


class _WeightNorm:
    """Puts the weight in place while forward runs."""

    def __init__(self, name: str, dim: int) -> None:
        self.name, self.dim = name, dim

    def compute(self, module: nn.Module, args: Any) -> None:
        direction = getattr(module, f"{self.name}_direction")
        magnitude = getattr(module, f"{self.name}_magnitude")
        module.__dict__[self.name] = magnitude * direction / _norm(direction, self.dim)

    def forget(self, module: nn.Module, args: Any, output: Any) -> None:
        module.__dict__.pop(self.name, None)


def _norm(weight: Any, dim: int) -> torch.Tensor:
    others = [d for d in range(weight.dim()) if d != dim % weight.dim()]
    made: torch.Tensor = (weight * weight).sum(others, keepdim=True).sqrt()
    return made
