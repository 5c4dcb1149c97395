"""Base of SambaFlow's optimizers: parameters by name, groups for the compiler, state on the device."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from rdukit.errors import CompileError, InvalidArgument
from rdukit_compiler import STATES, OptimizerGroup

_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class DeviceOptimizer(torch.optim.Optimizer):
    """Mixed into a torch optimizer: how the device sees it.

    ``kind`` is the compiler's name; ``scalar_names`` are the run-time scalars of a parameter group.
    """

    kind: str
    max_grad_norm: float | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group as torch does, without its guard against torch.compile, whose import takes over a second."""
        _add_param_group(self, param_group)

    def scalars_of(self, group: Mapping[str, Any]) -> dict[str, float]:
        """Run-time scalars of a parameter group, by the compiler's names."""
        raise NotImplementedError

    def device_groups(self, first_index: int) -> tuple[OptimizerGroup, ...]:
        """Return this optimizer's groups as the compiler takes them, numbered from ``first_index``."""
        made: list[OptimizerGroup] = []
        for offset, group in enumerate(self.param_groups):
            names = []
            for parameter in group["params"]:
                name = getattr(parameter, "sn_name", "")
                if not name:
                    raise CompileError(
                        "the optimizer holds a parameter that was not converted; call samba.from_torch_model_(model) "
                        "on the model before compile and trace"
                    )
                if parameter.requires_grad:
                    names.append(name)
            made.append(
                OptimizerGroup(
                    self.kind, first_index + offset, tuple(names), self.scalars_of(group), self.max_grad_norm
                )
            )
        return tuple(made)

    def named_states(self, first_index: int) -> Iterable[tuple[nn.Parameter, str, str]]:
        """Yield (parameter, key in torch's state, symbol on the device) of every state tensor."""
        for group, compiled in zip(self.param_groups, self.device_groups(first_index), strict=True):
            for parameter in group["params"]:
                if parameter.requires_grad:
                    names = compiled.state_names(parameter.sn_name)
                    for state, symbol in zip(STATES[self.kind], names, strict=True):
                        yield parameter, self.host_key(state), symbol

    def cpu(self) -> "DeviceOptimizer":
        """Copy the states to the host, as ``samba.session.to_cpu(optimizer)`` does."""
        from sambaflow import samba

        samba.session.to_cpu(self)
        return self

    def host_key(self, state: str) -> str:
        """Return the key of a state in torch's ``optimizer.state[parameter]``."""
        return state


def check_accepted(optimizer: object, accepted: Mapping[str, Any]) -> None:
    """Let pass the keywords that do not change the update.

    Raises:
        InvalidArgument: ``dampening`` or ``maximize``, which would.
    """
    changing = sorted(key for key in ("dampening", "maximize") if accepted.get(key))
    if changing:
        raise InvalidArgument(f"{type(optimizer).__name__} does not support {', '.join(changing)}; leave it out")


def plain_parameters(params: Any) -> Any:
    """Return parameters in the containers that torch's optimizers take: lists, and groups as dicts."""
    items = list(params)
    if items and isinstance(items[0], Mapping):
        return [{**group, "params": list(group["params"])} for group in items]
    return items


def optimizer_list(optimizers: Any) -> tuple[DeviceOptimizer, ...]:
    """Return one optimizer, a list, a nested list or None, as a tuple.

    Raises:
        CompileError: something else is among them.
    """
    if optimizers is None:
        return ()
    if isinstance(optimizers, list | tuple):
        return tuple(item for part in optimizers for item in optimizer_list(part))
    if not isinstance(optimizers, DeviceOptimizer):
        raise CompileError(
            f"{type(optimizers).__name__} is not an optimizer of sambaflow.samba.optim; legal: SGD, AdamW, Adam, "
            "Adagrad, SparseAdamW"
        )
    return (optimizers,)


def compiler_groups(optimizers: Any) -> tuple[OptimizerGroup, ...]:
    """Return all groups of a program's optimizers, numbered in order."""
    groups: list[OptimizerGroup] = []
    for optimizer in optimizer_list(optimizers):
        groups.extend(optimizer.device_groups(len(groups)))
    return tuple(groups)
