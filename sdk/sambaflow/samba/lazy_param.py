"""Lazy parameters: modules are built without values, which are computed when needed. Source: SDK reference 13."""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from sambaflow.samba.nn.parameter import SambaParameter

_enabled = True


class RandomSource:
    """Random numbers for materializers, from a separate generator."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, mean: float, std: float, shape: Iterable[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return normally distributed values of ``shape``."""
        made = torch.normal(float(mean), float(std), tuple(shape), generator=self._generator)
        return made.to(dtype) if dtype is not None else made

    def uniform(self, low: float, high: float, shape: Iterable[int], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return uniformly distributed values of ``shape``."""
        made = torch.rand(tuple(shape), generator=self._generator) * (high - low) + low
        return made.to(dtype) if dtype is not None else made


class RNGProvider(ABC):
    """Called by a materializer for its random numbers."""

    @abstractmethod
    def __call__(self) -> RandomSource: ...


class SeededProvider(RNGProvider):
    """Returns a source of the same numbers at each call."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self) -> RandomSource:
        return RandomSource(self.seed)


class RNGProviderFactory:
    """Creates providers, each with a seed from torch's generator, so ``set_seed`` makes them reproducible."""

    def build_provider(self) -> RNGProvider:
        """Return a provider with a new seed."""
        return SeededProvider(int(torch.randint(2**62, ()).item()))


class ModuleInit:
    """Materializer of parameters that a module sets in its ``reset_parameters``."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self, parameter: Any, *more: Any) -> torch.Tensor:
        return default_values(self.module)[self.name]


@contextmanager
def lazy_param(quantized: bool = False) -> Iterator[None]:
    """Build modules with empty parameters and a materializer, if their class has ``reset_parameters``.

    Other modules compute their values while they are built, and keep them. ``quantized`` is accepted without effect:
    quantized modules have buffers, not parameters.
    """
    if not _enabled:
        yield
        return
    hook = register_module_parameter_registration_hook(_make_lazy)  # type: ignore[arg-type]
    try:
        yield
    finally:
        hook.remove()


def set_enabled(value: bool) -> None:
    """Set whether ``lazy_param`` has an effect."""
    global _enabled
    _enabled = value


def is_lazy(parameter: Any) -> bool:
    """Return whether a parameter is empty and has a materializer."""
    return (
        isinstance(parameter, SambaParameter) and parameter.device.type == "meta" and parameter.materializer is not None
    )


def value_of(parameter: Any) -> torch.Tensor:
    """Return a lazy parameter's value: its materializer gets the parameter, or the parameter and a random source."""
    make: Callable[..., torch.Tensor] = parameter.materializer
    made = make(parameter, RNGProviderFactory().build_provider()()) if _takes_two(make) else make(parameter)
    return made.detach().to(parameter.dtype)


def _takes_two(make: Callable[..., torch.Tensor]) -> bool:
    """Return whether a materializer takes a random source in addition to the parameter."""
    try:
        inspect.signature(make).bind(None)
    except TypeError:
        return True
    except ValueError:  # a built-in function without a signature: pass only the parameter
        return False
    return False


def default_values(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the values that ``reset_parameters`` would set, without changing the module."""
    shadow = copy.copy(module)
    names = dict(module._parameters)
    shadow.__dict__["_parameters"] = {
        name: None if p is None else nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=False)
        for name, p in names.items()
    }
    shadow.reset_parameters()  # type: ignore[operator]
    return {name: p.data for name, p in shadow._parameters.items() if p is not None}


def _make_lazy(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
    if parameter is None or isinstance(parameter, SambaParameter) or not hasattr(module, "reset_parameters"):
        return None
    return SambaParameter(
        shape=parameter.shape, dtype=parameter.dtype, requires_grad=parameter.requires_grad,
        materializer=ModuleInit(module, name),
    )  # fmt: skip


__all__ = ["RNGProvider", "RNGProviderFactory", "RandomSource", "is_lazy", "lazy_param", "value_of"]
